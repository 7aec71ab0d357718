"""Resolves what command lines name: runs, streams of events, ages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import typer

from ..store.errors import RunNotFound, TelemetryError
from ..store.event_json import events_from_lines
from ..store.events import Event
from ..store.objects.access import address_of, is_address
from ..store.reading.diagnosis import is_run_folder
from ..store.run import Run
from ..store.store import open_run, open_store
from .streams import complain

#: Maximum number of runs to suggest for an unknown name.
_SUGGESTED: Final = 3

#: Maximum number of older runs of one name, and of ids, to list.
_OLDER_NAMED: Final = 5
_IDS_NAMED: Final = 10


def age(text: str) -> timedelta:
    """Parse a time span of a number and a unit: ``90d``, ``12h``, ``30m``."""
    units = {"d": "days", "h": "hours", "m": "minutes"}
    number, unit = text[:-1], units.get(text[-1:])
    try:
        if unit is not None and float(number) >= 0:
            return timedelta(**{unit: float(number)})
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(f"an age is a number with the unit d, h or m, such as 90d; got {text!r}")


def run_named(key: str, store: Path | None) -> Run:
    """Open the run in this folder or, with a store, the run of this id or name.

    Several runs with that name are no error: the newest is opened, and a line on stderr says so.

    Raises:
        TelemetryError: There is no such run. The error suggests what was meant.
    """
    if store is None:
        return _run_in(key)
    *older, folder = _folders_named(key, store)
    if older:
        others = [f"{key}@{number}" for number in range(len(older), 0, -1)]
        told = ", ".join(others) if len(others) <= _OLDER_NAMED else f"{others[0]} to {others[-1]}"
        count = len(older) + 1
        complain(f"{count} runs are called {key!r}; this is the newest, {key}@{count}. Older ones: {told}")
    return Run(folder)


def the_run_named(key: str, store: Path | None) -> Run:
    """Open the run in this folder or, with a store, the only run of this id or name.

    Raises:
        TelemetryError: There is no such run, or several have that name. ``NAME@N`` is refused as well: the numbers
            change when a run is deleted.
    """
    if store is None:
        return _run_in(key)
    folders = _folders_named(key, store)
    run = Run(folders[-1])
    if len(folders) == 1 and key in (folders[0].name, run.info.run_id, run.info.name):
        return run
    ids = ", ".join(folder.name for folder in folders[:_IDS_NAMED])
    more = f" and {len(folders) - _IDS_NAMED} more" if len(folders) > _IDS_NAMED else ""
    what = f"{len(folders)} runs have this name" if len(folders) > 1 else "this number changes when a run is deleted"
    raise RunNotFound(what, where=address_of(store), got=key, fix=f"Name an id: {ids}{more}")


def _run_in(folder: str) -> Run:
    if is_address(folder):
        return open_run(folder)
    if not Path(folder).exists():
        fix = "With --store STORE, a run's id or name is enough; 'steptape runs STORE' lists them"
        raise RunNotFound("no such run folder", where=folder, fix=fix)
    if _is_store(Path(folder)):
        fix = f"'steptape runs {folder}' lists its runs; with --store {folder}, a run's id or name is enough"
        raise RunNotFound("this is a store, not a run", where=folder, fix=fix)
    return open_run(folder)


def _is_store(path: Path) -> bool:
    """Whether a folder is no run, and holds runs."""
    return path.is_dir() and not is_run_folder(path) and bool(open_store(path).catalog.folders())


def _folders_named(key: str, store: Path) -> list[Path]:
    opened = open_store(store)
    try:
        return opened.folders_named(key)
    except RunNotFound as error:
        known = opened.recent().by_name
        if key.rpartition("@")[0] in known:
            raise
        fix = f"{_nearest(key, known)}'steptape runs {address_of(store)}' lists them" if known else "There are no runs"
        raise RunNotFound(error.what, where=error.where, got=key, fix=fix) from None


def _nearest(key: str, names: Iterable[str]) -> str:
    """Ask whether one of these was meant: names that contain the key, else the most similar one; empty if none."""
    known = sorted(names)
    like = [name for name in known if key.casefold() in name.casefold()] or get_close_matches(key[:100], known, n=1)
    return f"Did you mean {' or '.join(map(repr, like[:_SUGGESTED]))}? " if like else ""


def runs_chosen(keys: list[str] | None, store: Path | None) -> tuple[list[Run], list[TelemetryError]]:
    """Return the named runs, each once, or all runs of the store with the problems of those that cannot be read."""
    if keys:
        named = [run_named(key, store) for key in keys]
        return [*{run.folder.resolve(): run for run in named}.values()], []
    if store is None:
        raise typer.BadParameter("name a RUN, or give --store STORE")
    entries, problems = open_store(store).entries()
    return [Run.of_entry(entry) for entry in entries], problems


def events_named(source: str, store: Path | None) -> Run | list[Event]:
    """Open the events to replay: standard input (``-``), a file of JSON lines, or a run."""
    is_stdin = source == "-"
    if store is None and (is_stdin or Path(source).is_file()):
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
