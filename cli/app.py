"""Registers the commands of ``steptape COMMAND`` and maps errors to exit statuses.

The exit status is 0 when fine, 1 for findings, 2 for wrong usage or input that cannot be opened, and 3 for a comparison
without a verdict yet. The arguments of a command are a ``NamedTuple`` in ``arguments``, a light module. The command is
a function that takes them, in ``policy_commands`` or ``store_commands``, and is imported only when it is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
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
from .removed import refuse_removed_command, refuse_removed_options, refuse_store
from .streams import complain, complain_of_error, print_line, wrap_standard_output

#: The message of the RuntimeError that DuckDB raises, instead of KeyboardInterrupt, when Ctrl-C interrupts a query.
_QUERY_INTERRUPTED: Final = "Query interrupted"

#: The commands by the groups of ``--help``, with their summaries: first sentences of the docstrings of their arguments.
GROUPS: Final = {
    "Record and import": {
        "demo": "Train a small model, backtest two policies on it, train under them, and compare.",
        "import": "Import past runs from the logs of other tools.",
        "ask": "Ask a running run to stop, or for a checkpoint or an evaluation.",
    },
    "Judge": {
        "backtest": "Report what a policy would have saved and cost on recorded runs.",
        "sweep": "Backtest every combination of a policy's params.",
        "certify": "Choose the variant of a policy that saves most while it keeps a stated risk.",
        "diff": "Compare the behaviour of two policies on recorded runs.",
        "compare": "Say whether runs B are better than runs A: keep, discard or not yet.",
        "verify": "Prove that recorded and replayed decisions agree.",
    },
    "Rules": {
        "check": "List every error and warning in policy files.",
        "test": "Run the unit tests of policies.",
        "replay": "Print what a policy decides over one recorded run.",
    },
    "Look": {
        "runs": "List the newest runs of a store, oldest first.",
        "show": "Show one run: its curve, metrics and decisions.",
        "health": "Print what is wrong with a run, one line for each group of metrics.",
        "tail": "Print a run's events as they are written, until it ends.",
        "samples": "Print the samples that drove a loss spike, the highest losses first.",
        "query": "Run read-only SQL over a store, or over one run.",
        "serve": "Serve the web pages and the HTTP API of a store.",
        "docs": "Print where the documents are.",
    },
    "Keep and move": {
        "export": "Write a run's events as JSON lines, CSV or Parquet.",
        "seal": "Convert the journals of ended runs to Parquet.",
        "push": "Bring runs to a server, another folder or object storage, and prove that both logs are equal.",
        "delete": "Delete runs by name, by age, or all but the newest.",
        "doctor": "Find damage in a store or a run, and print what to do about it.",
    },
}

#: The module in ``arguments`` of each group.
_MODULES: Final = {
    "Record and import": "recording",
    "Judge": "judging",
    "Rules": "ruling",
    "Look": "looking",
    "Keep and move": "keeping",
}

#: The group of each command.
_GROUP_OF: Final = {name: group for group, summaries in GROUPS.items() for name in summaries}

#: Function names of the commands whose own name is a Python keyword, or would be collected by pytest.
_FUNCTIONS: Final = {"import": "import_runs", "test": "run_tests"}

#: The commands about policies. The others are about stores and runs.
_ON_POLICIES: Final = frozenset(
    ("backtest", "certify", "check", "compare", "diff", "health", "replay", "sweep", "test", "verify")
)


class Command(typer.core.TyperCommand):
    """A command that answers what was removed from it with what replaces it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        refuse_removed_options(self.name or "", args)
        ctx.allow_extra_args = True
        if rest := super().parse_args(ctx, args):
            refuse_store(self.name or "", rest[0])
            ctx.fail(f"Got unexpected extra arguments ({' '.join(rest)})")
        return rest


class Commands(typer.core.TyperGroup):
    """The commands. Each is imported when it is called, its arguments also for its help.

    Contexts and formatters are ``Any``: their classes are click's or, in newer releases, typer's own.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, in the order of the help."""
        return list(_GROUP_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, with its arguments; None if there is none."""
        refuse_removed_command(cmd_name)
        if cmd_name not in _GROUP_OF:
            near = get_close_matches(cmd_name, _GROUP_OF, n=1)
            if near:
                ctx.fail(f"No such command '{cmd_name}'. Did you mean '{near[0]}'?")
            return None
        module = import_module(f".arguments.{_MODULES[_GROUP_OF[cmd_name]]}", __package__)
        arguments = getattr(module, f"{cmd_name.capitalize()}Arguments")

        @functools.wraps(arguments, updated=())
        def run(**values: Any) -> None:
            _function_of(cmd_name)(arguments(**values))

        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name, cls=Command, epilog=epilog(cmd_name))(run)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and give a bare --ray an empty address: typer has no options with optional values."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, with_bare_ray(rest)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        width = max(map(len, _GROUP_OF))
        for group, summaries in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in summaries.items()])


def _function_of(command: str) -> Callable[[Any], None]:
    """Import a command and return its function, which takes its arguments."""
    name = _FUNCTIONS.get(command, command)
    room = "policy_commands" if command in _ON_POLICIES else "store_commands"
    function: Callable[[Any], None] = getattr(import_module(f".{room}.{name}", __package__), name)
    return function


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
