"""`vitreous train`."""

import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.options import Architecture, Device, Revision, output
from vitreous.cli.output import results_table

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.train.run import Run


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fashion-mnist, cifar10, cifar100, hf:owner/name, a folder (of class folders, of "
            "parquet files, or of the original files of MNIST or CIFAR), a parquet file, a table (.csv, .tsv) or .npz; "
            "DATA:COLUMN says which column holds the labels. Left out where the recipe "
            "names its data, or a run is resumed whose data has not moved.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Recipe settings: epochs=10 optim.name=muon"),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="A recipe's name (`vitreous recipes`) or a YAML file \\[default: one that suits DATA]."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Trained weights to start from: a run, a shipped name, a weight file or folder, or hf:owner/name.",
        ),
    ] = None,
    arch: Architecture = None,
    revision: Revision = None,
    out: Annotated[Path | None, output("The run folder \\[default: the next free runs/NAME].")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fixes all that is random, as seed=N does; another number gives another run.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Cross-validate, as data.folds=N does: N models, each tested on the part of the training images that "
            "it has not seen.",
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="End the run in --out: keep and judge what it has learnt so far.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Stop before training: data, settings, first batch, time needed.")
    ] = False,
) -> None:
    """Train a model on DATA, judge it, and leave a run folder with model/ and report.html."""
    overrides = overrides or []
    given = [value for value in (data, *overrides) if value is not None]
    data = next((value for value in given if "=" not in value or os.path.exists(value)), None)  # noqa: PTH110 - no error if too long
    overrides = [value for value in given if value != data]
    if data == "":
        raise ValueError("DATA is empty: give a name, a file or a folder")
    options = {"data.source": data, "seed": seed, "data.folds": folds}
    options |= {"start.weights": weights, "start.arch": arch, "start.revision": revision}
    for key, value in options.items():
        if value is not None and (twice := [text for text in overrides if text.startswith(f"{key}=")]):
            raise ValueError(f"{value} and {twice[0]} are two values of {key}: give one of them")
    overrides += [f"{key}={options[key]}" for key in ("seed", "data.folds") if options[key] is not None]
    resume = resume or finish
    if resume and out is None:
        raise ValueError(f"--{'finish' if finish else 'resume'} needs the run folder: name it with --out")

    from rich.console import Console

    from vitreous.data.sources import gone
    from vitreous.train.choose import choose_recipe, start_settings
    from vitreous.train.engine import is_main
    from vitreous.train.folder import check_claim
    from vitreous.train.folds import fit_folds
    from vitreous.train.progress import say
    from vitreous.train.run import fit

    if resume:
        check_claim(out, resume=True)
    console = Console(quiet=not is_main())
    if not is_main():
        logging.getLogger("vitreous").addHandler(logging.NullHandler())  # the main process says it
    overrides = [*start_settings(weights, arch, revision, resume), *overrides]
    chosen, image_set, reason = choose_recipe(data, recipe, overrides, out if resume else None, device)
    if reason:
        say(console, reason)
    if resume and data is None and (place := gone(chosen.data.source or "")):
        raise ValueError(
            f"{place}, the data of this run, is not there: if it has moved, say where it is now, as in "
            f"`vitreous train DATA --{'finish' if finish else 'resume'} --out {shlex.quote(str(out))}`"
        )
    cross = chosen.data.folds is not None and chosen.data.fold is None
    if folds is not None and not cross:
        raise ValueError(f"the recipe has data.fold={chosen.data.fold}, one of the folds: for all set data.fold=null")
    if cross and finish:
        raise ValueError(
            f"--finish ends a single run, and {out} is a cross-validation: end one of its folds, as by --finish --out "
            f"{out / 'fold-1'}, or go on with all by --resume"
        )
    begin = fit_folds if cross else partial(fit, finish=finish)
    run = begin(chosen, image_set, out=out, device=device, resume=resume, dry_run=dry_run, console=console)
    if run.results:
        _tell(console, run, cross)
    elif not dry_run:
        sys.exit(130)


def no_such_option(option: str, message: str) -> str:
    """What to say of an option that `train` lacks: the setting that other programs have as an option of this name."""
    from vitreous.recipe import key_called, settings

    name = option.lstrip("-").replace("-", "_")
    if name in ("gpu", "gpus"):
        return f"No such option: {option}: name a GPU with --device, such as --device cuda"
    key = key_called(name)
    if key is None and "(Possible options" in message:
        return message
    defaults = {setting.key: setting.default for setting in settings()}
    example = "epochs=3" if key is None else f"{key}={defaults[key]}"
    return f"No such option: {option}: settings are given as key=value, such as {example}"


def _tell(console: "Console", run: "Run", cross: bool) -> None:
    """What a run, or a cross-validation, has come to."""
    from vitreous.card import untested
    from vitreous.metrics import top1_interval
    from vitreous.train.progress import say

    if cross:
        figures = "{folds} folds: top-1 {top1_mean:.2%} ± {top1_sd:.2%} (mean ± sd, n = {n}), loss {loss_mean:.4f}"
        say(console, figures.format(**run.results))
        pooled = run.results["pooled"]
        low, high = top1_interval(pooled)
        share = f"top-1 {pooled['top1']:.2%} (95% interval {low:.2%} to {high:.2%}), F1, macro {pooled['f1_macro']:.2%}"
        say(console, f"all {pooled['count']:,} images, each by the model that had not seen it: {share}")
        say(console, "these models are for judging; train the one to use in the same way, without --folds")
    else:
        if run.results["val"] or run.results["test"]:
            say(console, results_table(run.results))
            if not run.results["test"]:
                say(console, untested(run.results))
        else:
            say(console, "there are neither validation nor test images: nothing was judged")
        figures = (
            "{params:,} parameters, epoch {best_epoch} of {epochs} kept, "
            "{train_seconds:.0f} s, {images_per_second:,.0f} images/s"
        )
        say(console, figures.format(**run.results))
    say(console, f"run folder: {run.folder}")
    if (run.folder / "report.html").exists():
        say(console, f"report: {run.folder / 'report.html'}")
