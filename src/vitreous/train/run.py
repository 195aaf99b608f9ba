"""From a recipe and its data to a finished run folder."""

import copy
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from torch import Tensor

from vitreous.data.folders import check_outside
from vitreous.data.images import ImageSet
from vitreous.data.stores import BrokenImage
from vitreous.files import path_of, read_history, read_json, replace_file, write_json
from vitreous.messages import lacks_memory
from vitreous.metrics import NAMES, figure_text
from vitreous.model import ViT
from vitreous.recipe import Recipe, flat
from vitreous.train import outcome
from vitreous.train.choose import fit_to_data, with_data
from vitreous.train.engine import Engine, is_main, undisturbed
from vitreous.train.folder import RUNS, alone, check_same_classes, claimed, environment
from vitreous.train.job import Job
from vitreous.train.preview import describe, estimate
from vitreous.train.progress import say, show_log
from vitreous.train.start import check_model, check_recipe, check_start, check_suits, check_unseen, load_start
from vitreous.train.state import State
from vitreous.train.teacher import load_teacher
from vitreous.weights import Bundle
from vitreous.weights.bundle import find_record


@contextmanager
def run_folder(engine: Engine, out: Path | None, name: str, resume: bool, dry_run: bool = False) -> Iterator[Path]:
    """Claim and lock a run folder while inside. Raises ValueError for one that cannot be used."""
    with ExitStack() as stack:
        yield engine.from_main(lambda: stack.enter_context(alone(claimed(out, name, resume, dry_run))))


@dataclass(frozen=True)
class Run:
    """A run folder. `results` is None when the run was interrupted or only tried (`dry_run`).

    Wherever the path of a run is asked for, the run itself will do.
    """

    folder: Path
    results: dict[str, Any] | None = None
    stopped: bool = False
    """Whether it was asked to stop, if only in its last epoch."""

    @staticmethod
    def load(folder: os.PathLike[str] | str) -> "Run":
        """A run of before, from its folder or a shipped model's name. Raises ValueError where there is none."""
        if (found := find_record(folder)) is None:
            raise ValueError(f"{folder} is no run: it has no recipe.yaml")
        file = found / "results.json"
        return Run(found, read_json(file) if file.exists() else None)

    @property
    def history(self) -> list[dict[str, float]]:
        """The rows of `metrics.csv`, one an epoch: rates as shares of 1, times in seconds."""
        return read_history(self.folder)

    @property
    def bundle(self) -> Bundle:
        """The trained model, read from the folder."""
        return Bundle.load(self.folder)

    def _repr_html_(self) -> str:
        """The figures and plots, by which a notebook shows a run."""
        from vitreous.page import png
        from vitreous.report.layout import facts

        results, shown = self.results or {}, {"run folder": str(self.folder)}
        for split, label in {"val": "validation", "test": "test", "pooled": "held-out"}.items():
            for key, value in (results.get(split) or {}).items():
                if key in NAMES and value is not None:
                    shown[f"{label} {NAMES[key]}"] = figure_text(key, value)
        names = ("plots/learning_curves", "plots/confusion_val", "plots/confusion_test", "confusion")
        files = [self.folder / f"{name}.png" for name in names]
        plots = [Image.open(file) for file in files if file.is_file()]
        return facts(shown) + "".join(f'<img src="{png(plot)}" alt="" width="{plot.width // 2}">' for plot in plots)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        results = self.results or {}
        top1 = {name: figures["top1"] for name in ("val", "test", "pooled") if (figures := results.get(name))}
        return f"Run({str(self.folder)!r}{''.join(f', {name} top-1 {value:.2%}' for name, value in top1.items())})"


