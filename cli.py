"""The command line: ``steptape COMMAND``. Exit status 0 fine, 1 findings, 2 usage or cannot open."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from . import replay as replay_room
from .addressing import age, complain_of, events_named, policy_named, run_named, runs_chosen
from .backtest_command import backtest
from .cli_examples import epilog
from .cli_options import (
    CANNOT_OPEN,
    FINDINGS,
    INTERRUPTED,
    JsonOption,
    PolicyArgument,
    RunArgument,
    SetOption,
    StoreArgument,
    StoreOption,
)
from .console import complain, counted, print_json, print_rows, print_table, say
from .difference_command import diff
from .doctor_command import doctor
from .import_command import import_runs
from .output_file import output_file
from .policy_commands import check, run_tests
from .rules import Decision, Outcome, RuleError
from .showing import run_document, run_sheet, started_of
from .standard_output import take_standard_output
from .store import TelemetryError, open_run, open_store
from .store.deletion import delete_run, expendable
from .store.event_json import event_to_line
from .store.sealing import foreign_journals
from .store.sealing import seal as seal_run
from .sweep_command import sweep
from .tail_command import tail
from .verify_command import verify

app = typer.Typer(
    name="steptape",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


#: What DuckDB raises where Ctrl-C meets a query that runs: no KeyboardInterrupt.
_INTERRUPTED: Final = "Query interrupted"


class ExportFormat(StrEnum):
    """What ``export`` can write."""

    JSONL = "jsonl"


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"steptape {version('steptape')}")
        raise typer.Exit


@app.callback()
def steptape(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Record training runs, replay rule files over them, and prove that live and replay agree."""


@app.command()
def demo(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Where to leave the demo's runs.")] = Path("runs"),
) -> None:
    """Train, backtest, train under rules, compare."""
    try:
        from .demo import run_demo
    except ImportError as error:
        raise TelemetryError(
            f"the demo trains a model and needs {error.name}", fix="pip install 'steptape[demo]', or 'make demo'"
        ) from None
    if not run_demo(store):
        raise typer.Exit(FINDINGS)


@app.command()
def runs(store: StoreArgument = Path("runs"), as_json: JsonOption = False) -> None:
    """List the runs of a store, oldest first."""
    entries, problems = open_store(store).entries()
    rows = [entry.summary.to_row() for entry in entries]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        columns = ("run_id", "name", "group", "status", "started", "duration_s", "steps", "planned_steps")
        headings = [f"{name} (UTC)" if name == "started" else name for name in columns]
        shown = [row | {"started": started_of(row)} for row in rows]
        print_table(headings, [[row[name] for name in columns] for row in shown], numeric=columns[5:])
    else:
        say(f"no runs in {store}: 'steptape import' brings those that you have, and 'steptape demo {store}' makes some")
    complain_of(problems)


