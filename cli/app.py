"""Registers the commands of ``steptape COMMAND`` and maps errors to exit statuses.

The exit status is 0 when fine, 1 for findings, 2 for wrong usage or input that cannot be opened, and 3 for a comparison
without a verdict yet. Each command is a function in ``policy_commands`` or ``store_commands``, mostly in a module of
the same name. The module is imported only when the command is called, never by ``steptape --help``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from ..store.errors import TelemetryError
from .examples import epilog
from .exit_status import CANNOT_OPEN, INTERRUPTED
from .streams import complain, complain_of_error, print_line, wrap_standard_output

#: The message of the RuntimeError that DuckDB raises, instead of KeyboardInterrupt, when Ctrl-C interrupts a query.
_QUERY_INTERRUPTED: Final = "Query interrupted"

#: The summaries that ``--help`` lists: first sentences of the commands' docstrings.
SUMMARIES: Final = {
    "demo": "Train a small model, backtest two policies on it, train under them, and compare.",
    "runs": "List the newest runs of a store, oldest first.",
    "show": "Show one run: its curve, metrics and decisions.",
    "health": "Print what is wrong with a run, one line for each group of metrics.",
    "samples": "Print the samples that drove a loss spike, the highest losses first.",
    "stop": "Ask a running run to stop.",
    "save": "Ask a running run for a checkpoint.",
    "evaluate": "Ask a running run for an evaluation.",
    "tail": "Print a run's events as they are written, until it ends.",
    "replay": "Print what a policy decides over one recorded run.",
    "import": "Import past runs from the logs of other tools.",
    "backtest": "Report what a policy would have saved and cost on recorded runs.",
    "verify": "Prove that recorded and replayed decisions agree.",
    "sweep": "Backtest every combination of a policy's params.",
    "certify": "Choose the variant of a policy that saves most while it keeps a stated risk.",
    "check": "List every error and warning in policy files.",
    "test": "Run the unit tests of policies.",
    "diff": "Compare the behaviour of two policies on recorded runs.",
    "compare": "Say whether runs B are better than runs A: keep, discard or not yet.",
    "query": "Run read-only SQL over a store.",
    "export": "Write a run's events as JSON lines, CSV or Parquet.",
    "seal": "Convert the journals of ended runs to Parquet.",
    "push": "Bring runs to a server, another folder or object storage, and prove that both logs are equal.",
    "delete": "Delete runs by name, by age, or all but the newest.",
    "doctor": "Find damage in a store or a run, and print what to do about it.",
    "serve": "Serve the web pages and the HTTP API of a store.",
    "docs": "Print where the documents are.",
}

#: What replaces each command that is gone.
_REMOVED: Final = {"retain": "The how-to 'Free disk space' lists what nothing needs any more by 'steptape query'"}

#: Why each option that is gone is not needed, by its command.
_REMOVED_OPTIONS: Final = dict.fromkeys(
    (("backtest", "--no-cache"), ("diff", "--no-cache")), "Leave it out: results are no longer cached"
)

#: Function names of the commands whose own name is a Python keyword, or would be collected by pytest.
_FUNCTIONS: Final = {"import": "import_runs", "test": "run_tests"}

#: Modules of the commands that share one.
_MODULES: Final = dict.fromkeys(("stop", "save", "evaluate"), "requests")

#: The commands about policies. The others are about stores and runs.
_ON_POLICIES: Final = frozenset(
    ("backtest", "certify", "check", "compare", "diff", "health", "replay", "sweep", "test", "verify")
)


class Commands(typer.core.TyperGroup):
    """The commands, each imported when it is called.

    Contexts and formatters are ``Any``: their classes are click's or, in newer releases, typer's own.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, in the order of the help."""
        return list(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; return None if there is no command of that name."""
        if cmd_name in _REMOVED:
            raise TelemetryError("this command is gone", where=f"steptape {cmd_name}", fix=_REMOVED[cmd_name])
        if cmd_name not in SUMMARIES:
            near = get_close_matches(cmd_name, SUMMARIES, n=1)
            if near:
                ctx.fail(f"No such command '{cmd_name}'. Did you mean '{near[0]}'?")
            return None
        name = _FUNCTIONS.get(cmd_name, cmd_name)
        room = "policy_commands" if cmd_name in _ON_POLICIES else "store_commands"
        module = import_module(f".{room}.{_MODULES.get(name, name)}", __package__)
        function = getattr(module, name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name, epilog=epilog(cmd_name))(function)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and give a bare --ray an empty address: typer has no options with optional values."""
        name, command, rest = super().resolve_command(ctx, args)
        for option in rest:
            if (name, option) in _REMOVED_OPTIONS:
                fix = _REMOVED_OPTIONS[name, option]
                raise TelemetryError(f"{option} is gone", where=f"steptape {name}", fix=fix)
        return name, command, with_bare_ray(rest)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def with_bare_ray(args: Sequence[str]) -> list[str]:
    """Return arguments in which a ``--ray`` that no address follows is ``--ray=``."""
    changed = []
    for arg, following in zip_longest(args, args[1:], fillvalue="-"):
        changed.append("--ray=" if arg == "--ray" and following.startswith("-") else arg)
    return changed


app = typer.Typer(
    name="steptape",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # It takes 30 ms, a third of --help.

        print_line(f"steptape {version('steptape')}")
        raise typer.Exit


@app.callback()
def steptape(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Record training runs, replay policies over them, and prove that live and replayed decisions agree.

    A policy is a YAML file of rules that watch a run and order operations, such as a checkpoint or a stop.
    """


def main() -> None:
    """Entry point of the ``steptape`` command."""
    wrap_standard_output()
    try:
        app()
    except (TelemetryError, OSError) as error:
        complain_of_error(error)
        sys.exit(CANNOT_OPEN)
    except RuntimeError as error:
        if str(error) != _QUERY_INTERRUPTED:
            raise
        sys.exit(INTERRUPTED)
    except UnicodeEncodeError as error:  # Only a path can cause it: our output takes any text, but Parquet takes UTF-8.
        complain(f"error: a path is not UTF-8; got {error.object!r}. Rename the folder")
        sys.exit(CANNOT_OPEN)
