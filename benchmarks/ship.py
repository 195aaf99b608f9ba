"""Ship a finished run's model by a name: models/NAME/, with its weights in float16 and a card.

python benchmarks/ship.py runs/cifar10 cifar10

The float16 bundle is judged again on the test images, in the run's precision, and refused where its top-1 is another.
Beside the bundle lie the run's recipe.yaml, data.json, environment.json and results.json (with the new figures under
`float16`); the card, README.md, is made of these files and nothing else, and a test makes it again.
"""

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitreous.evaluation import evaluate, own_data
from vitreous.files import replace_file, write_json
from vitreous.recipe import Recipe, read_recipe
from vitreous.weights.bundle import SHIPPED, WEIGHTS, Bundle, read_config

TOLERANCE = 0.001  # of top-1, between the run's weights and the same in float16
LARGEST = 8_000_000  # bytes of weights that a checkout should carry
ENVIRONMENT = ("python", "packages", "processor", "threads", "device", "precision")  # the rest is of one machine
CARD = "README.md"

# What the sets are, and what a model of them cannot know
SETS = {
    "digits": (
        "Handwritten digits of 8 x 8 pixels from scikit-learn: E. Alpaydin, C. Kaynak, Optical Recognition of "
        "Handwritten Digits, UCI Machine Learning Repository, 1998 (CC BY 4.0).",
        "It reads one centred digit, light on dark, that fills the picture; others must be turned into that first.",
    ),
    "mnist": (
        "Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits (CC BY-SA 3.0).",
        "It reads one centred digit, light on dark, as MNIST has them; dark ink on paper must be inverted and cut out "
        "first.",
    ),
    "cifar10": (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 (no licence stated).",
        "It sees a photo as 32 x 32 pixels, cut to its centre: what is small in it is lost.",
    ),
    "cifar100": (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 (no licence stated); the 100 fine "
        "labels.",
        "It sees a photo as 32 x 32 pixels, cut to its centre: what is small in it is lost. Many of the classes look "
        "alike at that size; the five likeliest say more than the first.",
    ),
}


def ship(run: Path, name: str, *, models: Path = SHIPPED, device: str = "auto") -> Path:
    """Write models/<name>/ and return it. Raises ValueError, and writes nothing, for a run that cannot be shipped."""
    if not (run / "results.json").is_file():
        raise ValueError(f"{run} is no finished run: train it to the end")
    results, source = read(run / "results.json"), read_recipe(str(run / "recipe.yaml")).data.source
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
        half = evaluate(scratch, own_data(run), device=device, precision=results["precision"])
    before, after = results["test"]["top1"], half["top1"]
    if not abs(after - before) < TOLERANCE + 1e-9:
        raise ValueError(
            f"test top-1 is {before:.2%} in the run and {after:.2%} in float16, and may differ by {TOLERANCE:.2%}: "
            "judge it on the device that trained it, or ship another run"
        )

    folder = models / name
    bundle.save(folder, torch.float16)
    for file in ("recipe.yaml", "data.json"):
        replace_file(folder / file, lambda part, file=file: shutil.copyfile(run / file, part))
    environment = read(run / "environment.json")
    write_json(folder / "environment.json", {key: environment[key] for key in ENVIRONMENT})
    write_json(folder / "results.json", results | {"float16": half})
    replace_file(folder / CARD, lambda part: part.write_text(card(folder)))
    return folder


