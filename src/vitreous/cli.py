"""The command line. Every import that costs time stands inside the command that needs it, so `--help` is instant."""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    help="Train Vision Transformers from scratch on the images you have, and see through them.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Architecture = Annotated[str | None, typer.Option(help="Architecture of weights that do not say it themselves.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of hf:owner/name.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a bundle folder, or a shipped name.")]


def main() -> None:
    """Entry point: bad input ends in one clear line and exit code 2; VITREOUS_DEBUG=1 shows where it came from."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        if os.environ.get("RANK", "0") == "0":
            print("vitreous: stopped at once; training goes on from its last checkpoint with --resume", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader, as `head` does, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except typer.TyperException as error:  # one without a message has printed the help
        _refuse(error.format_message()) if error.format_message() else sys.exit(2)
    except (ValueError, FloatingPointError, ImportError, OSError, MemoryError, RuntimeError) as error:
        if os.environ.get("VITREOUS_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:
            _refuse(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
        message = str(error) or type(error).__name__
        if isinstance(error, RuntimeError) and any(name in message for name in ("gloo", "NCCL")):
            _refuse("another process of this run has failed; training goes on from its last checkpoint with --resume")
        if isinstance(error, RuntimeError | MemoryError):
            if not isinstance(error, MemoryError) and not any(w in message for w in ("memory", "Storage size")):
                raise
            message = (
                "not enough memory: choose a smaller model or image, lower optim.batch_size or raise optim.accumulate"
            )
        _refuse(message)


def _refuse(message: str) -> NoReturn:
    """End with one line and exit code 2; where several processes run, all but the main one say which they are."""
    rank = os.environ.get("RANK", "0")
    print(f"vitreous{'' if rank == '0' else f', process {rank}'}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


@app.command(no_args_is_help=True)
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fashion-mnist, cifar10, cifar100, hf:owner/name, a folder of images, parquet or idx "
            "files. Left out where the recipe names its data or a run is resumed.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Recipe settings: epochs=10 optim.name=muon"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A shipped recipe's name or a YAML file.")] = None,
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
    out: Annotated[Path | None, typer.Option(help="The run folder [default: runs/NAME].")] = None,
    seed: Annotated[int | None, typer.Option(help="The same as seed=N.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Cross-validate; the same as data.folds=N.")] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Stop before training: recipe, data, first batch, time needed.")
    ] = False,
) -> None:
    """Train a model on DATA to the end: validate, test, and leave a run folder."""
    overrides = overrides or []
    given = [value for value in (data, *overrides) if value is not None]
    data = next((value for value in given if "=" not in value or Path(value).exists()), None)
    overrides = [value for value in given if value != data]
    if data == "":
        raise ValueError("DATA is empty: give a name, a file or a folder")
    if seed is not None:
        overrides.append(f"seed={seed}")
    if folds is not None:
        overrides.append(f"data.folds={folds}")
    if resume and out is None:
        raise ValueError("--resume needs the run folder: name it with --out")

    from rich.console import Console

    from vitreous.train.choose import choose_recipe, start_settings
    from vitreous.train.engine import is_main
    from vitreous.train.folder import claim
    from vitreous.train.folds import fit_folds
    from vitreous.train.progress import say
    from vitreous.train.run import fit

    if resume:
        claim(out, resume=True)
    console = Console(quiet=not is_main())
    if not is_main():
        logging.getLogger("vitreous").addHandler(logging.NullHandler())  # the main process says it
    overrides += start_settings(weights, arch, revision)
    chosen, image_set, reason = choose_recipe(data, recipe, overrides, out if resume else None, device)
    if reason:
        say(console, reason)
    cross = chosen.data.folds is not None and chosen.data.fold is None
    train = fit_folds if cross else fit
    run = train(chosen, image_set, out=out, device=device, resume=resume, dry_run=dry_run, console=console)
    if run.results and cross:
        figures = "{folds} folds: top-1 {top1_mean:.2%} ± {top1_sd:.2%} (mean ± sd, n = {n}), loss {loss_mean:.4f}"
        say(console, figures.format(**run.results))
        say(console, f"run folder: {run.folder}")
    elif run.results:
        console.print(_results_table(run.results))
        figures = (
            "{params:,} parameters, epoch {best_epoch} of {epochs} kept, "
            "{train_seconds:.0f} s, {images_per_second:,.0f} images/s"
        )
        say(console, figures.format(**run.results))
        say(console, f"run folder: {run.folder}")
        if (run.folder / "report.html").exists():
            say(console, f"report: {run.folder / 'report.html'}")
    elif not dry_run:
        sys.exit(130)


@app.command(no_args_is_help=True)
def evaluate(
    run: RunArgument,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="As for train [default: the run's own].")] = None,
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Write results.json and report.html into this folder.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out files that cannot be read.")] = False,
    device: Device = "auto",
) -> None:
    """Judge a trained model on a split of DATA; the run's own figures stay as they are."""
    from rich.console import Console

    from vitreous.evaluation import judge_run

    _refuse_file(out)
    if out is not None and (out / "recipe.yaml").exists():
        raise ValueError(f"{out} holds a run, whose results.json stays as it is: name another folder with --out")
    judged = judge_run(run, data, split=split, device=device, skip_broken=skip_broken)
    Console().print(_results_table({split: judged.figures}))
    if out is not None:
        from vitreous.device import pick_device, pick_precision
        from vitreous.files import write_json
        from vitreous.report import evaluation_report
        from vitreous.train.folder import environment

        where = pick_device(device)
        write_json(out / "results.json", {split: judged.figures})
        evaluation_report(
            out / "report.html",
            judged,
            split=split,
            model=run,
            data=data,
            environment=environment(where, pick_precision("auto", where), 1),
        )


