"""Turns the values of options that commands about policies share into objectives, renames and pools."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Final

import typer

from ..replay.ray_pool import RayPool
from ..replay.runs.objective import Objective, declared_objective
from ..store.errors import TelemetryError

#: Seconds to wait for the head of a Ray cluster.
_REACHABLE_S: Final = 10.0


def objectives_of(metrics: Sequence[str] | None) -> tuple[Objective, ...]:
    """Return the objectives that --objective declares, in the user's order; empty if none is given."""
    return tuple(map(declared_objective, dict.fromkeys(metrics or ())))


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
