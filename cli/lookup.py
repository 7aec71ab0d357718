"""Resolves what command lines name: stores, runs, streams of events, ages.

A run is named by the path of its folder with a ``/`` in it, or by its id, its name or ``NAME@N`` in the store.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import typer

from ..store.errors import RunNotFound, StoreNotFound, TelemetryError, counted
from ..store.event_json import events_from_lines
from ..store.events import Event
from ..store.objects.mirror_access import address_of, is_address
from ..store.questions import parse
from ..store.reading.catalog import Look, catalog_of
from ..store.reading.diagnosis import is_run_folder
from ..store.run import Run, unread_run
from ..store.store import NO_FOLDER, Store, local_folder, open_store
from .options import RunsOptions
from .streams import complain

#: Maximum number of runs to suggest for an unknown name.
_SUGGESTED: Final = 3

#: Maximum number of older runs of one name, and of ids, to list.
_OLDER_NAMED: Final = 5
_IDS_NAMED: Final = 10

_LOOK_AROUND: Final = "'steptape runs --where QUESTION' lists what matches another one"


def age(text: str) -> timedelta:
    """Parse a time span of a number and a unit: ``8w``, ``90d``, ``12h``, ``30m``."""
    units = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}
    number, unit = text[:-1], units.get(text[-1:])
    try:
        if unit is not None and float(number) >= 0:
            return timedelta(**{unit: float(number)})
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(f"an age is a number with the unit w, d, h or m, such as 90d; got {text!r}")


def store_named(text: str | None) -> Path:
    """Return the folder of the store of this name or address, else of ``STEPTAPE_STORE``, else ``runs``."""
    if text is None:
        text = os.environ.get("STEPTAPE_STORE") or "runs"
    if not text.strip():  # As of an unset variable of a shell.
        raise typer.BadParameter(f"{NO_FOLDER}; got {text!r}")
    return local_folder(text)


def open_store_named(text: str | None) -> Store:
    """Open the store of this name, else the default one.

    Raises:
        TelemetryError: There is no such store.
    """
    try:
        return open_store(store_named(text))
    except StoreNotFound as error:
        if text is not None:
            raise
        fix = "Name one with --store or STEPTAPE_STORE; 'steptape import' makes one"
        raise StoreNotFound(error.what, where=error.where, fix=fix) from None


def run_named(key: str, store: str | None) -> Run:
    """Open the run in this folder, or else the run of this id or name in a store.

    Several runs with that name are no error: the newest is opened, and a line on stderr says so.

    Raises:
        TelemetryError: There is no such run. The error suggests what was meant.
    """
    if (found := _folder_at(key)) is not None:
        return Run(found)
    *older, folder = _folders_named(key, store)
    if older:
        others = [f"{key}@{number}" for number in range(len(older), 0, -1)]
        told = ", ".join(others) if len(others) <= _OLDER_NAMED else f"{others[0]} to {others[-1]}"
        count = len(older) + 1
        complain(f"{count} runs are called {key!r}; this is the newest, {key}@{count}. Older ones: {told}")
    return Run(folder)


def the_run_named(key: str, store: str | None) -> Run:
    """Open the run in this folder, or else the only run of this id or name in a store.

    Raises:
        TelemetryError: There is no such run, or several have that name. ``NAME@N`` is refused as well: the numbers
            change when a run is deleted.
    """
    if (found := _folder_at(key)) is not None:
        return Run(found)
    folders = _folders_named(key, store)
    run = Run(folders[-1])
    if len(folders) == 1 and key in (folders[0].name, run.run_id, run.snapshot().shown.name):
        return run
    ids = ", ".join(folder.name for folder in folders[:_IDS_NAMED])
    more = f" and {len(folders) - _IDS_NAMED} more" if len(folders) > _IDS_NAMED else ""
    what = f"{len(folders)} runs have this name" if len(folders) > 1 else "this number changes when a run is deleted"
    raise RunNotFound(what, where=address_of(folders[0].parent), got=key, fix=f"Name an id: {ids}{more}")


def _folder_at(key: str) -> Path | None:
    """Return the run's folder that a key with a ``/`` is the path of; None where no run is there."""
    if "/" not in key:
        return None
    folder = local_folder(key)
    return folder if is_address(key) or is_run_folder(folder) else None


def _is_store(path: Path) -> bool:
    """Whether a folder is no run, and holds runs."""
    return path.is_dir() and not is_run_folder(path) and bool(open_store(path).catalog.folders())


