"""Augmentation of a whole batch on its device: every image gets its own randomness.

`draw` makes an epoch's random numbers on the host, one row for each image of the set; `plan` works out from them,
still on the host, what is done to the images of each batch; `augment` (geometry, colour, erasing) and `mix` (mixup,
cutmix) do it on the device:

    table = draw(config, len(labels), seed, epoch)
    for changes in plan(table[order], config, epoch, (H, W), batch_size, device):
        images = augment(images, changes, config, fill)
        images, targets = mix(images, labels, num_classes, changes, config, progress)

A row depends on seed, epoch and image alone. So an image is treated alike whatever the order and size of the
batches, the device and the number of processes; and switching one option leaves the draws of others alone.
"""

from vitreous.augment.batch import Changes, augment, mix, plan
from vitreous.augment.config import Augment
from vitreous.augment.draws import draw

__all__ = ["Augment", "Changes", "augment", "draw", "mix", "plan"]
