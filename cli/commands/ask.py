"""``steptape ask`` and ``note``: what a person says of runs from outside their programs."""

from __future__ import annotations

import getpass
import socket
import time

import typer

from ...store.annotations import Annotation, append_annotation, new_annotation_id
from ...store.run import ask_recorder
from ..lookup import the_run_named
from ..options import AskArguments, NoteArguments
from ..output import say, shown


def ask(asked: AskArguments) -> None:
    """Ask a running run to stop, or for a checkpoint or an evaluation."""
    run = the_run_named(asked.run, asked.store)
    ask_recorder(run.folder, asked.operation, author=_person(), reason=asked.reason)
    say(f"{run.run_id}: asked to {asked.operation}; it obeys at a call of its loop, within about a second of training")


def note(asked: NoteArguments) -> None:
    """Note something about runs: a text, another name, tags, the archive."""
    added, removed = tuple(asked.tag or ()), tuple(asked.untag or ())
    if not asked.text and asked.name is None and not added and not removed and asked.archive is None:
        raise typer.BadParameter("give --text, --name, --tag, --untag, --archive or --unarchive")
    for run in [the_run_named(key, asked.store) for key in asked.runs]:
        said = Annotation(
            new_annotation_id(),
            time.time_ns(),
            asked.text,
            _person(),
            name=asked.name,
            tag=added,
            untag=removed,
            archived=asked.archive,
        )
        append_annotation(run.folder, said)
        now = run.snapshot().shown
        archived = ", archived" if now.archived else ""
        say(f"{run.run_id}: noted; name {shown(now.name)}, tags {shown(now.tags) or '-'}{archived}")


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container may run as a user without a name.
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
