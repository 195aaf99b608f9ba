"""Augmentation of a whole batch on its device: every image gets its own randomness.

`draw` makes an epoch's random numbers on the host, one row per image of the set; `plan` turns them, still on the host,
into the changes of each batch; `augment` (geometry, colour, erasing) and `mix` (mixup, cutmix) apply them on the
device:

    table = draw(config, len(labels), seed, epoch)
    for changes in plan(table[order], config, epoch, (H, W), batch_size, device):
        images = augment(images, changes, config, fill)
        images, targets = mix(images, labels, num_classes, changes, config, progress)

A row depends only on seed, epoch and image. So what is done to an image does not depend on the order and size of the
batches, the device or the number of processes, but for the image that it is mixed with; and switching one option does
not change the draws of others.
"""

from vitreous.augment.batch import Changes, augment, mix, plan
from vitreous.augment.config import Augment
from vitreous.augment.draws import draw

__all__ = ["Augment", "Changes", "augment", "draw", "mix", "plan"]
