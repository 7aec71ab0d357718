"""``steptape stop``, ``save`` and ``evaluate``: ask the recorder of a running run from outside its program."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

from ...store.reading.asking import ask_recorder
from ..lookup import the_run_named
from ..options import RunArgument, StoreOption
from ..output import say

ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded in the run.")]


def stop(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run to stop.

    Its loop sees 'should_stop', as after a rule's order, and the run ends as 'stopped'. The run records who asked.
    """
    _ask(run, store, "stop", reason)


def save(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run for a checkpoint.

    Its loop sees 'should_save', as after a rule's order. The run records who asked.
    """
    _ask(run, store, "save", reason)


def evaluate(run: RunArgument, store: StoreOption = None, reason: ReasonOption = "") -> None:
    """Ask a running run for an evaluation.

    Its loop sees 'should_evaluate', as after a rule's order. The run records who asked.
    """
    _ask(run, store, "evaluate", reason)


def _ask(key: str, store: Path | None, what: str, reason: str) -> None:
    run = the_run_named(key, store)
    ask_recorder(run.folder, what, author=f"{_user()}@{socket.gethostname()}", reason=reason)
    say(f"{run.run_id}: asked to {what}; it obeys at a call of its loop, within about a second of training")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may run as a user without a name.
        return "unknown"
