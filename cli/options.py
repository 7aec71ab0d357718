"""Defines the options and arguments that commands about stores and runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..store.store import NO_FOLDER


def store_path(text: str | Path) -> Path:
    """Parse the path of a store. An empty text, such as an unset variable of a shell, is none."""
    if not str(text).strip():
        raise typer.BadParameter(f"{NO_FOLDER}; got {text!r}")
    return Path(text)


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", parser=store_path, metavar="STORE", help="Folder of runs. RUN is then an id, a name or NAME@N."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder; with --store, its id, its name or NAME@N.")
]
StoreArgument = Annotated[
    Path, typer.Argument(parser=store_path, metavar="STORE", envvar="STEPTAPE_STORE", help="Folder of runs.")
]
