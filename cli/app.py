"""Registers the commands of ``steptape COMMAND`` and maps errors to exit statuses.

The exit status is 0 when fine, 1 for findings, 2 for wrong usage or input that cannot be opened, and 3 for a comparison
without a verdict yet. The arguments of a command are a ``NamedTuple`` in ``options``, a light module. The command is
a function that takes them, in a module of ``commands`` that is imported only when it is called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from ..store.errors import TelemetryError
from .removed import refuse_removed_command, refuse_removed_options, refuse_store
from .streams import CANNOT_OPEN, INTERRUPTED, complain, complain_of_error, print_line, wrap_standard_output

#: The message of the RuntimeError that DuckDB raises, instead of KeyboardInterrupt, when Ctrl-C interrupts a query.
_QUERY_INTERRUPTED: Final = "Query interrupted"

#: The commands by the groups of ``--help``, with their summaries: first sentences of the docstrings of their arguments.
GROUPS: Final = {
    "Record and import": {
        "demo": "Train a small model, backtest two rule files on it, train under them, and compare.",
        "import": "Import past runs from the logs of other tools.",
        "note": "Note something about runs: a text, another name, tags, the archive.",
        "ask": "Ask a running run to stop, or for a checkpoint or an evaluation.",
    },
    "Judge": {
        "recommend": "Say which rule is worth arming, what it saves and what it risks.",
        "backtest": "Report what a rule file would have saved and cost on recorded runs.",
        "sweep": "Backtest every combination of a rule file's params.",
        "certify": "Choose the variant of a rule file that saves most while it keeps a stated risk.",
        "diff": "Compare the behaviour of two rule files on recorded runs.",
        "compare": "Say whether runs B are better than runs A: keep, discard or not yet.",
        "verify": "Prove that recorded and replayed decisions agree.",
    },
    "Rules": {
        "check": "List every error and warning in rule files.",
        "test": "Run the unit tests of rule files.",
        "replay": "Print what a rule file decides over one recorded run.",
        "rules": "List the rule files that come with steptape, print one, or print the full form of rules.",
    },
    "Look": {
        "runs": "List the newest runs of a store, oldest first.",
        "show": "Show one run: its curve, metrics and decisions.",
        "health": "Print what is wrong with a run, one line for each group of metrics.",
        "tail": "Print a run's events as they are written, until it ends.",
        "samples": "Print the samples that drove a loss spike, or those that stay hard.",
        "query": "Run read-only SQL over a store, or over one run.",
        "serve": "Serve the web pages and the HTTP API of a store.",
        "alert": "Send a message when a run dies, stalls, runs again or ends, or when its rules act.",
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

#: The group of each command.
_GROUP_OF: Final = {name: group for group, summaries in GROUPS.items() for name in summaries}

#: The module and function of the commands that have no module of their own name.
_FUNCTIONS: Final = {
    "import": ("import_runs", "import_runs"),
    "note": ("ask", "note"),
    "query": ("listings", "query"),
    "runs": ("listings", "runs"),
    "samples": ("listings", "samples"),
    "test": ("check", "run_tests"),
}

#: Example command lines, by command.
EXAMPLES: Final = {
    "alert": (
        "steptape alert runs --notify slack://TOKEN/TOKEN/TOKEN --url https://runs.example.org",
        "steptape alert runs --where status:crashed,stalled --once",
    ),
    "ask": (
        "steptape ask stop digits --reason 'the loss has diverged'",
        "steptape ask save digits --reason 'before the node goes down'",
    ),
    "backtest": (
        "steptape backtest overfitting --store runs",
        "steptape backtest rules.yaml digits --store runs --set spike=2.5 --html report.html",
        "steptape backtest loss_spike --history logs --rename train/loss=loss",
    ),
    "certify": (
        "steptape certify rules.yaml --store runs --set patience=1..20 --risk 'regret > 1%' --at-most 10%",
        "steptape certify --check certificate.json --store runs",
    ),
    "check": ("steptape check rules.yaml --store runs",),
    "compare": (
        "steptape compare base wider --store runs",
        "steptape compare group=base config.lr=0.003 --store runs --at step=1000 --at-most-tries 20 --min-effect 1%",
    ),
    "delete": ("steptape delete --store runs --older-than 90d", "steptape delete digits --store runs"),
    "demo": ("steptape demo", "steptape demo --store digits --torch"),
    "diff": ("steptape diff rules.yaml rules.yaml --set-new spike=2.5 --store runs",),
    "docs": ("steptape docs",),
    "doctor": ("steptape doctor --store runs", "steptape doctor runs/20260102T030405-5ea1ed --json"),
    "export": (
        "steptape export digits --store runs --output digits.csv",
        "steptape export digits --store runs | jq .metrics.loss",
    ),
    "health": ("steptape health digits --store runs", "steptape health digits --store runs --json | jq .state"),
    "import": (
        "steptape import auto logs --store runs",
        "steptape import text out.log --store runs --pattern '<(?P<step>\\d+)> loss (?P<loss>\\S+)'",
    ),
    "note": (
        "steptape note digits --name 'digits, wider' --tag best --store runs",
        "steptape note base wide --archive --text 'the labels were wrong'",
    ),
    "push": ("steptape push runs https://runs.example.org --follow", "steptape push runs file:///mnt/disk/runs"),
    "query": ("steptape query 'SELECT run_id, min(eval_loss) FROM evals GROUP BY run_id' --store runs",),
    "recommend": (
        "steptape recommend logs --output recommended.yaml",
        "steptape recommend --store runs --where started:30d --cost-per-hour 2 --search",
    ),
    "replay": (
        "steptape replay overfitting digits --store runs",
        "steptape export digits --store runs | steptape replay rules.yaml - --json",
    ),
    "rules": (
        "steptape rules",
        "steptape rules --expand 'stop if eval_loss has not improved for 5 evaluations'",
    ),
    "runs": ("steptape runs", "steptape runs --store runs --json | jq -r .run_id"),
    "samples": ("steptape samples digits --store runs --step 300", "steptape samples digits --store runs"),
    "seal": ("steptape seal --store runs",),
    "serve": ("steptape serve runs", "steptape serve runs --rules-folder rules --port 0"),
    "show": ("steptape show digits --store runs", "steptape show digits --store runs --plot eval_loss --plot lr"),
    "sweep": (
        "steptape sweep rules.yaml --store runs --set spike=1.5..5..0.5",
        "steptape sweep 'stop if eval_loss has not improved for {2..10} evaluations' --store runs --split families",
    ),
    "tail": (
        "steptape tail digits --store runs",
        "steptape tail digits --store runs --kind decision --json | jq .attrs.controller",
    ),
    "test": ("steptape test rules.test.yaml", "steptape test loss_spike"),
    "verify": ("steptape verify digits --store runs", "steptape verify --store runs"),
}


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
        arguments = getattr(import_module(".options", __package__), f"{cmd_name.capitalize()}Arguments")

        @functools.wraps(arguments, updated=())
        def run(**values: Any) -> None:
            _function_of(cmd_name)(_filled(arguments, values))

        vars(run)["__signature__"] = inspect.Signature(list(_parameters(arguments)))
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name, cls=Command, epilog=_epilog(cmd_name))(run)
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


def _parameters(arguments: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command. A group of options has its options in its place."""
    for parameter in inspect.signature(arguments).parameters.values():
        if isinstance(parameter.default, tuple):
            yield from _parameters(type(parameter.default))
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _filled(arguments: Any, values: Mapping[str, Any]) -> Any:
    """Return the arguments, and the groups in them, with these values."""
    groups = {name: type(each) for name, each in arguments._field_defaults.items() if isinstance(each, tuple)}
    own = (_filled(groups[name], values) if name in groups else values[name] for name in arguments._fields)
    return arguments(*own)


def _epilog(command: str) -> str | None:
    """Format the examples of a command for the end of its help; None if it has none."""
    lines = EXAMPLES.get(command, ())
    # The control character stops the help formatter from rewrapping the lines.
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines))) if lines else None


def _function_of(command: str) -> Callable[[Any], None]:
    """Import a command and return its function, which takes its arguments."""
    module, name = _FUNCTIONS.get(command, (command, command))
    function: Callable[[Any], None] = getattr(import_module(f".commands.{module}", __package__), name)
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
    """Record training runs, replay rule files over them, and prove that live and replayed decisions agree.

    A rule file is a YAML file of rules that watch a run and order operations, such as a checkpoint or a stop.
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
