"""``steptape delete``: deletes runs by name, age or number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ...store.cache.mirrored import require_writable
from ...store.plural import counted
from ...store.reading.deletion import delete_run, expendable
from ...store.store import open_store
from ..lookup import age, complain_of, the_run_named
from ..options import JsonOption, StoreOption
from ..output import print_json, say


def delete(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to delete.")] = None,
    store: StoreOption = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --store: runs that ended longer ago, such as 90d or 12h.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --store: all but the newest N.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print which runs would be deleted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete runs by name, by age, or all but the newest.

    Deletes the whole folder of a run, with any checkpoints in it. Never deletes a run that is still being written.
    """
    live = 0
    if runs and (older_than or keep_last is not None):
        raise typer.BadParameter("name a RUN, or use --older-than and --keep-last; not both")
    if runs:
        folders = [the_run_named(key, store).folder for key in runs]
    elif store is not None and (older_than or keep_last is not None):
        entries, problems = open_store(store).entries()
        complain_of(problems)
        limit = None if older_than is None else age(older_than)
        now = datetime.now(UTC).replace(tzinfo=None)
        chosen = expendable(entries, now=now, older_than=limit, keep_last=keep_last)
        folders = [entry.folder for entry in chosen]
        live = sum(entry.is_live for entry in entries)
    else:
        raise typer.BadParameter("name a RUN, or give --store STORE with --older-than AGE or --keep-last N")
    for folder in folders:
        require_writable(folder.parent, folder.name)
    if not folders and not as_json:
        say("no run to delete" + (f": a process is writing to {counted(live, 'run')}" if live else ""))
    for folder in folders:
        if not dry_run:
            delete_run(folder)
        if as_json:
            print_json({"folder": str(folder), "deleted": not dry_run})
        else:
            say(f"{'would delete' if dry_run else 'deleted'} {folder}")