@app.command(no_args_is_help=True)
def predict(
    run: RunArgument,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Files, folders or patterns.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to show for an image.")] = 5,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a table to this file.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    device: Device = "auto",
) -> None:
    """Ask a trained model what is in images. A file that cannot be read is named, and the others are answered."""
    from vitreous.prediction import image_files, write_csv, write_json_lines, write_text
    from vitreous.prediction import predict as ask

    if json_lines and csv_file:
        raise ValueError("--json and --csv exclude each other: use one of them")
    broken: list = []
    answers = ask(run, image_files(images), top=top, batch_size=batch_size, device=device, broken=broken)
    if csv_file:
        write_csv(answers, csv_file)
    else:
        (write_json_lines if json_lines else write_text)(answers, sys.stdout)
    _report_broken(broken)


@app.command(no_args_is_help=True)
def explain(
    run: RunArgument,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Files, folders or patterns.")],
    out: Annotated[Path, typer.Option(help="The folder for a PNG and a JSON file an image.")] = Path("explanations"),
    method: Annotated[
        str | None,
        typer.Option(help="integrated_gradients (default), gradient_rollout, rollout, grad_cam or attention."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="CLASS", help="Explain this class, not the likeliest.")] = None,
    layer: Annotated[int | None, typer.Option(help="Block whose attention is shown, from 1 [default: last].")] = None,
    head: Annotated[int | None, typer.Option(help="Show this head alone, from 1.")] = None,
    curves: Annotated[bool, typer.Option("--curves", help="Measure deletion and insertion of each image.")] = False,
    device: Device = "auto",
) -> None:
    """Show what answers rest on: for each image a figure and its numbers."""
    from vitreous.explain.explanations import explain as ask
    from vitreous.explain.explanations import stems, write_explanation
    from vitreous.explain.methods import DEFAULT
    from vitreous.prediction import image_files
    from vitreous.weights import Bundle, find_bundle

    _refuse_file(out)
    files = image_files(images)
    stem_of = dict(zip(map(str, files), stems(files, out), strict=True))
    bundle, broken = Bundle.load(find_bundle(run)), []
    options = {"method": method or DEFAULT, "target": target, "layer": layer, "head": head, "curves": curves}
    for explanation in ask(bundle, files, **options, device=device, broken=broken):
        stem = stem_of[explanation.image]
        write_explanation(explanation, bundle.model.config.patch_size, stem)
        print(f"{explanation.image}: {explanation.target} {explanation.target_probability:.1%}, see {stem}.png")
    _report_broken(broken)


