"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer


def _place(text: str) -> Path:
    from vitreous.files import path_of

    if not text:
        raise typer.BadParameter("it is empty: name a place")
    return path_of(text)


def output(help: str, *names: str, metavar: str = "PATH") -> Any:
    """An option that names what is written. Its ~ is expanded, which shells leave as it is in --out=~/new."""
    return typer.Option(*names, help=help, metavar=metavar, parser=_place)


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: a CUDA GPU if there is one.")]
Architecture = Annotated[
    str | None,
    typer.Option(help="Architecture of a weight file: torchvision's vit_b_16, timm's vit_tiny_patch16_224, and so on."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of hf:owner/name.")]
ROW_HELP = "test:7 is row 7, counted from 0, of the run's own test images (so are train:7 and val:7)."
OWN_DATA = "A name, folder or table, as `vitreous train` takes \\[default: the run's own]."
Data = Annotated[str | None, typer.Argument(metavar="DATA", help=OWN_DATA)]
JudgedSplit = Annotated[
    str | None, typer.Option(help="test, val or train \\[default: the first of these that there is].")
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out files that cannot be read.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, a shipped name, a weight file or folder, or hf:owner/name.")
]
Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGE...", help=f"Files, folders or patterns; {ROW_HELP}"),
]
