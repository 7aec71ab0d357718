"""Defines the options and arguments that commands about policies share.

They are apart from those about stores: loading the rule language takes as long as listing 50,000 runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import typer

from ..replay.ray_pool import RayPool
from ..replay.runs.metric_names import Mode
from ..replay.runs.objective import Objective, declared_objective
from ..replay.runs.saves import Saves
from ..store.errors import TelemetryError

_Word = TypeVar("_Word", bound=StrEnum)


def _one_of(words: type[_Word]) -> Callable[[str], _Word]:
    """Return a parser of one of these words."""

    def parse(text: str) -> _Word:
        if text not in tuple(words):
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(repr(str(word)) for word in words)}.")
        return words(text)

    return parse


PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="A policy file, or the name of a shipped policy.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PARAM=VALUE", help="Set a param of the policy; repeatable.")
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAM=VALUES", help="Values to try: a list 1,2,3 or a range FIRST:LAST:STEP."),
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="METRIC[:min|max]",
        help="The evaluation metric that judges runs; repeat it for a second choice. Guessed run by run if left out.",
    ),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(
        parser=_one_of(Mode), metavar="min|max", help="Whether lower or higher values of the one METRIC are better."
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="Rename a metric as policies call it, such as val_loss=eval_loss; repeatable.",
    ),
]
SavesOption = Annotated[
    Saves,
    typer.Option(
        "--saves",
        parser=_one_of(Saves),
        metavar="keep|replace",
        help="Whether checkpoints that rules order are added to the loop's own, or replace them.",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Number of processes that read runs; by default as many as are worth their start, up to one per core.",
    ),
]

FamilyOption = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="KEY",
        help="The key that runs of one family share: group, tags, name, folder, run, or a configuration key.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[HOST:PORT]",
        help="Compute on this Ray cluster, or on the one that is found; without any, Ray is started here.",
    ),
]

#: Seconds to wait for the head of a Ray cluster.
_REACHABLE_S: Final = 10.0


def objectives_of(metrics: Sequence[str] | None, mode: Mode | None) -> tuple[Objective, ...]:
    """Return the objectives that --objective and --mode declare, in the user's order; empty if none is given."""
    if mode and not metrics:
        raise typer.BadParameter("--mode applies to the metric that --objective names: give both")
    if mode and metrics and len(metrics) > 1:
        raise typer.BadParameter(
            "--mode applies to one --objective; of several, write each as METRIC:min or METRIC:max"
        )
    return tuple(declared_objective(metric, mode) for metric in dict.fromkeys(metrics or ()))


def renames_of(renames: Iterable[str] | None) -> dict[str, str]:
    """Parse ``OLD=NEW`` settings into new names by old ones."""
    pairs = [rename.partition("=") for rename in renames or ()]
    for old, _, new in pairs:
        if not old or not new:
            raise typer.BadParameter(f"--rename takes OLD=NEW; got {old or new!r}")
    return {old: new for old, _, new in pairs}


def ray_pool(address: str | None, processes: int | None = None) -> RayPool | None:
    """Return the pool that --ray asks for; None without --ray. A bare --ray has an empty address."""
    if address is None:
        return None
    if processes is not None:
        raise typer.BadParameter("--ray takes the cores of the cluster: leave out --processes")
    _check_reachable(address)
    return RayPool(address or None)


def _check_reachable(address: str) -> None:
    """Check that a server listens at ``HOST:PORT``. Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        fix = "'ray status' prints the address of a running cluster"
        raise TelemetryError(f"no Ray cluster answers ({error})", where=address, fix=fix) from None