@undisturbed()
def fit(
    recipe: Recipe,
    data: ImageSet | Path | str | None = None,
    *,
    model: ViT | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    resume: bool = False,
    finish: bool = False,
    dry_run: bool = False,
    pictures: bool = True,
    on_step: Callable[[State, Tensor], None] | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    console: Console | None = None,
) -> Run:
    """Train a model by a recipe; everything is written to one run folder (listed in `docs/design.md`).

    data: an image set, or what `load_data` takes; by default that of `recipe.data.source`. model: a ViT to train, in
    place, from its current weights, float32; by default that of `recipe.start.weights`, or a new one built from
    `recipe.model`. It brings weights alone: images are normalised by their own mean and deviation, unless the weights
    come as `recipe.start.weights`. Afterwards it has those of the last step; those that the run keeps are in `bundle`.
    out: the run folder, by default the next free `runs/<name>`, or `runs/<name>-dry-run` for a dry run. device: auto,
    cpu, cuda, cuda:1 or mps. dry_run: check everything, draw the first batch and say how long the training will take.
    pictures: `plots/` and `report.html`. on_step gets the state, which goes on changing, and the loss of this process's
    share of the batch, still on the device; on_epoch gets the row of `metrics.csv`. With several processes, each calls
    both; a probe has no steps and one row, of the main process. console: where progress is printed;
    `rich.console.Console(quiet=True)` prints nothing.

    Raises ValueError for a folder that holds a run, unless `resume` continues that run, or `finish` ends and evaluates
    it where it stopped; and for a model that its config does not describe. Raises TypeError for what is no recipe,
    data or model, FloatingPointError where the loss or the weights are no longer finite, and ImportError for a
    tracker that is not installed.
    """
    console = console or Console(quiet=not is_main())
    out = None if out is None else path_of(out)
    check_recipe(recipe)
    if model is not None:
        check_model(model, recipe)
    if dry_run:
        model = copy.deepcopy(model)  # the caller's model stays unchanged
    check_start(recipe, has_weights=model is not None or recipe.start.weights is not None)
    recipe, data = with_data(recipe, data)
    engine = Engine(device, track=recipe.track)
    seen = check_unseen(recipe, data)
    data = data.divided(recipe.data)
    if data.test is not None and not data.skip_broken and (name := data.test.images.missing()):
        raise BrokenImage(f"{name}, a test image, is not there: put it there, or leave it out by data.skip_broken=true")
    start = None
    if model is not None:
        check_suits(model, data)
        recipe = recipe.model_copy(update={"model": model.config})
    elif recipe.start.weights is not None:
        with engine.first_on_machine():
            start = load_start(recipe, data.class_names)
        recipe, model = start.recipe, start.model
    resume = resume or finish
    if resume and out is not None:
        check_same_classes(out, data.class_names)
    recipe = fit_to_data(recipe, data)
    teacher = None
    if recipe.distill.teacher is not None and not finish:
        with engine.first_on_machine():
            teacher = load_teacher(recipe, data.class_names)
    check_outside(out or RUNS, data)
    told = () if resume or dry_run else data.warnings
    with run_folder(engine, out, data.name, resume, dry_run) as folder, show_log(folder, console, told):
        if resume and not dry_run and engine.from_main((folder / "fold-1").is_dir):
            raise ValueError(f"{folder} is a cross-validation: go on with it by --folds, or name one of its folds")
        job = Job(recipe, data, model, folder, engine, start, teacher, console, pictures)
        engine.from_main(partial(describe, job, seen, new=not (resume or dry_run)))
        if dry_run:
            estimate(job)
            return Run(folder)
        if resumed := resume and engine.from_main(job.checkpoint.exists):
            job.restore()
        if finish and not job.state.epoch:
            raise ValueError(f"no complete epoch of the run in {folder} is saved: go on with it by --resume")
        if resume and not resumed and not recipe.start.probe:
            say(console, "nothing of this run has been saved yet, so that it begins anew")
        if engine.main:
            replace_file(folder / "recipe.yaml", lambda part: part.write_text(recipe.dump()))
            write_json(folder / "data.json", job.summary)
            if not resumed:  # a resumed run keeps the first record
                write_json(folder / "environment.json", environment(engine.device, job.precision, engine.processes))
        if not resumed and recipe.start.probe_first and start.facts["new_head"]:
            job.probe_first()
        with engine.trackers(folder, flat(recipe.model_dump(mode="json")), job.state.tracker_id, resumed):
            if finish:
                job.keep_present()
            elif recipe.start.probe:
                engine.from_main(job.probe)
                if on_epoch is not None and engine.main:
                    on_epoch(dict(job.state.history[-1]))
            elif not job.train(on_step, on_epoch):
                where = f"epoch {job.state.epoch + 1}, after {job.state.step} of its {job.steps} steps"
                again, judged = (resumption(folder, recipe, device, how, job.given) for how in ("resume", "finish"))
                say(console, f"stopped in {where}; go on with: {again}")
                if job.state.epoch:  # else there is nothing to evaluate
                    say(console, f"or evaluate it as it is: {judged}")
                return Run(folder, stopped=True)
            try:
                results = engine.from_main(partial(outcome.conclude, job))
            except (ValueError, RuntimeError, MemoryError, OSError) as error:
                if isinstance(error, BrokenImage):
                    said, how = str(error), ""
                elif isinstance(error, OSError):  # such as a full disk
                    said, how = f"{error}: put that right", ""
                elif lacks_memory(error) or lacks_memory(error.__cause__):
                    said, how = "not enough memory to judge the model", ", with data.memory_budget=0.1 or on the CPU"
                else:
                    raise
                again = resumption(folder, recipe, device, "finish" if finish else "resume", job.given)
                raise ValueError(f"{said}; training is done and kept: then end the run by {again}{how}") from error
            after = job.state.epoch + 1  # W&B takes no earlier step, as in a resumed run
            engine.log(figures_of(results), step=after)
            return Run(folder, results, job.stopped)


def resumption(
    folder: Path, recipe: Recipe, device: str, how: str = "resume", given: bool = False, call: str = "vt.fit"
) -> str:
    """The command that goes on with a run, or the call if its data or, as `given` says, its model is the caller's."""
    if given or recipe.data.source is None:
        more = "model=model, " if given else ""
        own = f"vt.read_recipe({str(folder / 'recipe.yaml')!r})"
        place = "" if device == "auto" else f"device={device!r}, "
        return f"{call}({own}, data, {more}out={str(folder)!r}, {place}{how}=True)"
    more = "" if device == "auto" else f" --device {device}"
    return f"vitreous train --{how} --out {shlex.quote(str(folder))}{more}"


def figures_of(results: dict[str, Any]) -> dict[str, float]:
    """The figures of the final evaluation, for trackers: `final_test_top1` and the like."""
    return {
        f"final_{split}_{name}": value
        for split in ("val", "test")
        for name, value in (results[split] or {}).items()
        if value is not None
    }
