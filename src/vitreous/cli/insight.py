"""Seeing through a model: `vitreous explain`, `look`, `walk`."""

import logging
import re
from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.options import OWN_DATA, ROW_HELP, Architecture, Device, Images, Revision, RunArgument, output
from vitreous.cli.output import report_broken

log = logging.getLogger("vitreous")

LARGE_ERROR = 0.2  # of integrated gradients, as a share of the logit's rise


def explain(
    run: RunArgument,
    images: Images,
    out: Annotated[Path, output("The folder for a PNG and a JSON file of each image.")] = Path("explanations"),
    method: Annotated[
        str | None,
        typer.Option(help="integrated_gradients (default), gradient_rollout, rollout, grad_cam or attention."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="CLASS", help="Explain this class, not the likeliest.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Show what speaks for the class and against this one.")
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            help="Block whose attention is shown, and whose input grad_cam looks at, from 1 \\[default: last]."
        ),
    ] = None,
    head: Annotated[int | None, typer.Option(help="Show this head alone, from 1.")] = None,
    patch: Annotated[
        str | None,
        typer.Option(metavar="ROW,COLUMN", help="Show the attention of this patch, from 1,1, not of what is read."),
    ] = None,
    curves: Annotated[bool, typer.Option("--curves", help="Measure deletion and insertion of each image.")] = False,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Show what answers rest on: for each image a figure and its numbers."""
    from vitreous.cli.asked import asked_images, asked_model, check_outside_data
    from vitreous.data.folders import check_apart
    from vitreous.explain.explanations import explain as ask
    from vitreous.explain.explanations import stems
    from vitreous.explain.methods import DEFAULT
    from vitreous.files import check_folder
    from vitreous.messages import printable
    from vitreous.prediction import image_name
    from vitreous.weights import Bundle

    check_folder(out)
    place = None if patch is None else _row_and_column(patch)
    model = asked_model(run, arch, revision)
    bundle, asked = Bundle.of(model), list(dict.fromkeys(asked_images(model, images)))
    sha256 = bundle.digest()
    files = [image for image in asked if isinstance(image, Path)]
    check_apart(out, files)
    check_outside_data(out, model)
    names = [str(image) if isinstance(image, Path) else image.name for image in asked]
    by = None if method == DEFAULT else method
    question = {"of": target, "against": against, "by": by, "block": layer, "head": head, "patch": patch}
    ending = "".join(f"-{word}-{name}" for word, name in question.items() if name is not None)
    stem_of = dict(zip(map(image_name, asked), stems(names, out, ending, sha256), strict=True))
    broken: list = []
    errors = []  # of the default method, by image
    areas = []  # of each image: deletion, insertion, and both for random orders
    options = {"method": method or DEFAULT, "target": target, "against": against}
    options |= {"layer": layer, "head": head, "patch": place}
    for explanation in ask(bundle, asked, **options, curves=curves, device=device, broken=broken):
        stem = stem_of[explanation.image]
        explanation.save(stem, sha256, ending)
        rival = "" if against is None else f" against {against} {explanation.against_probability:.1%}"
        answer = f"{explanation.target} {explanation.target_probability:.1%}{rival}"
        print(printable(f"{explanation.image}: {answer}, see {stem}.png"))
        errors += [] if explanation.error is None else [explanation.error]
        if curves:
            pair = explanation.curves, explanation.random_curves
            areas.append([area.item() for each in pair for area in (each.deletion_area, each.insertion_area)])
    if off := sum(error > LARGE_ERROR for error in errors):
        log.warning(
            "%d of %d maps are inexact: integrated gradients should add up to the rise of the logit, and are off by "
            "more than %.0f%% of it (logit, empty_logit and attributed in their JSON files): trust them less",
            off, len(errors), 100 * LARGE_ERROR,
        )  # fmt: skip
    if areas:
        deletion, insertion, *random = (sum(each) / len(areas) for each in zip(*areas, strict=True))
        print(
            f"areas, mean of {len(areas)} image{'s' if len(areas) > 1 else ''}: deletion {deletion:.2f} (random orders "
            f"{random[0]:.2f}; low is good), insertion {insertion:.2f} ({random[1]:.2f}; high is good)"
        )
    report_broken(broken)


def _row_and_column(text: str) -> tuple[int, int]:
    if not (found := re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)):
        raise ValueError(f"--patch is '{text}': give a row and a column, such as 3,5")
    return int(found[1]), int(found[2])


def look(
    run: RunArgument,
    data: Annotated[str | None, typer.Option(metavar="DATA", help=OWN_DATA)] = None,
    out: Annotated[Path, output("The folder for the pictures and look.json.")] = Path("look"),
    count: Annotated[int, typer.Option(min=1, help="Images to look through.")] = 128,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Draw a model itself: filters, positions, how far its heads look, its tokens and answers by depth."""
    from vitreous.cli.asked import asked_model, check_outside_data
    from vitreous.explain.look import look as draw
    from vitreous.files import check_folder

    check_folder(out)
    model = asked_model(run, arch, revision)
    check_outside_data(out, model, data)
    draw(model, data, out=out, count=count, device=device)
    print(f"pictures: {out}")


def walk(
    run: RunArgument,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help=f"An image file; {ROW_HELP}")],
    out: Annotated[Path, output("The page.")] = Path("walk.html"),
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Follow one image through a model, on a page: every step with its shape, its equation and its code."""
    from vitreous.cli.asked import asked_images, asked_model, is_row
    from vitreous.explain.walk import walk as follow
    from vitreous.files import check_file
    from vitreous.page import MARK

    check_file(out, ".html", MARK)  # before weights are fetched
    model = asked_model(run, arch, revision)
    (asked,) = asked_images(model, [image]) if is_row(image) else [image]
    print(f"page: {follow(model, asked, out=out, device=device)}")
