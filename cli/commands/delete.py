"""``steptape delete``: deletes runs by name, age or number."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from ...store.errors import TelemetryError, counted
from ...store.store import delete_run, expendable
from ...store.user_cache import require_writable
from ..lookup import age, complain_of, open_store_named, the_run_named
from ..options import DeleteArguments
from ..output import print_json, say
from ..streams import complain

#: Most folders to name in the refusal.
_NAMED: Final = 3


def delete(asked: DeleteArguments) -> None:
    """Delete runs by name, by age, or all but the newest."""
    folders, live = _chosen(asked)
    for folder in folders:
        require_writable(folder.parent, folder.name)
    if not folders and not asked.as_json:
        say("no run to delete" + (f": a process is writing to {counted(live, 'run')}" if live else ""))
    if folders and not asked.yes:
        _confirm(folders)
    for folder in folders:
        delete_run(folder)
        if asked.as_json:
            print_json({"folder": str(folder), "deleted": True})
        else:
            say(f"deleted {folder}")


def _chosen(asked: DeleteArguments) -> tuple[list[Path], int]:
    """Return the folders of the runs to delete, and how many runs of the store are being written."""
    by_rule = asked.older_than is not None or asked.keep_last is not None
    if bool(asked.runs) == by_rule:
        raise typer.BadParameter("name a RUN, or use --older-than AGE and --keep-last N; not both")
    if asked.runs:
        return [the_run_named(key, asked.store).folder for key in asked.runs], 0
    entries, problems = open_store_named(asked.store).entries()
    complain_of(problems)
    limit = None if asked.older_than is None else age(asked.older_than)
    now = datetime.now(UTC).replace(tzinfo=None)
    chosen = expendable(entries, now=now, older_than=limit, keep_last=asked.keep_last)
    return [entry.folder for entry in chosen], sum(entry.is_live for entry in entries)


def _confirm(folders: Sequence[Path]) -> None:
    """List the runs on stderr, and ask whether to delete them. Without a terminal, refuse."""
    runs = counted(len(folders), "run")
    if not sys.stdin.isatty():
        first = ", ".join(map(str, folders[:_NAMED])) + (", ..." if len(folders) > _NAMED else "")
        fix = "Repeat the command with --yes to delete them"
        raise TelemetryError(f"there is no terminal to ask whether to delete {runs} ({first})", fix=fix)
    for folder in folders:
        complain(str(folder))
    typer.confirm(f"Delete {runs} with all {'its' if len(folders) == 1 else 'their'} files?", abort=True, err=True)
