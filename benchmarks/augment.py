"""Augmentation on one core: ours for a whole batch, torchvision's image by image, kornia's for a whole batch.

    python benchmarks/augment.py            # minutes on one core; writes results/augment.json
    python benchmarks/augment.py --quick    # seconds, on toy batches; writes nothing

All start from the same uint8 images in memory and end with a normalised float32 batch. `light` is a flip and a shift;
`strong` is a flip, a crop, two RandAugment operations, each done half the time, random erasing, and mixup or cutmix.
`DIFFERENCES` says where a peer cannot do the same.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from importlib.metadata import version

import numpy as np
import torch
from measure import RESULTS, declare_torchvision_operators, interleaved, machine, save
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vitreous.augment import augment, draw, mix, plan
from vitreous.device import pick_device
from vitreous.preprocess import Preprocess
from vitreous.recipe import make_recipe

SHAPES = [(32, 256), (224, 32)]  # side, batch
QUICK = [(32, 16), (224, 2)]
POLICIES = ("light", "strong")
BATCHES = 5  # a timing, and an epoch of ours, so that every timing holds the drawing of an epoch
CLASSES = 10
MEAN, STD = (0.48, 0.45, 0.41), (0.23, 0.22, 0.22)
CROP, ERASE, MAGNITUDE = (0.8, 1.0), 0.25, 9  # magnitude of 10; the peers count to 30
OURS = "vitreous"
DIFFERENCES = {
    "torchvision": "mixes a whole batch either by mixup or by cutmix, with one weight; RandAugment has the identity in "
    "place of invert and solarize-add",
    "kornia": "draws the two RandAugment operations for the whole batch, and mixes it either by mixup or by cutmix",
}

Augmented = Callable[[], tuple[Tensor, Tensor]]  # -> images float32 (B, 3, H, W), labels or soft targets


def ours(policy: str, pixels: Tensor, labels: Tensor) -> Augmented:
    """As the training loop calls it: an epoch, here of `BATCHES`, draws its random numbers at its start."""
    side = pixels.shape[-1]
    light = {"flip": 0.5, "shift": side // 8}
    strong = {"flip": 0.5, "crop_scale": CROP, "randaugment_ops": 2, "randaugment_magnitude": MAGNITUDE}
    strong |= {"erase": ERASE, "mixup": 0.8, "cutmix": 1.0}
    config = light if policy == "light" else strong
    recipe = make_recipe({"augment": config, "model": {"num_classes": CLASSES}}, "benchmark")
    preprocess, fill = Preprocess(image_size=side, mean=MEAN, std=STD), torch.tensor(MEAN)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in itertools.count():
            draws = draw(recipe.augment, BATCHES * len(labels), 0, epoch)
            for changes in plan(draws, recipe.augment, epoch, (side, side), len(labels)):
                images = augment(pixels.float().div_(255), changes, recipe.augment, fill)
                images, targets = mix(images, labels, CLASSES, changes, recipe.augment, 0.0)
                yield preprocess.normalise(images), targets

    endless = batches()
    return lambda: next(endless)


def torchvision_transform(policy: str, side: int, first: list[nn.Module]) -> nn.Module:
    """A picture or uint8 (C, H, W) -> float32 (C, H, W). first: what makes a tensor of it."""
    from torchvision.transforms import v2

    tail = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if policy == "light":
        return v2.Compose([v2.RandomCrop(side, padding=side // 8), v2.RandomHorizontalFlip(), *first, *tail])
    crop = v2.RandomResizedCrop(side, scale=CROP)
    operations = [v2.RandomApply([v2.RandAugment(1, 3 * MAGNITUDE)], p=0.5) for _ in range(2)]
    return v2.Compose([crop, v2.RandomHorizontalFlip(), *operations, *first, *tail, v2.RandomErasing(p=ERASE)])


def torchvision_mix(policy: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from torchvision.transforms import v2

    if policy == "light":
        return lambda images, labels: (images, labels)
    return v2.RandomChoice([v2.MixUp(alpha=0.8, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])


def torchvision_pictures(policy: str, pixels: Tensor, labels: Tensor) -> Augmented:
    """Image by image, as a dataset of pictures does: each is a PIL image until its geometry and colour are done."""
    from torchvision.transforms import v2

    transform, mix = torchvision_transform(policy, pixels.shape[-1], [v2.ToImage()]), torchvision_mix(policy)
    arrays = np.ascontiguousarray(pixels.permute(0, 2, 3, 1).numpy())
    return lambda: mix(torch.stack([transform(Image.fromarray(array)) for array in arrays]), labels)


def torchvision_tensors(policy: str, pixels: Tensor, labels: Tensor) -> Augmented:
    """Image by image, on uint8 tensors."""
    transform, mix = torchvision_transform(policy, pixels.shape[-1], []), torchvision_mix(policy)
    return lambda: mix(torch.stack([transform(image) for image in pixels]), labels)


def kornia(policy: str, pixels: Tensor, labels: Tensor) -> Augmented:
    """A whole batch of floats at once."""
    import kornia.augmentation as K

    size, normalise = pixels.shape[-2:], K.Normalize(torch.tensor(MEAN), torch.tensor(STD))
    if policy == "light":
        pipeline = nn.Sequential(K.RandomCrop(size, padding=size[0] // 8), K.RandomHorizontalFlip(), normalise)
        return lambda: (pipeline(pixels.float() / 255), labels)
    crop = K.RandomResizedCrop(size, scale=CROP)
    operations = K.ImageSequential(K.auto.RandAugment(n=2, m=3 * MAGNITUDE))  # each is done half the time
    erasing = K.RandomErasing(p=ERASE, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    pipeline = nn.Sequential(crop, K.RandomHorizontalFlip(), operations, normalise, erasing)
    mixup = K.RandomMixUpV2(data_keys=["input", "class"])
    cutmix = K.RandomCutMixV2(data_keys=["input", "class"], use_correct_lambda=True)

    def call() -> tuple[Tensor, Tensor]:
        mix = mixup if torch.rand(()) < 0.5 else cutmix
        return mix(pipeline(pixels.float() / 255), labels)

    return call


PEERS: dict[str, Callable[[str, Tensor, Tensor], Augmented]] = {
    OURS: ours,
    "torchvision, pictures": torchvision_pictures,
    "torchvision, tensors": torchvision_tensors,
    "kornia": kornia,
}


def make_peers(policy: str, pixels: Tensor, labels: Tensor) -> tuple[dict[str, Augmented], dict[str, str]]:
    """The peers that import and run, and why the others do not."""
    calls, missing = {}, {}
    for name, make in PEERS.items():
        try:
            call = make(policy, pixels, labels)
            images, _ = call()
        except Exception as error:  # a broken install raises anything
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0].split(" (/")[0]
            continue
        assert images.shape == pixels.shape and images.dtype == torch.float32, f"{name}: {images.shape}"
        calls[name] = call
    return calls, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="toy batches, few rounds, no file")
    options = parser.parse_args()
    rounds = 3 if options.quick else 9
    device = pick_device("cpu")  # keeps memory from step to step, as training does; so peers do, too
    torch.set_num_threads(1)
    torch.manual_seed(0)
    declare_torchvision_operators()

    rows, missing = [], {}
    for side, batch in QUICK if options.quick else SHAPES:
        smooth = torch.rand(batch, 3, side // 4, side // 4)  # blots, as photographs have, and some noise
        smooth = nn.functional.interpolate(smooth, scale_factor=4, mode="bilinear") * 215 + torch.rand(side, side) * 40
        pixels, labels = smooth.byte(), torch.arange(batch) % CLASSES
        for policy in POLICIES:
            peers, absent = make_peers(policy, pixels, labels)
            missing |= absent
            timings = interleaved(peers, device, rounds, BATCHES)
            for name, seconds in timings.items():
                row = {"side": side, "batch": batch, "policy": policy, "name": name}
                row["version"] = version(name.partition(",")[0])
                row["images_per_second"] = batch / seconds["median"]
                row["quartiles"] = [batch / seconds["high"], batch / seconds["low"]]
                row["ours_is_faster_by"] = seconds["median"] / timings[OURS]["median"]
                rows.append(row)

    show(rows, missing)
    if not options.quick:
        results = {"machine": machine(device), "rounds": rounds, "calls": BATCHES, "differences": DIFFERENCES}
        save(RESULTS / "augment.json", results | {"missing": missing, "rows": rows})


def show(rows: list[dict], missing: dict[str, str]) -> None:
    """Print the table and, below it, what the peers leave out and who is missing."""
    console = Console()
    table = Table(title="images a second on one core, augmented and normalised")
    for header in ("side", "policy", "by"):
        table.add_column(header, no_wrap=True)
    for header in ("images/s", "ours is faster by"):
        table.add_column(header, justify="right")
    for row in rows:
        figures = f"{row['images_per_second']:,.0f}", f"{row['ours_is_faster_by']:.1f}"
        table.add_row(f"{row['side']} px", row["policy"], row["name"], *figures)
    console.print(table)
    for name, difference in DIFFERENCES.items():
        console.print(f"{name} {difference}", markup=False)
    for name, reason in missing.items():
        console.print(f"{name} is left out: {reason}", markup=False)


if __name__ == "__main__":
    main()
