"""The arguments of ``runs``, ``show``, ``health``, ``tail``, ``samples``, ``query``, ``serve`` and ``docs``."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..options import (
    JsonOption,
    LogFormatOption,
    LogLevelOption,
    OneRunArgument,
    RenameOption,
    RunArgument,
    SetOption,
    StoreOption,
)


class RunsArguments(NamedTuple):
    """List the newest runs of a store, oldest first."""

    store: StoreOption = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most runs to list, the newest. 100 in a table, all as JSON.")
    ] = None
    as_json: JsonOption = False


class ShowArguments(NamedTuple):
    """Show one run: its curve, metrics and decisions."""

    run: RunArgument
    store: StoreOption = None
    plotted: Annotated[
        list[str] | None, typer.Option("--plot", metavar="METRIC", help="Plot this metric; repeatable.")
    ] = None
    as_json: JsonOption = False


class HealthArguments(NamedTuple):
    """Print what is wrong with a run, one line for each group of metrics.

    Replays a policy over the run. A rule fires now if it has fired, and was true at each evaluation since: an ended run
    keeps the state of its end. A group whose metrics the run lacks is not evaluable, and the line names them. Any
    metric whose newest value is NaN or infinite is critical, whatever its name. Causes and actions follow, from the
    policy's controllers whose names begin with diagnosis_.
    Exit status 1 when a group is critical or has a warning, 3 when no group of the policy could be evaluated.
    """

    run: RunArgument
    store: StoreOption = None
    policy: Annotated[
        str, typer.Option("--policy", metavar="POLICY", help="A policy file, or the name of a shipped policy.")
    ] = "nano_train"
    settings: SetOption = None
    renames: RenameOption = None
    as_json: JsonOption = False


class TailArguments(NamedTuple):
    """Print a run's events as they are written, until it ends.

    Ctrl-C stops it. Exit status 1 when the run failed or crashed. With --json, prints one event per line, as
    'export' writes them.
    """

    run: RunArgument
    store: StoreOption = None
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of existing events to print first.")
    ] = 10
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Print only events of this kind; repeatable.")
    ] = None
    rank: Annotated[int, typer.Option(metavar="R", min=0, help="Rank of the process whose events to print.")] = 0
    as_json: JsonOption = False


class SamplesArguments(NamedTuple):
    """Print the samples that drove a loss spike, the highest losses first.

    The excess is a sample's loss minus the normal loss: the median of the 50 updates before. The share is its part of
    all excess. A sample was seen and had its earlier loss before the spike.
    """

    run: RunArgument
    step: Annotated[int, typer.Option("--step", metavar="N", help="The step with the spike.")]
    store: StoreOption = None
    top: Annotated[int, typer.Option(metavar="N", help="Most samples to print.")] = 20
    as_json: JsonOption = False


class QueryArguments(NamedTuple):
    """Run read-only SQL over a store, or over one run.

    Views: runs, events, steps, evals, saves, samples, vectors, decisions, windows. Table macros: series(name),
    rolling(n), spiking_samples(step).
    """

    sql: Annotated[str, typer.Argument(metavar="SQL", help="One read-only SQL statement over the views.")]
    run: OneRunArgument = None
    store: StoreOption = None
    as_json: JsonOption = False


class ServeArguments(NamedTuple):
    """Serve the web pages and the HTTP API of a store.

    The pages are at /, the API is under /api/v1 and described in /api/v1/openapi.json. Creates the store if there is
    none, and shows its runs as they come. Ctrl-C stops the server. Tokens may also be in the environment variable
    STEPTAPE_TOKENS.
    """

    store: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE",
            show_default=False,
            help="Folder of runs, or s3://BUCKET/PREFIX; by default STEPTAPE_STORE, else 'runs'.",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on; one that other machines can reach needs tokens.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8420
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of lines 'token scope name'; scopes: record, read, write, admin."),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="A host name by which clients reach this server."),
    ] = None
    quota: Annotated[
        float | None, typer.Option(metavar="GB", min=0, help="Most gigabytes of the runs that one token pushes; 1000.")
    ] = None
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Path under which a reverse proxy serves this server, as /steptape.")
    ] = ""
    policies: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of policy files that clients can use by name.")
    ] = None
    log_level: LogLevelOption = "warning"
    log_format: LogFormatOption = "text"


class DocsArguments(NamedTuple):
    """Print where the documents are.

    The reference of the rule language, of the store format and of imports comes with the package, as Markdown.
    """
