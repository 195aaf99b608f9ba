"""A trained model for others: `vitreous export`, `push`."""

from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.options import Architecture, Revision, RunArgument, output


def export(
    run: RunArgument,
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="onnx, pt2, int8, timm or huggingface.")],
    data: Annotated[
        str | None, typer.Option(help="Check its answers on this DATA \\[default: the run's, else noise].")
    ] = None,
    out: Annotated[Path | None, output("The folder to write \\[default: RUN/export/FORMAT].")] = None,
    preprocess_inside: Annotated[
        bool, typer.Option("--preprocess-inside", help="The graph takes uint8 pixels and normalises them itself.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference between logits \\[default: 1e-4]; for int8 by how much top-1 may fall, as a share "
            "of 1 \\[default: 0.005, or one image]."
        ),
    ] = None,
    arch: Architecture = None,
    revision: Revision = None,
) -> None:
    """Write a trained model in another format, once its answers have been checked."""
    from vitreous.cli.asked import asked_model, check_outside_data
    from vitreous.export import export_run
    from vitreous.export.deploy import CHECKPOINTS, GRAPHS, check_form
    from vitreous.export.example import EXAMPLE, PICTURE
    from vitreous.files import read_json
    from vitreous.weights.bundle import CONFIG
    from vitreous.weights.maps import TEMPERATURE_KEY

    check_form(form, preprocess_inside)  # before weights are fetched
    model = asked_model(run, arch, revision)
    if out is not None:
        check_outside_data(out, model, data)
    folder, receipt = export_run(
        model, form, data=data, out=out, preprocess_inside=preprocess_inside, tolerance=tolerance
    )
    took = receipt["milliseconds_per_image"]
    names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))  # of a killed export
    print(f"{folder}: {', '.join(names)}")
    print(
        f"{receipt['inputs']}: logits differ by {receipt['max_abs_difference']:.2g} at most, "
        f"{receipt['top1_agreement']:.2%} of the answers are the same; {took['before']:.3g} ms an image before, "
        f"{took['after']:.3g} after"
    )
    if shown := [name for name in (EXAMPLE, PICTURE) if name in names]:
        print(
            f"{' and '.join(shown)}: one of your images, for checking a port; delete "
            f"{'both' if len(shown) > 1 else 'it'} if that image must not be shared"
        )
    elif form in GRAPHS:
        print(f"no {EXAMPLE} to check a port by, as it was compared on noise: name images with --data")
    if form == "int8" and "top1" not in receipt:
        print("what rounding costs in top-1 was not measured, as it was compared on noise: name images with --data")
    if form in CHECKPOINTS and (temperature := read_json(folder / CONFIG).get(TEMPERATURE_KEY)):
        library = "transformers" if form == "huggingface" else form
        print(
            f"{library} applies no temperature: divide its logits by {temperature:.6g} for the probabilities of predict"
        )
    if form == "huggingface" and read_json(folder / CONFIG)["num_channels"] == 1:
        print("transformers turns no picture gray: give its processor images of mode L, and do without its pipeline")


def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the Hugging Face Hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private; else the Hub makes it public.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files and the card; upload nothing.")] = False,
) -> None:
    """Upload a trained model with a card of its data, recipe, figures and limits."""
    from vitreous.export.hub import push_run

    pushed = push_run(run, repo, private=private, dry_run=dry_run)
    for name, size in pushed.files.items():
        print(f"{size:>14,} bytes  {name}")
    print(f"\n{pushed.card}" if dry_run else f"uploaded to {repo}")
