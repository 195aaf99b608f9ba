"""Attention, linear maps, and the mean of a convolution, each in both forms.

The tables behind `products_are_faster`, `convolution_is_faster` and `ConvMean`.

python benchmarks/forms.py            # twenty minutes on two cores; writes results/attention-avx2.json or the
                                      # like, results/linear-avx2.json and results/pool-avx2.json
python benchmarks/forms.py --quick    # seconds, on small shapes; writes nothing
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from measure import RESULTS, interleaved, machine, save, units
from torch import Tensor

from vitreous.device import autocast, compiled, pick_device, pick_precision
from vitreous.model import ViT
from vitreous.model.attention import attention_weights
from vitreous.model.linear import as_convolution
from vitreous.model.patches import ConvMean, mean_first
from vitreous.recipe import read_recipe

POOLED = ("cifar10-cpu", "cifar10-amx", "small-images", "cifar10-94", "cifar10")  # recipes with such a stem
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


class Subject(NamedTuple):
    """What is computed in more than one form."""

    letters: str
    """What a shape's numbers are."""
    shapes: list[tuple[int, ...]]
    quick: list[tuple[int, ...]]
    forms: dict[str, Callable[..., Tensor]]
    inputs: Callable[[tuple[int, ...]], list[tuple[int, ...]]]
    """From a shape to those of what the forms take."""


def fused(qkv: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))


def products(qkv: Tensor) -> Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return attention_weights(q, k) @ v.contiguous()


def mean_last(images: Tensor, weight: Tensor) -> Tensor:
    return F.avg_pool2d(F.conv2d(images.permute(0, 3, 1, 2), weight, padding=1), 2)


SUBJECTS = {
    "attention": Subject(
        "B, h, N, d",
        [(256, 2, 17, 32), (128, 2, 49, 32), (128, 8, 65, 32), (32, 6, 197, 64), (64, 4, 256, 64), (2, 12, 577, 64)],
        [(8, 2, 49, 32), (2, 2, 197, 64)],
        {"fused": fused, "products": products},
        lambda shape: [(shape[0], shape[2], 3, shape[1], shape[3])],  # as queries, keys and values lie in a model
    ),
    "linear": Subject(
        "B, N, D_in, D_out",
        [
            (64, 49, 64, 128),
            (16, 65, 256, 768),
            (128, 64, 192, 384),
            (128, 64, 384, 192),
            (128, 65, 256, 768),
            (128, 65, 512, 256),
            (32, 197, 192, 768),
            (32, 197, 768, 192),
            (8, 197, 768, 3072),
            (8, 197, 3072, 768),
            (32, 197, 768, 3072),
            (32, 197, 3072, 768),
        ],
        [(8, 49, 64, 128), (8, 65, 128, 64)],
        {"linear": F.linear, "convolution": as_convolution},
        lambda shape: [shape[:3], (shape[3], shape[2]), shape[3:]],  # tokens, weight, bias
    ),
    "pool": Subject(
        "B, H, W, C, D",
        [
            (128, 32, 32, 32, 64),
            (128, 24, 24, 32, 64),
            (128, 16, 16, 64, 192),
            (128, 12, 12, 64, 192),
            (512, 32, 32, 64, 128),
        ],
        [(8, 8, 8, 4, 8)],
        {
            "mean last": mean_last,
            "mean first": lambda images, weight: mean_first(images.permute(0, 3, 1, 2), weight, (2, 2)),
        },
        lambda shape: [shape[:4], (shape[4], shape[3], 3, 3)],  # images with channels last, weight
    ),
}


def variants(
    subject: Subject, shape: tuple[int, ...], device: torch.device, precisions: list[str]
) -> Iterator[tuple[tuple, Callable[[], object]]]:
    """(pass, dtype, form) and a call."""
    for precision in precisions:
        like = {"device": device, "dtype": DTYPES[precision], "requires_grad": True}
        inputs = [torch.randn(size, **like) for size in subject.inputs(shape)]
        for name, form in subject.forms.items():
            call = functools.partial(form, *inputs)
            yield ("forward", precision, name), torch.no_grad()(call)
            yield ("forward and backward", precision, name), functools.partial(there_and_back, call, inputs)


