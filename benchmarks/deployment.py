"""A deployed model against the run it came from: top-1 on the digits, and images/s of a model of some size.

python benchmarks/deployment.py            # minutes on two cores; writes results/deployment.json
python benchmarks/deployment.py --quick    # a model that has hardly learnt and a small one; writes nothing
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure import RESULTS, interleaved, machine, save

from vitreous import ViT, ViTConfig, fit, load_data, read_recipe
from vitreous.export import export_run
from vitreous.export.graphs import write_int8, write_onnx
from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle

CPU = torch.device("cpu")
PLAIN = ["model.patch_embedding=conv", "model.stem_channels=[]", "model.pool=cls"]  # of recipe digits
SPEED = {"size": "B/16"}
QUICK = {"size": "Ti/16", "image_size": 64}
BATCHES = (1, 32)


def accuracy(quick: bool, folder: Path) -> list[dict[str, Any]]:
    """Top-1 on the 360 test images before and after int8."""
    rows = []
    for name, settings in {"recipe digits": [], "recipe digits without its stem, with a class token": PLAIN}.items():
        recipe = read_recipe("digits", [*settings, *["epochs=1"] * quick])
        run = fit(recipe, load_data("digits"), out=folder / name, device="cpu")
        # the figures are what is asked for here, so nothing is refused
        _, receipt = export_run(run.folder, "int8", tolerance=1.0)
        rows.append({"model": name, "images": receipt["inputs"]} | receipt["top1"])
    return rows


def speed(model: dict[str, Any], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Seconds a batch in torch, onnxruntime and onnxruntime with int8, in turn, on pixels of noise."""
    torch.manual_seed(0)
    config = ViTConfig(**model)
    bundle = Bundle(
        ViT(config).eval(), Preprocess(image_size=config.image_size, mean=(0.5,) * 3, std=(0.5,) * 3), ("a",) * 1000
    )
    calls = {"torch": lambda pixels: bundle.model(bundle.preprocess.normalise(pixels))}
    for name, write in {"onnx": write_onnx, "int8": write_int8}.items():
        (folder / name).mkdir()
        calls[name] = write(bundle, folder / name, False)
    rows = []
    for batch in BATCHES:
        pixels = torch.randint(256, (batch, *bundle.preprocess.shape), dtype=torch.uint8)
        variants = {name: lambda call=call, pixels=pixels: call(pixels) for name, call in calls.items()}
        with torch.inference_mode():
            seconds = interleaved(variants, CPU, rounds, 1)
        for name, taken in seconds.items():
            ratio = seconds["torch"]["median"] / taken["median"]
            rows.append({"form": name, "batch": batch, "seconds": taken, "faster_than_torch_by": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one epoch, a small model, few rounds, no file")
    options = parser.parse_args()
    model, rounds = (QUICK, 3) if options.quick else (SPEED, 9)
    with TemporaryDirectory() as scratch:
        top1 = accuracy(options.quick, Path(scratch))
        timings = speed(model, rounds, Path(scratch))

    print(f"\n{'digits, top-1':20}{'float32':>10}{'int8':>10}")
    for row in top1:
        print(f"{row['model']:20}{row['before']:>10.2%}{row['after']:>10.2%}   {row['images']}")
    print(f"\n{model['size']}, float32 weights of chance, images/s (medians of {rounds} rounds), faster than torch by")
    for row in timings:
        rate = row["batch"] / row["seconds"]["median"]
        print(f"batch {row['batch']:<4}{row['form']:>10}{rate:>12.1f}{row['faster_than_torch_by']:>8.2f}")
    if not options.quick:
        content = {"machine": machine(CPU), "rounds": rounds, "model": model, "top1": top1, "speed": timings}
        save(RESULTS / "deployment.json", content)


if __name__ == "__main__":
    main()