@app.command(no_args_is_help=True)
def look(
    run: RunArgument,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="As for train [default: the run's own].")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the pictures and look.json.")] = Path("look"),
    count: Annotated[int, typer.Option(min=1, help="Images to look through.")] = 128,
    device: Device = "auto",
) -> None:
    """Draw a model itself: filters, positions, how far its heads look, its tokens by depth."""
    from vitreous.explain.look import look as draw

    _refuse_file(out)
    draw(run, data, out=out, count=count, device=device)
    print(f"pictures: {out}")


@app.command(no_args_is_help=True)
def walk(
    run: RunArgument,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("walk.html"),
    device: Device = "auto",
) -> None:
    """Follow one image through a model, on a page: every step with its shape, its equation and its code."""
    from vitreous.explain.walk import walk as follow

    print(f"page: {follow(run, image, out=out, device=device)}")


@app.command(no_args_is_help=True)
def embed(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run, a shipped name, a weight file or folder, or hf:owner/name.")
    ],
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="As for train [default: the run's own].")] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    out: Annotated[Path | None, typer.Option(help="Write the features to this parquet file.")] = None,
    nearest: Annotated[Path | None, typer.Option(metavar="IMAGE", help="Show the images most like this one.")] = None,
    k: Annotated[int, typer.Option(min=1, help="Neighbours that vote, and that are shown.")] = 5,
    arch: Architecture = None,
    revision: Revision = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out files that cannot be read.")] = False,
    device: Device = "auto",
) -> None:
    """Describe images by a model's features: accuracy of nearest neighbours, a file, images like another one."""
    from vitreous.data.sources import load
    from vitreous.embedding import embed_image, embed_split, find_nearest, knn_accuracy, load_features, write_parquet
    from vitreous.evaluation import own_data

    if out is not None and out.is_dir():
        raise ValueError(f"{out} is a folder: name a file, such as {out / 'features.parquet'}")
    images = load(data, skip_broken=skip_broken) if data else own_data(run)
    if split not in images.splits:
        raise ValueError(f"{images.source} has no split '{split}': use {' or '.join(images.splits)}")
    bundle = load_features(run, arch, revision)
    query = None if nearest is None else embed_image(bundle, nearest, device)
    own = embed_split(bundle, images, split, device=device, skip_broken=skip_broken)
    among = own if split == "train" else embed_split(bundle, images, "train", device=device, skip_broken=skip_broken)
    how = "leave-one-out" if split == "train" else "neighbours from train"
    accuracy = knn_accuracy(own, None if split == "train" else among, k)
    print(f"{split}: {len(own.labels):,} images, {own.features.shape[1]} features; {k}-NN {accuracy:.2%}, {how}")
    if out is not None:
        write_parquet(own, out)
        print(f"written to {out}")
    if query is not None:
        for row, similarity in find_nearest(query, own, k):
            print(f"{similarity:.4f}  {own.class_names[own.labels[row]]}  {own.images[row]}")


@app.command(no_args_is_help=True)
def export(
    run: RunArgument,
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="onnx, pt2, int8, timm or huggingface.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write [default: RUN/export/FORMAT].")] = None,
    preprocess_inside: Annotated[
        bool, typer.Option("--preprocess-inside", help="The graph takes uint8 pixels and normalises them itself.")
    ] = False,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference of a logit; for int8 the share of images that top-1 loses.")
    ] = None,
) -> None:
    """Write a trained model in another format, with the proof that it is the same function."""
    from vitreous.export import export_run

    folder, receipt = export_run(run, form, out=out, preprocess_inside=preprocess_inside, tolerance=tolerance)
    took = receipt["milliseconds_per_image"]
    print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    print(
        f"{receipt['inputs']}: logits differ by {receipt['max_abs_difference']:.2g} at most, "
        f"{receipt['top1_agreement']:.2%} of the answers are the same; {took['before']:.3g} ms an image before, "
        f"{took['after']:.3g} after"
    )


