"""Arguments and options that several commands have, and a check of one."""

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Architecture = Annotated[str | None, typer.Option(help="Architecture of weights that do not say it themselves.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of hf:owner/name.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a bundle folder, or a shipped name.")]


def refuse_file(out: Path | None) -> None:
    """Raises ValueError where --out is a file, for commands that write a folder."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder with --out")
