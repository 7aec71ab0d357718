"""Defines the options and arguments that commands about stores and runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..store.objects.access import is_address
from ..store.store import NO_FOLDER, local_folder


def store_path(text: str | Path) -> Path:
    """Parse a store: its path or, in object storage, its address. An empty text, as of an unset variable, is none."""
    if not str(text).strip():
        raise typer.BadParameter(f"{NO_FOLDER}; got {text!r}")
    return local_folder(text) if is_address(text) else Path(text)


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        parser=store_path,
        metavar="STORE",
        help="Folder of runs, or s3://BUCKET/PREFIX. RUN is then an id, a name or NAME@N.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder; with --store, its id, its name or NAME@N.")
]
StoreArgument = Annotated[
    Path,
    typer.Argument(
        parser=store_path, metavar="STORE", envvar="STEPTAPE_STORE", help="Folder of runs, or s3://BUCKET/PREFIX."
    ),
]
