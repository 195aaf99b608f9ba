"""What is shared with a model outside its run: the run's record, and a card generated from that record alone."""

import re
import shlex
from pathlib import Path
from typing import Any

import torch

from vitreous.data.sources import HUB, NAMED
from vitreous.files import read_json, replace_file, write_json
from vitreous.metrics import NAMES, figure_text, top1_interval
from vitreous.recipe import Recipe, effective, read_recipe
from vitreous.weights.bundle import WEIGHTS, Bundle, is_shipped, read_config

CARD = "README.md"
ELSEWHERE = "path/to/"  # stands for the folder of weights that are not public
LIBRARY = "vitreous"  # in a card on the Hub, by which `push` knows it again
# the rest is specific to one machine
ENVIRONMENT = ("python", "packages", "processor", "threads", "device", "precision", "processes")

HUB_HEADER = f"""---
library_name: {LIBRARY}
pipeline_tag: image-classification
tags: [vision-transformer]
---

"""

# What the datasets are, and the limits of a model trained on them
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


def write_shared(run: Path, folder: Path, results: dict[str, Any], *, repo: str | None = None) -> None:
    """Write what is shared of a finished run: its bundle, record and card, without anything about the local machine.

    results: the content of results.json; if it has float16 figures, the weights are stored in float16. repo: owner/name
    on the Hub, if it goes there. The images' local path, the command and the caution, which names images, are left out.
    """
    results = {key: value for key, value in results.items() if key != "caution"}
    Bundle.of(run).save(folder, torch.float16 if "float16" in results else None)
    recipe = read_recipe(run / "recipe.yaml")
    data, environment = read_json(run / "data.json"), read_json(run / "environment.json")
    if not _known_elsewhere(recipe.data.source or ""):
        recipe = recipe.with_options("data", source=None)
    if not _known_elsewhere(data["source"]):
        data["source"] = data["name"]
    for section, key, facts in (("start", "weights", "start"), ("distill", "teacher", "teacher")):
        if place := getattr(getattr(recipe, section), key):
            if not place.startswith("hf:"):  # others may have a shipped model, but no folder of this machine
                place = f"{'' if is_shipped(place) else ELSEWHERE}{Path(place).name}"
            recipe = recipe.with_options(section, **{key: place})
            results = results | {facts: results[facts] | {"weights": place}}
    replace_file(folder / "recipe.yaml", lambda part: part.write_text(recipe.dump()))
    write_json(folder / "data.json", data)
    write_json(folder / "environment.json", {key: environment[key] for key in ENVIRONMENT})
    write_json(folder / "results.json", results)
    replace_file(folder / CARD, lambda part: part.write_text(card(folder, repo), encoding="utf-8"))


def _known_elsewhere(source: str) -> bool:
    """Whether DATA means the same on other machines, as a path or a name under $VITREOUS_DATA does not."""
    return source.partition(":")[0] in (*NAMED, "hf")


def finished(run: Path) -> dict[str, Any]:
    """The results of a run. Raises ValueError for one that has none yet."""
    if not (run / "results.json").is_file():
        raise ValueError(f"{run} is not a finished run, as it has no results.json: train it to the end")
    return read_json(run / "results.json")


