"""Passes requests of the command line to the recorder of a running run."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

from ..store.reading.asking import ask_recorder
from .lookup import the_run_named
from .output import say

ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded in the run.")]


def ask(key: str, store: Path | None, what: str, reason: str) -> None:
    """Ask the run of this folder, id or name for an operation, in the name of the user on this host."""
    run = the_run_named(key, store)
    ask_recorder(run.folder, what, author=f"{_user()}@{socket.gethostname()}", reason=reason)
    say(f"{run.run_id}: asked to {what}; its recorder obeys at its next call, within about a second of training")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may run as a user without a name.
        return "unknown"
