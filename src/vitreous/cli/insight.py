"""Seeing through a model: `vitreous explain`, `look`, `walk`."""

from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.options import Device, RunArgument
from vitreous.cli.output import report_broken


def explain(
    run: RunArgument,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Files, folders or patterns.")],
    out: Annotated[Path, typer.Option(help="The folder for a PNG and a JSON file an image.")] = Path("explanations"),
    method: Annotated[
        str | None,
        typer.Option(help="integrated_gradients (default), gradient_rollout, rollout, grad_cam or attention."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="CLASS", help="Explain this class, not the likeliest.")] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Block whose attention is shown, and that grad_cam looks at, from 1 \\[default: last]."),
    ] = None,
    head: Annotated[int | None, typer.Option(help="Show this head alone, from 1.")] = None,
    curves: Annotated[bool, typer.Option("--curves", help="Measure deletion and insertion of each image.")] = False,
    device: Device = "auto",
) -> None:
    """Show what answers rest on: for each image a figure and its numbers."""
    from vitreous.explain.explanations import explain as ask
    from vitreous.explain.explanations import stems, write_explanation
    from vitreous.explain.methods import DEFAULT
    from vitreous.files import check_folder
    from vitreous.prediction import image_files, image_name
    from vitreous.weights import Bundle

    check_folder(out)
    files = list(dict.fromkeys(image_files(images)))
    if out.resolve() in {folder for file in files for folder in (file.parent.resolve(), file.resolve().parent)}:
        raise ValueError(f"{out} holds images that are to be explained: name another folder with --out")
    stem_of = dict(zip(map(image_name, files), stems(files, out), strict=True))
    bundle, broken = Bundle.of(run), []
    options = {"method": method or DEFAULT, "target": target, "layer": layer, "head": head, "curves": curves}
    for explanation in ask(bundle, files, **options, device=device, broken=broken):
        stem = stem_of[explanation.image]
        write_explanation(explanation, bundle.model.config.patch_size, stem)
        print(f"{explanation.image}: {explanation.target} {explanation.target_probability:.1%}, see {stem}.png")
    report_broken(broken)


def look(
    run: RunArgument,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="As for train \\[default: the run's own].")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the pictures and look.json.")] = Path("look"),
    count: Annotated[int, typer.Option(min=1, help="Images to look through.")] = 128,
    device: Device = "auto",
) -> None:
    """Draw a model itself: filters, positions, how far its heads look, its tokens by depth."""
    from vitreous.explain.look import look as draw
    from vitreous.files import check_folder

    check_folder(out)
    draw(run, data, out=out, count=count, device=device)
    print(f"pictures: {out}")


def walk(
    run: RunArgument,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("walk.html"),
    device: Device = "auto",
) -> None:
    """Follow one image through a model, on a page: every step with its shape, its equation and its code."""
    from vitreous.explain.walk import walk as follow
    from vitreous.files import check_file

    check_file(out, ".html")
    print(f"page: {follow(run, image, out=out, device=device)}")