def card(folder: Path) -> str:
    """The model card of a shipped folder, from the files in it."""
    name, recipe = folder.name, read_recipe(str(folder / "recipe.yaml"))
    data, environment, results = (read(folder / f"{file}.json") for file in ("data", "environment", "results"))
    config, preprocess, class_names = read_config(folder)
    about, limit = SETS[recipe.data.source]
    counts, versions, (C, H, W) = data["counts"], environment["packages"], preprocess.shape
    patch = " x ".join(map(str, config.patch_size))
    megabytes = (folder / WEIGHTS).stat().st_size / 1e6
    if results["val"] is None:
        chosen = f"There were no validation images: the weights are those after the last of {results['epochs']} epochs."
    else:
        chosen = (
            f"The weights are those of epoch {results['best_epoch']} of {results['epochs']}, chosen by "
            f"{counts['val']:,} validation images (top-1 {results['val']['top1']:.2%})."
        )
    return f"""# {name}

A Vision Transformer that tells the {len(class_names)} classes of {data["name"]} apart, trained from scratch on \
{counts["train"]:,} of its images and nothing else.
Test top-1: **{results["float16"]["top1"]:.2%}**.

- {results["params"]:,} parameters, stored in float16: {megabytes:.1f} MB
- {config.depth} blocks of width {config.dim}, {config.heads} heads, patches of {patch} pixels (`config.json`)
- reads {C} x {H} x {W} pixels (channels, rows, columns); pictures of another size are brought to it
- answers with: {", ".join(class_names)}

## Use it

In a checkout of Vitreous, offline:

```sh
vitreous predict {name} photo.jpg
vitreous evaluate {name} {recipe.data.source}
```

```python
import vitreous as vt

for answer in vt.predict("{name}", "photo.jpg"):
    print(answer.classes, answer.probabilities)
```

## Measured

On the {results["test"]["count"]:,} test images, which chose nothing, computed in {results["precision"]}:

{figures(results)}

One run, seed {results["seed"]}. {chosen}
Another draw of as many test images would move top-1 by about {100 * standard_error(results["float16"]):.2f} points.

## Trained

`recipe.yaml` beside this card has every setting; this trains such a model again:

```sh
vitreous train --recipe models/{name}/recipe.yaml
```

{settings(recipe)}

{results["train_seconds"]:,.0f} s on {hardware(environment)}, in {results["precision"]}:
{results["images_per_second"]:,.0f} images/s over all training steps.
Python {environment["python"]}, torch {versions["torch"]}, vitreous {versions["vitreous"]}.

## Data

{about}

Images: {", ".join(f"{count:,} {split}" for split, count in counts.items())}. SHA-256 of labels and pixels:
{"; ".join(f"{split} `{digest}`" for split, digest in data["hash"].items())}.

## Limits

- {limit}
- It knows these {len(class_names)} classes only, and gives one of them to any picture, whatever it shows.
- Measured on images like those it was trained on; on others it will do worse. Its probabilities were not calibrated.
"""


def figures(results: dict[str, Any]) -> str:
    """Test figures of the run's weights and of the shipped ones, as a table."""
    rows = {"top-1": "top1", "top-5": "top5", "loss": "loss", "F1, macro": "f1_macro"}
    rows |= {"precision, macro": "precision_macro", "recall, macro": "recall_macro"}
    lines = ["| | as trained | in float16, as here |", "|---|---|---|"]
    for label, key in rows.items():
        values = (results["test"][key], results["float16"][key])
        if None not in values:
            as_text = "{:.4f}" if key == "loss" else "{:.2%}"
            lines.append(f"| {label} | {' | '.join(map(as_text.format, values))} |")
    return "\n".join(lines)


def settings(recipe: Recipe) -> str:
    """The sections of a recipe that say how the weights were found, as a list."""
    within = f", or what {recipe.time_limit:,.0f} s suffice for" if recipe.time_limit else ""
    lines = [f"- epochs: {recipe.epochs}{within}"]
    for name, section in (("optim", recipe.optim), ("augment", recipe.augment)):
        chosen = section.model_dump(mode="json", exclude_defaults=True)
        lines.append(f"- {name}: " + (", ".join(f"{key} {value}" for key, value in chosen.items()) or "as by default"))
    return "\n".join(lines)


def hardware(environment: dict[str, Any]) -> str:
    if environment["device"] != "cpu":
        return f"one {environment['device']}"
    return f"{environment['processor']}, {environment['threads']} threads"


def standard_error(test: dict[str, Any]) -> float:
    """Of a share measured on so many images."""
    return (test["top1"] * (1 - test["top1"]) / test["count"]) ** 0.5


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


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
    print(f"{folder}: test top-1 {read(folder / 'results.json')['float16']['top1']:.2%}; read its {CARD}")


if __name__ == "__main__":
    main()
