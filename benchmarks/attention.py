"""Attention as two matrix products against the fused kernel: the table behind `products_are_faster`.

python benchmarks/attention.py            # two minutes on two cores; writes results/attention-avx2.json or the like
python benchmarks/attention.py --quick    # seconds, on small shapes; writes nothing
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import RESULTS, interleaved, machine, save, units
from torch import Tensor

from vitreous.device import pick_device, pick_precision
from vitreous.model.attention import attention_weights

SHAPES = [(256, 2, 17, 32), (128, 2, 49, 32), (128, 8, 65, 32), (32, 6, 197, 64), (64, 4, 256, 64), (2, 12, 577, 64)]
QUICK = [(8, 2, 49, 32), (2, 2, 197, 64)]
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
FORMS = {
    "fused": F.scaled_dot_product_attention,
    "products": lambda q, k, v: attention_weights(q, k) @ v.contiguous(),
}


def variants(
    shape: tuple[int, int, int, int], device: torch.device, precisions: list[str]
) -> dict[tuple, Callable[[], object]]:
    """(pass, dtype, form) -> a call, on queries, keys and values that lie in memory as in a model."""
    B, h, N, d = shape
    calls = {}
    for dtype_name in precisions:
        dtype = DTYPES[dtype_name]
        qkv = torch.randn(B, N, 3, h, d, device=device, dtype=dtype, requires_grad=True)
        gradient = torch.randn(B, h, N, d, device=device, dtype=dtype)
        for form_name, form in FORMS.items():

            def forward(form: Callable[..., Tensor] = form, qkv: Tensor = qkv) -> Tensor:
                return form(*qkv.permute(2, 0, 3, 1, 4))

            def both(forward: Callable[[], Tensor] = forward, gradient: Tensor = gradient) -> None:
                forward().backward(gradient)

            calls["forward", dtype_name, form_name] = torch.no_grad()(forward)
            calls["forward and backward", dtype_name, form_name] = both
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds, no file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    rounds, calls = (3, 1) if options.quick else (15, 3)
    precisions = list(dict.fromkeys(("float32", pick_precision("auto", device))))  # bf16 only where it is not emulated

    rows = []
    for shape in QUICK if options.quick else SHAPES:
        timings = interleaved(variants(shape, device, precisions), device, rounds, calls)
        rows += [
            {"shape": shape, "pass": done, "dtype": dtype, "form": form, "seconds": seconds}
            for (done, dtype, form), seconds in timings.items()
        ]

    milliseconds = {
        (row["shape"], row["pass"], row["dtype"], row["form"]): 1000 * row["seconds"]["median"] for row in rows
    }
    for done in ("forward", "forward and backward"):
        print(f"\n{done}, milliseconds (medians of {rounds} rounds)")
        print(f"{'B, h, N, d':20}" + "".join(f"{f'{dtype}: fused, products':>30}" for dtype in precisions))
        for shape in dict.fromkeys(row["shape"] for row in rows):
            cells = [[milliseconds[shape, done, dtype, form] for form in FORMS] for dtype in precisions]
            print(f"{', '.join(map(str, shape)):20}" + "".join(f"{a:20.1f}{b:10.1f}" for a, b in cells))
    if not options.quick:
        save(RESULTS / f"attention-{units(device)}.json", {"machine": machine(device), "rounds": rounds, "rows": rows})


if __name__ == "__main__":
    main()
