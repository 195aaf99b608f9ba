"""Arguments and options that several commands have."""

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Architecture = Annotated[
    str | None,
    typer.Option(help="Architecture of a weight file: torchvision's vit_b_16, timm's vit_tiny_patch16_224, and so on."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of hf:owner/name.")]
OWN_DATA = "A name, folder or table, as `vitreous train` takes \\[default: the run's own]."
Data = Annotated[str | None, typer.Argument(metavar="DATA", help=OWN_DATA)]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out files that cannot be read.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, a shipped name, a weight file or folder, or hf:owner/name.")
]
Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGE...", help="Files, folders or patterns; test:7 is a row of the run's own data."),
]