@app.command(no_args_is_help=True)
def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the Hugging Face Hub.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files and the card; upload nothing.")] = False,
) -> None:
    """Upload a trained model with a card of its data, recipe, figures and limits."""
    from vitreous.export.hub import push_run

    pushed = push_run(run, repo, dry_run=dry_run)
    for name, size in pushed.files.items():
        print(f"{size:>14,} bytes  {name}")
    print(f"\n{pushed.card}" if dry_run else f"uploaded to {repo}")


@app.command(no_args_is_help=True)
def summary(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A size such as B/16, a recipe, or a run.")],
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels.")] = None,
    channels: Annotated[int | None, typer.Option(min=1)] = None,
    classes: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Show a model layer by layer: shapes, parameters, FLOPs, memory."""
    from pydantic import ValidationError
    from rich.console import Console

    from vitreous.data.sources import load
    from vitreous.model.config import ViTConfig
    from vitreous.model.sizes import SIZES
    from vitreous.model.summary import render, summarise
    from vitreous.recipe import one_line, read_recipe, recipe_names
    from vitreous.train.choose import fit_to_data
    from vitreous.weights.bundle import find_bundle, read_config

    if model.partition("/")[0] in SIZES:
        fields = {"size": model}
    elif model in recipe_names() or Path(model).is_file():
        recipe = read_recipe(model)
        with suppress(ValueError):  # without its data, a recipe that leaves the image size to it shows a stand-in
            recipe = fit_to_data(recipe, load(recipe.data.source or ""))
        fields = recipe.model.model_dump(exclude_unset=True)
    else:
        fields = read_config(find_bundle(model))[0].model_dump()
    given = {"image_size": image_size, "channels": channels, "num_classes": classes}
    fields |= {key: value for key, value in given.items() if value is not None}
    try:
        config = ViTConfig(**fields)
    except ValidationError as error:
        raise ValueError(one_line(error)) from error
    Console().print(render(summarise(config)))


@app.command(no_args_is_help=True)
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Finished runs, or shipped names.")],
    out: Annotated[Path | None, typer.Option(help="Write the comparison to this HTML file.")] = None,
) -> None:
    """Put finished runs beside each other: figures with intervals, cost, and where their recipes differ."""
    from rich.console import Console

    from vitreous.report.compare import compare_page, read_run, render

    if out is not None and out.is_dir():
        raise ValueError(f"{out} is a folder: name a file with --out, such as {out / 'compare.html'}")
    read = [read_run(run) for run in runs]
    console = Console()
    for table in render(read):
        console.print(table)
    if out is not None:
        compare_page(out, read)
        print(f"comparison: {out}")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe, as it is written.")] = None,
) -> None:
    """List the shipped recipes, or show one."""
    from vitreous.recipe import headline, recipe_file, recipe_names

    if name is not None:
        print(recipe_file(name).read_text(), end="")
        return
    for name in recipe_names():
        print(f"{name:<16} {headline(name)}")


@app.command()
def doctor() -> None:
    """Check this machine: versions, devices, how fast it multiplies, combinations known not to work."""
    from vitreous.doctor import examine

    examine()


def _refuse_file(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder with --out")


def _report_broken(broken: list) -> None:
    """Name images that could not be read, and exit with 2 if there are any."""
    for error in broken:
        print(f"vitreous: {error}", file=sys.stderr)
    if broken:
        sys.exit(2)


def _results_table(results: dict) -> "Table":
    from rich.table import Table

    from vitreous.metrics import NAMES, figure_text, top1_interval

    splits = {name: results[name] for name in ("train", "val", "test") if results.get(name)}
    table = Table("", *splits)
    for key, label in NAMES.items():
        texts = [figure_text(key, figures[key]) for figures in splits.values()]
        if "" not in texts:
            table.add_row(label, *texts)
        if key == "top1":
            intervals = (top1_interval(figures) for figures in splits.values())
            table.add_row("  95% interval", *(f"{low:.2%} to {high:.2%}" for low, high in intervals))
    return table
