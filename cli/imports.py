"""Finds and imports the logs of other tools, for the commands that read them."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ..importers.discovery import all_readers, find_sources, signature, unusable_readers
from ..importers.importing import Outcome, State, import_sources
from ..importers.source import Reader, ReadOptions, UnreadableSource
from ..replay.run_pool import Pool
from ..store.errors import TelemetryError
from ..store.run import Run
from ..store.run_info import FORMAT
from ..store.store import delete_run, open_run
from ..store.user_cache import cache_folder
from .import_notes import doubts
from .output import messages_on_stderr, progress
from .streams import complain

#: The store in the user's cache that holds logs imported by ``--history``. Another format has another one.
HISTORY: Final = f"history-{FORMAT}"

#: The signature of each source when it was last read, by kind and path.
Signatures: TypeAlias = dict[tuple[str, Path], tuple[tuple[str, int, int], ...]]


def find_and_import(
    paths: Sequence[Path],
    chosen: Sequence[Reader],
    store: Path,
    options: ReadOptions,
    seen: Signatures,
    workers: Pool | None = None,
) -> Iterator[Outcome]:
    """Import the sources under some paths, with a progress bar. A source that cannot be read is an outcome, too.

    Args:
        paths: Files and folders.
        chosen: The readers to try.
        store: Folder to import the runs into.
        options: The user's options for the sources.
        seen: The signature of each source when it was last read; unchanged sources are skipped. Updated in place.
        workers: Imports the sources; None for this process.
    """
    found = find_sources(paths, chosen, options)
    for problem in found.problems:
        yield Outcome(State.FAILED, "", Path(problem.where), problem=str(problem))
    for reason in found.passed_over:
        yield Outcome(State.SKIPPED, "", Path(reason.where), problem=str(reason))
    now = {(source.reader.kind, source.path): signature(source) for source in found.sources}
    changed = [source for source in found.sources if seen.get(key := (source.reader.kind, source.path)) != now[key]]
    seen.update(now)
    if changed:
        with progress("importing", len(changed)) as show:
            done = itertools.count(1)
            if workers is None:
                yield from import_sources(store, changed, options, lambda _: show(next(done)))
                return
            with messages_on_stderr(), workers:  # Nothing is yielded here: the caller prints to stdout.
                outcomes = list(import_sources(store, changed, options, lambda _: show(next(done)), workers.mapped))
        yield from outcomes


def imported_history(paths: Sequence[Path]) -> tuple[list[Run], list[TelemetryError]]:
    """Import other tools' logs into the user's cache. Return the runs, and the problems with some of them.

    The run of a rewritten log is replaced, with a warning.

    Args:
        paths: Files and folders of logs.

    Raises:
        TelemetryError: The user has no cache, or no log can be read.
    """
    cache = cache_folder()
    if cache is None:
        raise TelemetryError("there is no cache folder", fix="Name one in STEPTAPE_CACHE")
    store = cache / HISTORY
    readers = every_reader()
    outcomes = list(find_and_import(paths, readers, store, ReadOptions(), {}))
    if rewritten := {outcome.rewritten: outcome.path for outcome in outcomes if outcome.rewritten is not None}:
        for folder, path in rewritten.items():
            complain(f"warning: {path}: the log no longer holds what was imported from it; it is imported again")
            delete_run(folder)
        outcomes = list(find_and_import(paths, readers, store, ReadOptions(), {}))
    failed = (outcome.problem for outcome in outcomes if outcome.state is not State.SKIPPED)
    problems = [UnreadableSource(problem) for problem in failed if problem is not None]
    found = dict.fromkeys(outcome.run_id for outcome in outcomes if outcome.run_id)
    if not found:
        raise problems[0]
    for note in doubts([outcome for outcome in outcomes if outcome.state is not State.UNCHANGED]):
        complain(f"note: {note}")
    if all(outcome.evaluations == 0 for outcome in outcomes if outcome.run_id):
        how = f"steptape import auto {shlex.quote(str(paths[0]))} --store STORE --evaluation COLUMN"
        complain(f"note: no log has an evaluation. If a column holds one, run '{how}', then name that store")
    return [open_run(store / run_id) for run_id in found], list(problems)


def every_reader() -> tuple[Reader, ...]:
    """Return all readers that can be used, and warn about the others."""
    for problem in unusable_readers():
        complain(f"warning: {problem}")
    return all_readers()