def there_and_back(call: Callable[[], Tensor], inputs: list[Tensor]) -> None:
    output = call()
    torch.autograd.grad(output, inputs, output)


class MeanLast(ConvMean):
    """`ConvMean` as it is written down."""

    def forward(self, x: Tensor) -> Tensor:
        return mean_last(x.permute(0, 2, 3, 1), self.weight)


def step_of(recipe: str, kind: type[ConvMean], batch: int, device: torch.device) -> Callable[[], None]:
    """Forward and backward of a recipe's model on images of 32 x 32, with pooled convolutions of this kind; on a GPU
    as CUDA graphs, as eager steps would wait for the host."""
    model = ViT(read_recipe(recipe).resolve(image_size=(32, 32), channels=3, num_classes=10).model).to(device)
    for module in model.modules():
        if isinstance(module, ConvMean):
            module.__class__ = kind
    call = compiled(model, "reduce-overhead" if device.type == "cuda" else False, device, 0)
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.zeros(batch, dtype=torch.long, device=device)

    def step() -> None:
        model.zero_grad()
        with autocast(device, pick_precision("auto", device)):
            logits = call(images).float()
        F.cross_entropy(logits, labels).backward()

    return step


def compare_steps(batch: int, device: torch.device, rounds: int) -> list[dict]:
    """Time whole steps with the mean last and first; print how much faster they are. Returns rows for JSON."""
    rows = []
    for recipe in POOLED:
        kinds = {"mean last": MeanLast, "mean first": ConvMean}
        timings = interleaved(
            {name: step_of(recipe, kind, batch, device) for name, kind in kinds.items()}, device, rounds, 1
        )
        last, first = (timing["median"] for timing in timings.values())
        print(
            f"a step of {recipe}, {batch} images: {1000 * first:.1f} ms, {last / first:.2f} times as fast as mean last"
        )
        rows += [{"recipe": recipe, "batch": batch, "form": form, "seconds": each} for form, each in timings.items()]
    return rows


def compare(
    subject: Subject, shapes: list[tuple[int, ...]], device: torch.device, rounds: int, calls: int
) -> list[dict]:
    """Time all forms of these shapes; print them as tables, milliseconds. Returns rows for JSON."""
    precisions = list(dict.fromkeys(("float32", pick_precision("auto", device))))  # bf16 only where it is not emulated
    rows = []
    for shape in shapes:
        timings = interleaved(dict(variants(subject, shape, device, precisions)), device, rounds, calls)
        rows += [
            {"shape": shape, "pass": done, "dtype": dtype, "form": form, "seconds": seconds}
            for (done, dtype, form), seconds in timings.items()
        ]

    milliseconds = {
        (row["shape"], row["pass"], row["dtype"], row["form"]): 1000 * row["seconds"]["median"] for row in rows
    }
    for done in ("forward", "forward and backward"):
        print(f"\n{done}, milliseconds (medians of {rounds} rounds)")
        heading = f": {', '.join(subject.forms)}"
        print(f"{subject.letters:20}" + "".join(f"{dtype + heading:>30}" for dtype in precisions))
        for shape in dict.fromkeys(row["shape"] for row in rows):
            cells = [[milliseconds[shape, done, dtype, form] for form in subject.forms] for dtype in precisions]
            print(f"{', '.join(map(str, shape)):20}" + "".join(f"{a:20.3f}{b:10.3f}" for a, b in cells))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds, no file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=list(SUBJECTS), help="one of them")
    options = parser.parse_args()
    device = pick_device(options.device)
    rounds, calls = (3, 1) if options.quick else (15, 3)
    for name in [options.only] if options.only else SUBJECTS:
        subject = SUBJECTS[name]
        rows = compare(subject, subject.quick if options.quick else subject.shapes, device, rounds, calls)
        if name == "pool":
            batch = 8 if options.quick else 512 if device.type == "cuda" else 128
            rows += compare_steps(batch, device, max(rounds // 2, 2))
        if not options.quick:
            results = {"machine": machine(device), "rounds": rounds, "rows": rows}
            save(RESULTS / f"{name}-{units(device)}.json", results)


if __name__ == "__main__":
    main()
