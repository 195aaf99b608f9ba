"""Cross-validation: one run per fold of the training images, and their pooled results."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from vitreous.data.check import altered, differs, digest_of
from vitreous.data.folders import check_outside
from vitreous.data.images import ImageSet
from vitreous.data.loaders import cache_folder, decode
from vitreous.evaluation import answer_head, answer_lines, judge, pooled_figures, write_classes
from vitreous.files import path_of, read_json, replace_file, write_csv, write_json
from vitreous.metrics import WATCHED
from vitreous.recipe import Recipe, read_recipe
from vitreous.train.choose import fit_to_data, with_data
from vitreous.train.engine import Engine, is_main, undisturbed
from vitreous.train.folder import RUNS, check_same_classes, check_same_recipe, optional
from vitreous.train.progress import say, show_log
from vitreous.train.run import Run, fit, resumption, run_folder
from vitreous.train.start import check_recipe, check_start, check_unseen, load_start
from vitreous.train.state import State
from vitreous.weights import Bundle
from vitreous.weights.load import weights_digest


@undisturbed()
def fit_folds(
    recipe: Recipe,
    data: ImageSet | Path | str | None = None,
    *,
    out: Path | str | None = None,
    device: str = "auto",
    resume: bool = False,
    dry_run: bool = False,
    pictures: bool = True,
    on_step: Callable[[State, Tensor], None] | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    console: Console | None = None,
) -> Run:
    """Train `recipe.data.folds` times, each time with one stratified fold of the training images held out for testing.

    Each fold is a run of its own in <out>/fold-1, fold-2, ... Its validation images are the set's own, or are split off
    from the other folds, so that the held-out fold selects nothing. The set's own test images are not judged. Folds are
    drawn with `data.split_seed`, by default `seed`: other seeds repeat the cross-validation with other folds. In `out`,
    `results.json` holds the figures of all folds with their mean and standard deviation, `answers.csv` the answer for
    each image by the model that had not seen it, `classes.csv` and `confusion.png` count these, and `report.html` shows
    them. `resume` continues where the folds stopped; dry_run tries the first one. on_step and on_epoch are those of
    each run. Raises ValueError as `fit` does.
    """
    console = console or Console(quiet=not is_main())
    out = None if out is None else path_of(out)
    check_recipe(recipe)
    recipe, data = with_data(recipe, data)
    if recipe.data.folds is None:
        raise ValueError("data.folds is not given: say how many parts the images are cut into, such as data.folds=5")
    if resume and out is not None:
        check_same_classes(out / "fold-1", data.class_names)
    check_start(recipe, has_weights=recipe.start.weights is not None)
    check_unseen(recipe, data)
    if recipe.start.weights is not None:  # the model is that of the weights
        recipe = load_start(recipe, data.class_names).recipe
    folds = recipe.data.folds
    parts = [data.divided(recipe.with_options("data", fold=k).data) for k in range(1, folds + 1)]  # or none begins
    recipe = fit_to_data(recipe, parts[0])
    if dry_run:
        say(console, f"the first of {folds} folds:")
        first = recipe.with_options("data", fold=1)
        return fit(first, data, out=out, device=device, resume=resume, dry_run=True, pictures=pictures, console=console)

    engine = Engine(device)
    check_outside(out or RUNS, data)
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder(engine, out, data.name, resume))
        if resume:
            before = read_recipe(folder / "recipe.yaml")
            if before.data.folds is None or before.data.fold is not None:
                raise ValueError(f"{folder} is a single run: go on with it without folds, or give another folder")
            if engine.from_main(partial(has_trained, folder)):
                check_same_recipe(recipe, before, folder)
        runs, stopped = [], False
        recipes = {folder / f"fold-{fold}": recipe.with_options("data", fold=fold) for fold in range(1, folds + 1)}
        done = engine.from_main(lambda: {own: finished(own, part, data) for own, part in recipes.items()})
        if engine.main:
            stack.enter_context(claim(folder, recipe))
        for fold, (own, part) in enumerate(recipes.items(), start=1):
            if done[own] is not None:
                runs.append(done[own])
                continue
            say(console, f"fold {fold} of {folds}:")
            begun = engine.from_main((own / "recipe.yaml").exists)
            calls = {"on_step": on_step, "on_epoch": on_epoch}
            run = fit(part, data, out=own, device=device, resume=begun, pictures=pictures, console=console, **calls)
            stopped = run.stopped
            if run.results is None or (stopped and fold < folds):
                again = resumption(folder, recipe, device, call="fit_folds")
                say(console, f"go on with this and the other folds with: {again}")
                return Run(folder, stopped=True)
            runs.append(run.results)
        with show_log(folder, console):
            results = engine.from_main(lambda: conclude(folder, recipe, data, engine.device, runs, pictures))
        return Run(folder, results, stopped)


def has_trained(folder: Path) -> bool:
    """Whether a fold has saved anything, so that the recipe of the cross-validation stays."""
    return any(next(folder.glob(f"fold-*/{name}"), None) for name in ("results.json", "checkpoints/last.pt"))


@contextmanager
def claim(folder: Path, recipe: Recipe) -> Iterator[None]:
    """Make the folder a cross-validation's by its recipe, which is removed again if no fold begins."""
    replace_file(folder / "recipe.yaml", lambda part: part.write_text(recipe.dump()))
    try:
        yield
    finally:
        if not any(folder.glob("fold-*")):  # that of a fold in which no run began is removed already
            (folder / "recipe.yaml").unlink(missing_ok=True)
            with suppress(OSError):  # something else lies there
                folder.rmdir()