def card(folder: Path, repo: str | None = None) -> str:
    """The model card of a shared folder, from the files in it. repo: owner/name on the Hub, if it is there."""
    name, recipe = repo.partition("/")[2] if repo else folder.name, read_recipe(folder / "recipe.yaml")
    data, environment, results = (read_json(folder / f"{file}.json") for file in ("data", "environment", "results"))
    said = read_config(folder)
    model, names = said.model, said.class_names
    source = recipe.data.source
    about, limit = SETS.get(source or "", (f"{source or data['name'] + ', a set of its own'}.", None))
    probabilities = "No temperature is applied to its probabilities."
    if said.temperature != 1:
        probabilities = (
            f"Its probabilities are calibrated on the validation images alone (temperature {said.temperature:.3f})."
        )
    limits = [limit] if limit else []
    limits += [
        f"It knows these {len(names)} classes only, and gives one of them to any picture, whatever it shows.",
        f"On images unlike those it was trained on it will do worse. {probabilities}",
    ]
    alone = "" if results.get("start") or results.get("teacher") else " and nothing else"
    counts, versions, (C, H, W) = data["counts"], environment["packages"], said.preprocess.shape
    digests = "; ".join(f"{split} `{digest}`" for split, digest in data["hash"].items())
    digests = digests and f" SHA-256 of labels and pixels:\n{digests}."
    patch = " x ".join(map(str, model.patch_size))
    parts = {
        " from overlapping convolutions": model.patch_embedding == "conv_stem",
        ", a 3 x 3 convolution in each MLP": model.mlp_conv,
        ", pooled by attention": model.pool == "attention",
    }
    beyond = "".join(part for part, there in parts.items() if there)
    megabytes = (folder / WEIGHTS).stat().st_size / 1e6
    home = name if repo else f"models/{name}"
    fetch = f"hf download {repo} --local-dir {name}\n" if repo else ""
    own = f"DATA:{data['label']}" if data.get("label") else "DATA"
    judge = f"vitreous evaluate {name} {shlex.quote(source or own)}"
    judge += "  # fetches the images once" if (source or "").partition(":")[0] in HUB else ""
    slower = " (in its time limit a slower machine makes fewer passes)" if recipe.time_limit else ""
    again = f"vitreous train {'' if source else f'{shlex.quote(own)} '}--recipe {home}/recipe.yaml"
    if (weights := recipe.start.weights) and weights.startswith(ELSEWHERE):
        again += f" --from {weights}" + (f" --arch {arch}" if (arch := recipe.start.arch) else "")
    if (teacher := recipe.distill.teacher) and teacher.startswith(ELSEWHERE):
        again += f" distill.teacher={teacher}"
    return f"""{HUB_HEADER if repo else ""}# {name}

A Vision Transformer that tells the {len(names)} classes of {data["name"]} apart, {origin(recipe, results)} on \
{counts["train"]:,} of its images{alone}.
{_headline(results)}

- {results["params"]:,} parameters, stored in {"float16" if "float16" in results else "float32"}: {megabytes:.1f} MB
- {model.depth} blocks of width {model.dim}, {model.heads} heads, patches of {patch} pixels{beyond} (`config.json`)
- reads {C} x {H} x {W} pixels (channels, rows, columns); pictures of another size are brought to it
- answers with: {", ".join(map(_as_markdown, names))}

## Use it

{"With Vitreous installed:" if repo else "In a checkout of Vitreous (`predict` needs no network):"}

```sh
{fetch}vitreous predict {name} photo.jpg
{judge}
```

```python
import vitreous as vt

for answer in vt.predict("{name}", "photo.jpg"):
    print(answer.classes, answer.probabilities)
```

## Measured

{measured(results, recipe.best_by)}

## Trained

`recipe.yaml` beside this card has every setting; this trains such a model again{slower}:

```sh
{again}
```

{_settings(recipe)}

{results["train_seconds"]:,.0f} s on {hardware(environment)}, in {results["precision"]}:
{results["images_per_second"]:,.0f} images/s over all training steps.
Python {environment["python"]}, torch {versions["torch"]}, vitreous {versions["vitreous"]}.

## Data

{about}

Images: {", ".join(f"{count:,} {split}" for split, count in counts.items())}.{digests}

## Limits

{chr(10).join(f"- {limit}" for limit in limits)}
"""


def _as_markdown(name: str) -> str:
    """A name as it is, in one line, whatever of it Markdown would take for its own."""
    return re.sub(r"[\\`*~<>&$\[\]]|\b_|_\b", r"\\\g<0>", " ".join(name.split()))


def untested(results: dict[str, Any]) -> str:
    """What figures without test images are worth. A few validation images choose nothing of a probe."""
    chose = "probe" not in results or results["probe"]["chosen_by"].endswith("validation images")
    worth = "helped to choose, and may be too good" if chose else "did not choose the head"
    return f"There were no test images: the figures are of the validation images, which {worth}."


