"""Arguments and options that several commands have."""

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Architecture = Annotated[str | None, typer.Option(help="Architecture of weights that do not say it themselves.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of hf:owner/name.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a bundle folder, or a shipped name.")]
