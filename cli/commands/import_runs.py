"""``steptape import``: imports past runs from other tools' logs, and prints one line per run and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from ...importers.discovery import find_sources, signature
from ...importers.errors import UnreadableSource
from ...importers.importing import Outcome, State, import_sources
from ...importers.registry import AUTO, all_readers, reader_of, unusable_readers
from ...importers.source import Reader, ReadOptions
from ...store.errors import TelemetryError
from ...store.plural import counted
from ...store.reading.deletion import delete_run
from ...store.run import Run
from ...store.store import open_run
from ..exit_status import FINDINGS
from ..import_notes import doubts, evaluation_losses
from ..options import JsonOption, RenameOption, renames_of, user_cache
from ..output import print_json, print_table, progress, say
from ..streams import complain

#: The store in the user's cache that holds logs imported by ``--history``.
HISTORY: Final = "history"

#: The signature of each source when it was last read, by kind and path.
Signatures: TypeAlias = dict[tuple[str, Path], tuple[tuple[str, int, int], ...]]

#: Seconds between two scans of growing sources.
FOLLOW_EVERY_S: Final = 2.0

_HEADINGS: Final = ("run_id", "name", "kind", "state", "events", "steps")


def import_runs(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The tool that wrote the logs; 'auto' detects it.")],
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", readable=False, help="Log files, and folders of them.")
    ],
    store: Annotated[
        Path, typer.Option("--store", metavar="STORE", envvar="STEPTAPE_STORE", help="Folder to import the runs into.")
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Keep importing logs that grow, until Ctrl-C.")] = False,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Pattern of a line of a text log. Its named groups are metrics; one is 'step'."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column or key that counts steps, if several could.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column or key that tells the runs of a table apart.")
    ] = None,
    renames: RenameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import past runs from the logs of other tools.

    Kinds: auto, json, jsonl, mlflow, optuna, parquet, stable_baselines, table (CSV, TSV), tensorboard, text, trackio,
    trainer_state, wandb.
    IMPORT.md, installed in steptape/reference, describes what each log becomes. Importing again adds only what is new.
    Exit status 1 when a log could not be read; the others are still imported.
    """
    if pattern is not None and kind == AUTO:
        raise typer.BadParameter("--pattern applies to text logs: give the kind 'text', not 'auto'")
    chosen = _every_reader() if kind == AUTO else (reader_of(kind),)
    options = ReadOptions(pattern, step, renames_of(renames), is_growing=follow, run_column=run)
    seen: Signatures = {}
    outcomes = list(_told(find_and_import(paths, chosen, store, options, seen), as_json))
    for note in doubts(outcomes):
        complain(f"note: {note}")
    if follow:
        _follow(paths, chosen, store, options, seen, as_json)
    elif not as_json:
        _summarise(outcomes)
        for line in evaluation_losses(outcomes):
            say(line)
    if any(outcome.problem for outcome in outcomes if outcome.state is not State.SKIPPED):
        raise typer.Exit(FINDINGS)


def find_and_import(
    paths: Sequence[Path], chosen: Sequence[Reader], store: Path, options: ReadOptions, seen: Signatures
) -> Iterator[Outcome]:
    """Import the sources under some paths, with a progress bar. A source that cannot be read is an outcome, too.

    Args:
        paths: Files and folders.
        chosen: The readers to try.
        store: Folder to import the runs into.
        options: The user's options for the sources.
        seen: The signature of each source when it was last read; unchanged sources are skipped. Updated in place.
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
        with progress() as bar:
            task = bar.add_task("importing", total=len(changed))
            yield from import_sources(store, changed, options, lambda _: bar.advance(task))


def imported_history(paths: Sequence[Path]) -> tuple[list[Run], list[TelemetryError]]:
    """Import other tools' logs into the user's cache. Return the runs, and the problems with some of them.

    The run of a rewritten log is replaced, with a warning.

    Args:
        paths: Files and folders of logs.

    Raises:
        TelemetryError: The user has no cache, or no log can be read.
    """
    cache = user_cache()
    if cache is None:
        raise TelemetryError("there is no cache folder", fix="Name one in STEPTAPE_CACHE")
    store = cache.folder / HISTORY
    readers = _every_reader()
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
    return [open_run(store / run_id) for run_id in found], list(problems)


def _every_reader() -> tuple[Reader, ...]:
    """Return all readers that can be used, and warn about the others."""
    for problem in unusable_readers():
        complain(f"warning: {problem}")
    return all_readers()


def _told(outcomes: Iterator[Outcome], as_json: bool) -> Iterator[Outcome]:
    """Yield the outcomes and print each as it comes: problems on stderr, with --json every outcome on stdout."""
    for outcome in outcomes:
        if as_json:
            print_json(_document(outcome))
        if outcome.problem is not None:
            complain(f"{'skipped' if outcome.state is State.SKIPPED else 'warning'}: {outcome.problem}")
        yield outcome


def _follow(
    paths: Sequence[Path],
    chosen: Sequence[Reader],
    store: Path,
    options: ReadOptions,
    seen: Signatures,
    as_json: bool,
) -> None:
    """Scan the sources again and again, and print only changes."""
    try:
        while True:
            time.sleep(FOLLOW_EVERY_S)
            outcomes = find_and_import(paths, chosen, store, options, seen)
            changes = (outcome for outcome in outcomes if outcome.kind and outcome.state is not State.UNCHANGED)
            for outcome in _told(changes, as_json):
                if not as_json and outcome.events:
                    say(f"{outcome.run_id}: {counted(outcome.events, 'event')} more, step {outcome.steps}")
    except KeyboardInterrupt:
        return


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id or None,
        "name": outcome.name or None,
        "kind": outcome.kind or None,
        "path": str(outcome.path).encode(errors="replace").decode(),
        "state": str(outcome.state),
        "events": outcome.events,
        "steps": outcome.steps,
        "problem": outcome.problem,
        "evaluated": list(outcome.evaluated),
        "updates": outcome.updates,
        "rolled_back": outcome.rolled_back,
    }


def _summarise(outcomes: list[Outcome]) -> None:
    rows = [outcome for outcome in outcomes if outcome.run_id]
    if rows:
        print_table(
            _HEADINGS, [[_document(row)[name] for name in _HEADINGS] for row in rows], numeric=("events", "steps")
        )
        say()
    counts = Counter(outcome.state for outcome in outcomes)
    told = [f"{counts[state]} {state}" for state in State if counts[state] and state is not State.SKIPPED]
    incomplete = sum(outcome.problem is not None for outcome in rows)
    told += [f"{incomplete} read only in part"] if incomplete else []
    say(f"{counted(len(rows), 'run')}: {', '.join(told) or 'nothing to import'}")
