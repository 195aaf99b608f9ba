"""Ship a finished run's model by a name: models/NAME/, with its weights in float16 and a card.

python benchmarks/ship.py runs/cifar10 cifar10

The float16 bundle is judged on the test images and refused where its top-1 is not that of the run's weights, both in
float32: in bf16, products alone have moved it by more than the tolerance (LOG.md).
Beside the bundle lie the run's recipe.yaml, data.json, environment.json and results.json (with the new figures under
`float32` and `float16`); the card, README.md, is made of these files and nothing else, and a test makes it again.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from vitreous.card import CARD, SETS, finished, write_shared
from vitreous.evaluation import evaluate, own_data
from vitreous.files import read_json
from vitreous.recipe import read_recipe
from vitreous.weights.bundle import SHIPPED, WEIGHTS, Bundle

TOLERANCE = 0.001  # of top-1, between the run's weights and the same in float16
LARGEST = 8_000_000  # bytes of weights that a checkout should carry


def ship(run: Path, name: str, *, models: Path = SHIPPED, device: str = "auto") -> Path:
    """Write models/<name>/ and return it. Raises ValueError, and writes nothing, for a run that cannot be shipped."""
    results, source = finished(run), read_recipe(str(run / "recipe.yaml")).data.source
    if results["test"] is None:
        raise ValueError(f"{run} has no test figures: train on data with test images")
    if source not in SETS:
        raise ValueError(f"{run} was trained on {source}: only models of {', '.join(SETS)} are shipped")
    bundle = Bundle.load(run / "model")
    with TemporaryDirectory() as scratch:
        bundle.save(scratch, torch.float16)
        size = Path(scratch, WEIGHTS).stat().st_size
        if size > LARGEST:
            raise ValueError(f"{run} has {size:,} bytes of float16 weights: at most {LARGEST:,} are shipped")
        data = own_data(run)
        whole, half = (evaluate(part, data, device=device, precision="float32") for part in (bundle, scratch))
    before, after = whole["top1"], half["top1"]
    if not abs(after - before) < TOLERANCE + 1e-9:
        raise ValueError(
            f"test top-1 is {before:.2%} with the run's weights and {after:.2%} in float16, and may differ by "
            f"{TOLERANCE:.2%}: ship another run"
        )

    folder = models / name
    write_shared(run, folder, results | {"float32": whole, "float16": half})
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--models", type=Path, default=SHIPPED, help="where to write NAME [default: models/]")
    options = parser.parse_args()
    try:
        folder = ship(options.run, options.name, models=options.models, device=options.device)
    except ValueError as error:
        parser.exit(2, f"ship.py: {error}\n")
    print(f"{folder}: test top-1 {read_json(folder / 'results.json')['float16']['top1']:.2%}; read its {CARD}")


if __name__ == "__main__":
    main()
