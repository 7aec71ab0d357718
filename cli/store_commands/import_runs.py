"""``steptape import``: imports past runs from other tools' logs, and prints one line per run and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ...importers.importing import Outcome, State
from ...importers.registry import AUTO, reader_of
from ...importers.source import Reader, ReadOptions
from ...store.plural import counted
from ..exit_status import FINDINGS
from ..import_notes import doubts, evaluation_losses
from ..imports import Signatures, every_reader, find_and_import
from ..options import JsonOption
from ..output import print_json, print_table, say
from ..policy_options import RayOption, RenameOption, ray_pool, renames_of
from ..streams import complain

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
    ray: RayOption = None,
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
    chosen = every_reader() if kind == AUTO else (reader_of(kind),)
    options = ReadOptions(pattern, step, renames_of(renames), is_growing=follow, run_column=run)
    workers = ray_pool(ray)
    seen: Signatures = {}
    outcomes = list(_told(find_and_import(paths, chosen, store, options, seen, workers), as_json))
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