def _headline(results: dict[str, Any]) -> str:
    """The headline figure, for the weights in the folder."""
    if results["test"] is not None:
        return f"Test top-1: **{results.get('float16', results['test'])['top1']:.2%}**."
    if results["val"] is not None:
        return f"Validation top-1: **{results['val']['top1']:.2%}**. {untested(results)}"
    return "There were neither test nor validation images: how good it is has not been measured."


def origin(recipe: Recipe, results: dict[str, Any]) -> str:
    """What training started from, and who taught, in words."""
    taught = f" and taught by {Path(recipe.distill.teacher).name}" if recipe.distill.teacher else ""
    if not recipe.start.weights:
        return f"trained from {'a model that was given' if results.get('start') else 'scratch'}{taught}"
    own = "with a new head on the frozen features of" if recipe.start.probe else "fine-tuned from"
    return f"{own} {Path(recipe.start.weights).name}{taught}"


def chosen(results: dict[str, Any], best_by: str) -> str:
    """How the weights of a run were chosen. best_by: as in its recipe."""
    if "probe" in results:
        return f"The strength of the head's regularisation was chosen by {results['probe']['chosen_by']}."
    if results["val"] is None:
        return f"There were no validation images: the weights are those after {results['passes']:.1f} passes."
    by = f"{NAMES[best_by]} {figure_text(best_by, results['val'][best_by])}"
    return (
        f"The weights are those of epoch {results['best_epoch']} of {results['epochs']}, chosen by "
        f"{results['val']['count']:,} validation images ({by})."
    )


def measured(results: dict[str, Any], best_by: str) -> str:
    """What was measured on which images, with its uncertainty, and how the weights were chosen."""
    seed = f"One run, seed {results['seed']}. {chosen(results, best_by)}"
    if results["test"] is None:
        return f"There were no test images. {seed}"
    low, high = top1_interval(results.get("float16", results["test"]))
    unit = "the groups" if "groups" in results["test"] else "the number"
    return f"""On the {results["test"]["count"]:,} test images, opened after the last step:

{_figures(results)}

{seed}
95% interval of top-1, by {unit} of test images: {low:.1%} to {high:.1%}."""


def _figures(results: dict[str, Any]) -> str:
    """Test figures of the run's weights and, if other weights are shared, of those, as a table."""
    precision, exact = results["precision"], results.get("float32")
    columns = {f"as trained, in {precision}": results["test"]}
    if exact is not None and precision != "float32":
        columns["the same in float32"] = exact
    if "float16" in results:
        columns[f"stored in float16, as here, in {precision if exact is None else 'float32'}"] = results["float16"]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for key in ("top1", "top5", "loss", "f1_macro", "precision_macro", "recall_macro", "ece"):
        texts = [figure_text(key, column.get(key)) for column in columns.values()]
        if "" not in texts:
            lines.append(f"| {NAMES[key]} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _settings(recipe: Recipe) -> str:
    """The sections of a recipe that say how the weights were found, as a list."""
    within = f", or what {recipe.time_limit:,.0f} s suffice for" if recipe.time_limit else ""
    lines, fields = [f"- epochs: {recipe.epochs}{within}"], effective(recipe)
    for name in ("optim", "augment", *(["distill"] if recipe.distill.teacher else [])):
        told = [f"{key} {value}" for key, value in fields.get(name, {}).items()]
        lines.append(f"- {name}: {', '.join(told) or 'as by default'}")
    return "\n".join(lines)


def hardware(environment: dict[str, Any]) -> str:
    """The hardware a run was trained on: `environment.json` in words."""
    processes = environment["processes"]
    if environment["device"] != "cpu":
        return f"{'one' if processes == 1 else processes} {environment['device']}"
    threads = f"{environment['threads']} thread{'s' * (environment['threads'] > 1)}"
    return f"{environment['processor']}, {f'{processes} processes of ' * (processes > 1)}{threads}"
