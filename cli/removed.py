"""Answers removed commands, options and ways to name a store with what replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..store.errors import TelemetryError

#: What replaces each removed command.
COMMANDS: Final = {
    "evaluate": "Write 'steptape ask evaluate RUN'",
    "retain": "The how-to 'Free disk space' lists what nothing needs any more by 'steptape query'",
    "save": "Write 'steptape ask save RUN'",
    "stop": "Write 'steptape ask stop RUN'",
}

_OBJECTIVE: Final = "Write --objective METRIC:min or METRIC:max"
_PAIRS: Final = "Write --pairs KEY, or --pairs none for groups without pairs"
_JUDGING: Final = ("backtest", "sweep", "certify", "recommend")
_STORE: Final = "Name the store by position"

#: What replaces each removed option of a command.
OPTIONS: Final = {
    **{(name, "--mode"): _OBJECTIVE for name in ("backtest", "sweep", "certify", "diff", "compare")},
    **{("compare", option): _PAIRS for option in ("--paired", "--unpaired", "--seed")},
    **{(name, "--since"): "Write --where started:AGE" for name in _JUDGING},
    **{(name, "--status"): "Write --where status:STATUS" for name in _JUDGING},
    **{(name, "--store"): _STORE for name in ("serve", "push")},
    **{(name, "--no-cache"): "Leave it out: results are no longer cached" for name in ("backtest", "diff")},
    ("backtest", "--coverage"): "Write --html FILE: the report says which parts of rules were ever true",
    ("backtest", "--front"): "'steptape sweep --html FILE' draws it; 'steptape certify' chooses with a stated risk",
    ("backtest", "--tolerance"): "Widen the steps of the labelled incidents",
    ("certify", "--out"): "Write --output FILE",
    ("check", "--against"): "Write the run's folder after the rule file, or --store STORE for all of its runs",
    ("certify", "--seed"): "Leave it out: all runs are tested, none is drawn",
    ("delete", "--dry-run"): "Leave it out: 'delete' lists the runs and asks before it deletes",
    ("diff", "--saves"): "'steptape backtest --saves' judges either rule file",
    ("docs", "--json"): "Leave it out: each line is a path",
    ("replay", "--saves"): "'steptape backtest --saves' judges the rule file",
    ("runs", "--page"): "Give a greater --limit, or select runs by 'steptape query'",
    ("samples", "--top"): "Write steptape query 'FROM spiking_samples(N)' RUN",
    ("sweep", "--folds"): "Write --split families=N or --split walk-forward=N",
    ("tail", "--rank"): "Write steptape query 'FROM events WHERE rank = R' RUN",
    ("verify", "--all"): "Leave it out: without RUN, every run of the store is verified",
}

#: Commands that took their store by position.
_TOOK_STORE: Final = ("demo", "runs")


def refuse_removed_command(name: str) -> None:
    """Raise a ``TelemetryError`` that names what replaces a removed command."""
    if name in COMMANDS:
        raise TelemetryError("this command is gone", where=f"steptape {name}", fix=COMMANDS[name])


def refuse_removed_options(command: str, args: Sequence[str]) -> None:
    """Raise a ``TelemetryError`` that names what replaces the first removed option among these arguments."""
    for arg in args:
        option = arg.partition("=")[0]
        if arg == "--":
            return
        if (command, option) in OPTIONS:
            raise TelemetryError(f"there is no {option}", where=f"steptape {command}", fix=OPTIONS[command, option])


def refuse_store(command: str, text: str) -> None:
    """Raise a ``TelemetryError`` if the command once took a store by position, and was given this one."""
    if command in _TOOK_STORE:
        raise store_by_position(command, text)


def store_by_position(command: str, text: str) -> TelemetryError:
    """Return the error for a store that is not named by --store."""
    fix = f"Write --store {text}"
    return TelemetryError("the store is named by --store", where=f"steptape {command}", got=text, fix=fix)
