"""``steptape import``: past runs from other tools' logs, one line a run, and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .cli_options import FINDINGS, JsonOption
from .console import complain, print_json, print_table, progress, say
from .importers import (
    AUTO,
    Outcome,
    ReadOptions,
    Source,
    State,
    find_sources,
    import_sources,
    reader_of,
    readers,
    signature,
)

#: Seconds between two looks at sources that grow.
FOLLOW_EVERY_S: Final = 2.0

_HEADINGS: Final = ("run_id", "name", "kind", "state", "events", "steps")


def import_runs(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What the paths hold; 'auto' to recognise it.")],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files and folders of logs.")],
    store: Annotated[
        Path, typer.Option("--store", metavar="STORE", envvar="STEPTAPE_STORE", help="Where the runs go.")
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Keep up with sources that grow, until Ctrl-C.")] = False,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="What a line of a text log looks like: named groups are its values, one is 'step'."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column or key that counts steps, where several could.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Import past runs from the logs of other tools.

    Kinds: auto, jsonl, mlflow, optuna, parquet, table (CSV, TSV), tensorboard, text, trackio, trainer_state, wandb.
    IMPORT.md says what becomes what. Importing again adds what is new and changes nothing else. Exit status 1 when
    something could not be read; everything else was imported then.
    """
    if pattern is not None and kind == AUTO:
        raise typer.BadParameter("--pattern says how lines of text look: say 'text' instead of 'auto'")
    chosen = readers() if kind == AUTO else (reader_of(kind),)
    options = ReadOptions(pattern, step, is_growing=follow)
    outcomes = list(_passed(find_and_import(paths, chosen, store, options), as_json))
    if follow:
        _follow(paths, chosen, store, options, as_json)
    elif not as_json:
        _summarise(outcomes)
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(FINDINGS)


def find_and_import(
    paths: list[Path], chosen: Any, store: Path, options: ReadOptions, seen: dict[Path, Any] | None = None
) -> Iterator[Outcome]:
    """Import what is under some paths, with a progress bar; what cannot be looked at is an outcome, too.

    Args:
        paths: Files and folders.
        chosen: The readers.
        store: Where the runs go.
        options: What a person said about the sources.
        seen: How each source was when it was read last; those that are still so are passed over. Updated.
    """
    found = find_sources(paths, chosen)
    for problem in found.problems:
        yield Outcome(State.FAILED, "", Path(problem.where), problem=str(problem))
    before = {} if seen is None else dict(seen)
    now = {source.path: signature(source) for source in found.sources}
    changed = [source for source in found.sources if before.get(source.path) != now[source.path]]
    if seen is not None:
        seen.update(now)
    if not changed and not found.problems and not before:
        files = "no file" if not found.unknown else f"none of {found.unknown} files"
        yield Outcome(State.FAILED, "", paths[0], problem=f"{paths[0]}: {files} there that a reader knows")
    with progress() as bar:
        task = bar.add_task("importing", total=len(changed))

        def advance(_: Source) -> None:
            bar.advance(task)

        yield from import_sources(store, changed, options, advance)


def _passed(outcomes: Iterator[Outcome], as_json: bool) -> Iterator[Outcome]:
    """The outcomes, each told as it comes: problems on stderr, with --json all on stdout."""
    for outcome in outcomes:
        if as_json:
            print_json(_document(outcome))
        if outcome.problem is not None:
            complain(f"warning: {outcome.problem}")
        yield outcome


def _follow(paths: list[Path], chosen: Any, store: Path, options: ReadOptions, as_json: bool) -> None:
    """Look again and again; only what changes is told."""
    seen: dict[Path, Any] = {}
    try:
        while True:
            for outcome in _passed(find_and_import(paths, chosen, store, options, seen), as_json):
                if not as_json and outcome.state in (State.NEW, State.GROWN):
                    say(f"{outcome.run_id}: {outcome.events} events, step {outcome.steps}")
            time.sleep(FOLLOW_EVERY_S)
    except KeyboardInterrupt:
        return


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id or None,
        "name": outcome.name or None,
        "kind": outcome.kind or None,
        "path": str(outcome.path),
        "state": str(outcome.state),
        "events": outcome.events,
        "steps": outcome.steps,
        "problem": outcome.problem,
    }


def _summarise(outcomes: list[Outcome]) -> None:
    rows = [outcome for outcome in outcomes if outcome.state is not State.FAILED]
    if rows:
        print_table(
            _HEADINGS, [[_document(row)[name] for name in _HEADINGS] for row in rows], numeric=("events", "steps")
        )
        say()
    counts = Counter(outcome.state for outcome in outcomes)
    told = [f"{counts[state]} {state}" for state in State if counts[state]]
    incomplete = sum(outcome.problem is not None for outcome in rows)
    told += [f"{incomplete} with something left out"] if incomplete else []
    say(f"{len(rows)} runs: {', '.join(told) or 'nothing to import'}")