def _folders_named(key: str, store: str | None) -> list[Path]:
    opened: Store | None = None
    try:
        opened = open_store_named(store)
        return opened.folders_named(key)
    except (RunNotFound, StoreNotFound) as error:
        fix = _fix_of_path(key) or (error.fix if opened is None else _fix_of_name(key, opened))
        what = f"no such run folder, and {error.what}" if "/" in key else error.what
        raise RunNotFound(what, where=error.where, got=key, fix=fix or error.fix) from None


def _fix_of_path(key: str) -> str:
    """Say how to name an existing file or folder as one, or what it holds; empty if there is none."""
    path = local_folder(key)
    if not path.exists():
        return ""
    if _is_store(path):
        return f"This is a store: write --store {key}, and a run's id or name"
    if "/" in key:
        return f"{key} holds no run"
    return f"To name the {'folder' if path.is_dir() else 'file'}, write ./{key}"


def _fix_of_name(key: str, store: Store) -> str:
    """Say which run was meant; empty if the key is a name with a number too high."""
    known = store.recent().by_name
    if key.rpartition("@")[0] in known:
        return ""
    return f"{_nearest(key, known)}'steptape runs --store {store.address}' lists them" if known else "There are no runs"


def _nearest(key: str, names: Iterable[str]) -> str:
    """Ask whether one of these was meant: names that contain the key, else the most similar one; empty if none."""
    known = sorted(names)
    like = [name for name in known if key.casefold() in name.casefold()] or get_close_matches(key[:100], known, n=1)
    return f"Did you mean {' or '.join(map(repr, like[:_SUGGESTED]))}? " if like else ""


def runs_chosen(keys: list[str] | None, store: str | None) -> tuple[list[Run], list[TelemetryError]]:
    """Return the named runs, each once, or all runs of the store with the problems of those that cannot be read."""
    if keys:
        named = [run_named(key, store) for key in keys]
        return [*{run.folder.resolve(): run for run in named}.values()], []
    entries, problems = open_store_named(store).entries()
    return [unread_run(entry.folder) for entry in entries], problems


def runs_asked(options: RunsOptions) -> list[Run]:
    """Return the runs that the options choose. Print on stderr problems with other runs, and how many are left out."""
    if options.history is None:
        chosen, problems = runs_chosen(options.runs, options.store)
    elif options.runs or options.store is not None:
        more = "With several logs, write --history before each"
        raise typer.BadParameter(f"name a RUN or a STORE, or give --history PATH; not both. {more}")
    else:
        # Loaded late: the readers of other tools' logs take 50 ms.
        from .imports import imported_history

        chosen, problems = imported_history(options.history)
    complain_of(problems)
    return chosen if options.where is None else admitted(chosen, options.where)


def admitted(runs: list[Run], where: str) -> list[Run]:
    """Return the runs that match a question. Print on stderr how many do not.

    Raises:
        TelemetryError: The question is none, or none of several runs matches.
    """
    entries = [catalog_of(run.folder.parent.absolute()).entry(run.folder) for run in runs]
    kept = {entry.folder for entry in parse(where).bound(Look(tuple(entries), ())).admitted(entries)}
    found = [run for run, entry in zip(runs, entries, strict=True) if entry.folder in kept]
    if runs and not found:
        raise TelemetryError("no run matches", where="--where", got=where, fix=_LOOK_AROUND)
    if len(found) < len(runs):
        complain(f"note: {counted(len(runs) - len(found), 'run', ',')} left out by --where {shlex.quote(where)}")
    return found


def events_named(source: str, store: str | None) -> Run | list[Event]:
    """Open the events to replay: standard input (``-``), a file of JSON lines, or a run."""
    is_stdin = source == "-"
    is_file = source.endswith(".jsonl") or ("/" in source and os.path.exists(source))
    if is_stdin or (is_file and not os.path.isdir(source)):
        where = "<stdin>" if is_stdin else source
        with _readable(sys.stdin.fileno() if is_stdin else source, where) as lines:
            return list(events_from_lines(lines, source=where))
    return run_named(source, store)


@contextmanager
def _readable(file: str | int, where: str) -> Iterator[Iterable[str]]:
    """Open a text file, or a file descriptor, as lines. Bytes that are not UTF-8 raise a ``TelemetryError``.

    Standard input, too, is read as UTF-8, which JSON is in any locale.
    """
    try:
        with open(file, encoding="utf-8-sig", closefd=isinstance(file, str)) as lines:
            yield lines
    except (OSError, UnicodeDecodeError) as error:
        raise TelemetryError(f"cannot be read ({error})", where=where) from None


def complain_of(problems: Iterable[TelemetryError]) -> None:
    """Print a warning on stderr for each problem."""
    for problem in problems:
        complain(f"warning: {problem}")
