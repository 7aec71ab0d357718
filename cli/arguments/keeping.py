"""The arguments of ``export``, ``seal``, ``push``, ``delete`` and ``doctor``."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import typer

from ..options import (
    JsonOption,
    LogFormatOption,
    LogLevelOption,
    OneRunArgument,
    RunArgument,
    RunsArgument,
    StoreOption,
    one_of,
)

#: The formats that ``export`` writes.
ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]


class ExportArguments(NamedTuple):
    """Write a run's events as JSON lines, CSV or Parquet.

    CSV and Parquet have one row per event, with a column for each metric, empty or null where the event lacks it.
    """

    run: RunArgument
    store: StoreOption = None
    form: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            parser=one_of("jsonl", "csv", "parquet"),
            metavar="jsonl|csv|parquet",
            help="Format; by default that of the file's suffix, jsonl without one.",
        ),
    ] = None
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")] = None
    every: Annotated[bool, typer.Option("--all", help="Include the events that a resume rolled back.")] = False


class SealArguments(NamedTuple):
    """Convert the journals of ended runs to Parquet.

    A journal is the file that a run appends its events to. Skips journals that a live process still writes and, without
    --other-hosts, those of other machines.
    """

    runs: RunsArgument = None
    store: StoreOption = None
    other_hosts: Annotated[
        bool,
        typer.Option("--other-hosts", help="Also other machines' journals; only safe if none still writes there."),
    ] = False
    as_json: JsonOption = False


class PushArguments(NamedTuple):
    """Bring runs to a server, another folder or object storage, and prove that both logs are equal.

    STORE is a folder of runs, or one run's folder. Only what the target lacks is sent, so a push may be interrupted and
    repeated. At the end of a run both ends are sealed, and the digests of their logs are compared. With --log-level or
    --log-format, writes a log to stderr instead of messages.
    """

    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of runs, or s3://BUCKET/PREFIX.")]
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="http(s)://HOST[:PORT], s3://BUCKET/PREFIX, file://PATH or a folder."),
    ]
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: push events as they are written, and new runs. Ctrl-C ends it.")
    ] = False
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the token, of scope 'record'; else STEPTAPE_TOKEN holds it."),
    ] = None
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Give up when the target is away for so long; 60, or never."),
    ] = None
    log_level: LogLevelOption = None
    log_format: LogFormatOption = None
    as_json: JsonOption = False


class DeleteArguments(NamedTuple):
    """Delete runs by name, by age, or all but the newest.

    Deletes the whole folder of a run, with any checkpoints in it. Never deletes a run that is still being written. Asks
    first; where there is no terminal, --yes answers.
    """

    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Runs to delete: ids or names, or paths.")
    ] = None
    store: StoreOption = None
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Runs that ended longer ago, such as 90d or 12h.")
    ] = None
    keep_last: Annotated[int | None, typer.Option(metavar="N", min=0, help="All but the newest N.")] = None
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False
    as_json: JsonOption = False


class DoctorArguments(NamedTuple):
    """Find damage in a store or a run, and print what to do about it.

    Reads every file and changes nothing. Exit status 1 when it finds damage. With --json, prints one finding per line.
    """

    run: OneRunArgument = None
    store: StoreOption = None
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Check the training, too: updates, micro-batches, plan and ranks, and what a resume did to its data.",
        ),
    ] = False
    as_json: JsonOption = False
