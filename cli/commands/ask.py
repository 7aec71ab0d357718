"""``steptape ask``: asks the recorder of a running run from outside its program."""

from __future__ import annotations

import getpass
import socket

from ...store.run import ask_recorder
from ..lookup import the_run_named
from ..options import AskArguments
from ..output import say


def ask(asked: AskArguments) -> None:
    """Ask a running run to stop, or for a checkpoint or an evaluation."""
    run = the_run_named(asked.run, asked.store)
    ask_recorder(run.folder, asked.operation, author=f"{_user()}@{socket.gethostname()}", reason=asked.reason)
    say(f"{run.run_id}: asked to {asked.operation}; it obeys at a call of its loop, within about a second of training")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may run as a user without a name.
        return "unknown"