def finished(own: Path, part: Recipe, data: ImageSet) -> dict[str, Any] | None:
    """The results of a fold that is finished, else None. Raises ValueError if it had other images or weights."""
    if not (own / "results.json").exists():
        return None
    divided, record = data.divided(part.data), read_json(own / "data.json")
    changed = differs(divided, record)
    if not changed and "test" in record["hash"]:  # of other images some were learnt from
        preprocess = Bundle.load(own / "model").preprocess
        test = decode(divided.test, preprocess, cache=cache_folder(), skip_broken=part.data.skip_broken)
        changed = altered(record, "test", digest_of(test.images, test.labels))
    if changed:
        raise ValueError(f"the data is not what {own} was trained on: resume with the same images")
    results, start, teacher = read_json(own / "results.json"), part.start, part.distill.teacher
    asked = {"start": ("start.weights", start.weights, start.revision), "teacher": ("distill.teacher", teacher, None)}
    for name, (setting, place, revision) in asked.items():
        had = (results.get(name) or {}).get("sha256")
        if had != (place and weights_digest(place, revision)):
            was = "another" if had else "none"
            raise ValueError(f"{setting} is {place or 'null'}, and {own} had {was}: set it as it was")
    return results


def conclude(
    folder: Path, recipe: Recipe, data: ImageSet, device: torch.device, runs: list[dict[str, Any]], pictures: bool
) -> dict[str, Any]:
    """Write the pooled results of all folds, and return the content of `results.json`.

    Each fold's model is evaluated once more on its held-out fold. pictures: `confusion.png`, `report.html`.
    """
    parts = []
    for fold, run in enumerate(runs, start=1):
        options = recipe.with_options("data", fold=fold).data
        parts.append(
            judge(
                Bundle.load(folder / f"fold-{fold}" / "model"),
                data.divided(options).test,
                device=device,
                precision=run["precision"],
                name=f"fold-{fold} test",
                options=options,
            )
        )
    lines = ((k, *line) for k, part in enumerate(parts, start=1) for line in answer_lines(replace(part, name="test")))
    write_csv(folder / "answers.csv", ("fold", *answer_head(data.class_names)), lines)
    write_classes({"test": parts}, data.class_names, folder / "classes.csv")
    results = summarise(recipe, runs) | {"pooled": pooled_figures(parts)}
    if pictures:
        with optional(folder / "confusion.png") as file:
            from vitreous.plots import confusion_matrix

            confusion_matrix(sum(part.confusion for part in parts), data.class_names, file)
        with optional(folder / "report.html"):
            from vitreous.report import folds_report

            folds_report(folder, parts, results, runs)
    write_json(folder / "results.json", results)  # the last file: it says that the cross-validation is finished
    return results


def summarise(recipe: Recipe, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """For each figure on the held-out folds: its values, their mean and their standard deviation (n - 1)."""
    results: dict[str, Any] = {
        "folds": len(runs),
        "n": len(runs),
        "seed": recipe.seed,
        "split_seed": recipe.data.split_seed,
        "params": runs[0]["params"],
        "epochs": [run["epochs"] for run in runs],
        "precision": runs[0]["precision"],
        "train_seconds": [run["train_seconds"] for run in runs],
        "count": [run["test"]["count"] for run in runs],
        "cautions": [f"Fold {k}: {run['caution']}" for k, run in enumerate(runs, start=1) if run.get("caution")],
    }
    for key in (*WATCHED, "auroc"):
        values = [run["test"][key] for run in runs]
        if None not in values:
            results |= {key: values, f"{key}_mean": statistics.mean(values), f"{key}_sd": statistics.stdev(values)}
    return results