@app.command()
def show(
    run: RunArgument,
    store: StoreOption = None,
    plotted: Annotated[
        list[str] | None, typer.Option("--plot", metavar="METRIC", help="Plot this metric; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its course, metrics and decisions."""
    opened = run_named(run, store)
    if as_json:
        print_json(run_document(opened))
    else:
        run_sheet(opened, plotted or ())


app.command()(tail)


@app.command()
def replay(
    policy: PolicyArgument,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A run, or a .jsonl file of events ('-' for standard input).")
    ],
    store: StoreOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a policy decides over one run.

    With --json one line a decision. Its event_index counts the events of the deciding rank (0) from 0, along the run's
    effective timeline; what recorded rules did (decisions, errors, warnings) is not counted.
    """
    loaded = policy_named(policy, settings)
    replayed = replay_room.replay(loaded, events_named(source, store))
    if as_json:
        for judged in replayed.outcomes:
            print_json(judged.to_json())
    else:
        _print_replay(replayed)


app.command("import")(import_runs)


app.command()(backtest)


app.command()(verify)
app.command()(sweep)
app.command()(check)
app.command("test")(run_tests)
app.command()(diff)


@app.command()
def query(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of runs, or the folder of one run.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One read-only statement over the views.")],
    as_json: JsonOption = False,
) -> None:
    """Run read-only SQL over a store.

    Views: runs, events, steps, evals, saves, samples, decisions, windows. Table macros: series(name), rolling(n).
    """
    source = open_run(store) if (store / "run.json").exists() else open_store(store)
    table = source.sql(sql)
    rows = table.to_pylist()
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_rows(rows, table.column_names)


@app.command()
def export(
    run: RunArgument,
    store: StoreOption = None,
    form: Annotated[ExportFormat, typer.Option("--format", help="jsonl: one event a line.")] = ExportFormat.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of standard output.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also the events that a resume rolled back.")] = False,
) -> None:
    """Write a run's events as text, in order."""
    as_line = {ExportFormat.JSONL: event_to_line}[form]
    with nullcontext(sys.stdout) if output is None else output_file(output) as file:
        events = run_named(run, store).events(rank=None, attempts="all" if every else "effective")
        file.writelines(as_line(event) + "\n" for event in events)


@app.command()
def seal(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to seal.")] = None,
    store: StoreOption = None,
    other_hosts: Annotated[
        bool, typer.Option("--other-hosts", help="What other machines wrote, too: say so only when none of them lives.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn the journals of dead runs into Parquet.

    Without RUN, of every run of the store. What a live process still writes stays as it is, and so does what another
    machine wrote.
    """
    chosen, problems = runs_chosen(runs, store)
    complain_of(problems)
    if not chosen and not as_json:
        say(f"no runs in {store}")
    for run in chosen:
        events = seal_run(run.folder, other_hosts=other_hosts)
        if as_json:
            print_json({"run_id": run.run_id, "events_sealed": events})
        else:
            say(f"{run.run_id}: {counted(events, 'event')} sealed")
        for path in foreign_journals(run.folder):
            complain(f"{path}: another machine wrote it and may still do; --other-hosts seals it all the same")


@app.command()
def delete(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to delete.")] = None,
    store: StoreOption = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --store: runs that ended longer ago, as 90d or 12h.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --store: all but the newest N.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which runs would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete runs, by name or by age and number.

    The whole folder goes, with any checkpoints in it. A run that is being written is never deleted.
    """
    if runs and (older_than or keep_last is not None):
        raise typer.BadParameter("name a RUN, or let --older-than and --keep-last choose; not both")
    if runs:
        folders = [run_named(key, store).folder for key in runs]
    elif store is not None and (older_than or keep_last is not None):
        entries, problems = open_store(store).entries()
        complain_of(problems)
        limit = None if older_than is None else age(older_than)
        now = datetime.now(UTC).replace(tzinfo=None)
        chosen = expendable(entries, now=now, older_than=limit, keep_last=keep_last)
        folders = [entry.folder for entry in chosen]
    else:
        raise typer.BadParameter("name a RUN, or give --store STORE with --older-than AGE or --keep-last N")
    if not folders and not as_json:
        say("no run to delete")
    for folder in folders:
        if not dry_run:
            delete_run(folder)
        if as_json:
            print_json({"folder": str(folder), "deleted": not dry_run})
        else:
            say(f"{'would delete' if dry_run else 'deleted'} {folder}")


app.command()(doctor)


@app.command()
def serve(
    store: StoreArgument = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own take tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8420,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of 'token scope name'; scopes: read, write, admin.")
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name that clients call this server.")
    ] = None,
    policies: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Rule files that can be asked about by name.")
    ] = None,
) -> None:
    """Answer queries over HTTP.

    /api/v1/runs and what lies beside it, described in /api/v1/openapi.json. Ctrl-C ends it. Tokens may also stand in
    the environment, as STEPTAPE_TOKENS.
    """
    from .api import serve as serve_store

    serve_store(
        open_store(store).path,
        host=host,
        port=port,
        tokens_path=tokens,
        allowed_hosts=allowed_hosts or (),
        policies_path=policies,
    )


for command in app.registered_commands:
    assert command.callback is not None
    command.epilog = epilog(command.name or command.callback.__name__)


def main() -> None:
    """Entry point of the ``steptape`` command."""
    take_standard_output()
    try:
        app()
    except (TelemetryError, OSError) as error:
        complain(f"error: {error}")
        sys.exit(CANNOT_OPEN)
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        sys.exit(INTERRUPTED)
    except UnicodeEncodeError as error:  # Of a path: output takes any text, and what reads Parquet takes UTF-8 alone.
        complain(f"error: a path is not UTF-8; got {error.object!r}. Rename the folder")
        sys.exit(CANNOT_OPEN)


def _print_replay(replayed: replay_room.Replay) -> None:
    rows = [
        (
            judged.outcome.step,
            f"{judged.event}, {judged.outcome.value_lag} late" if judged.outcome.value_lag else judged.event,
            judged.outcome.controller,
            _said(judged.outcome),
            judged.validity,
            judged.to_json().get("values"),
        )
        for judged in replayed.outcomes
    ]
    print_table(("step", "event", "controller", "operations", "validity", "values"), rows, numeric=("step",))
    stop = replayed.stop
    end = "no stop" if stop is None else f"stop at step {stop.outcome.step} ({stop.validity})"
    say(f"{counted(replayed.event_count, 'event')}, {counted(len(replayed.decisions), 'decision')}, {end}")


def _said(outcome: Outcome) -> object:
    """What an outcome comes to, in a cell: operations, in brackets where none is carried out."""
    if isinstance(outcome, Decision):
        return outcome.operations if outcome.acts else f"shadow ({', '.join(outcome.operations)})"
    return outcome.error if isinstance(outcome, RuleError) else "warning"


if __name__ == "__main__":
    main()
