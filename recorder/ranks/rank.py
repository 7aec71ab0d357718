"""Detects the rank of this process in its job, and shares values with the other ranks.

The rank comes from the arguments, from an initialized ``torch.distributed`` process group, or from the environment
variables that torchrun, Slurm or Open MPI set.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final, NamedTuple, TypeVar, cast

from ...store.errors import TelemetryError

_Value = TypeVar("_Value")

#: The environment variables of rank and number of ranks, by launcher.
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


class Rank(NamedTuple):
    """One process of a job.

    Attributes:
        rank: Its number; rank 0 decides.
        world_size: The number of processes.
        has_group: Whether a process group connects them.
    """

    rank: int = 0
    world_size: int = 1
    has_group: bool = False

    @property
    def decides(self) -> bool:
        """Whether this rank writes ``run.json`` and lets rules decide."""
        return self.rank == 0

    def broadcast(self, what: _Value | None) -> _Value:
        """Broadcast rank 0's value and return it on every rank. Collective: every rank calls it, or none does.

        Args:
            what: A picklable value. Read on rank 0 only.
        """
        distributed = sys.modules["torch.distributed"]
        listed = [what]
        distributed.broadcast_object_list(listed, src=0)
        return cast("_Value", listed[0])

    def gather(self, what: Any) -> list[Any]:
        """Return the values of all ranks, by rank. Collective, like ``broadcast``.

        Args:
            what: The picklable value of this rank.
        """
        gathered: list[Any] = [None] * self.world_size
        sys.modules["torch.distributed"].all_gather_object(gathered, what)
        return gathered


def this_rank(rank: int | None = None) -> Rank:
    """Return the rank of this process.

    Args:
        rank: The user's choice; detected when None.

    Raises:
        TelemetryError: The environment variables do not hold a rank below the number of ranks.
    """
    if rank is not None:
        # The group is not used: the loop may construct a recorder on this rank alone.
        return Rank(rank, max(_group_size(), 2 if rank else 1, rank + 1))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world_size = distributed.get_world_size()
        return Rank(distributed.get_rank(), world_size, has_group=world_size > 1)
    for rank_variable, size_variable in _VARIABLES:
        if rank_variable in os.environ and size_variable in os.environ:
            try:
                rank, world_size = int(os.environ[rank_variable]), int(os.environ[size_variable])
                if not 0 <= rank < world_size:
                    raise ValueError
                return Rank(rank, world_size)
            except ValueError:
                given = f"{rank_variable}={os.environ[rank_variable]} {size_variable}={os.environ[size_variable]}"
                fix = "Give rank= and world_size="
                raise TelemetryError("the environment variables do not name a valid rank", got=given, fix=fix) from None
    return Rank()


def _group_size() -> int:
    """Return the number of processes of the process group; 1 without one."""
    distributed = sys.modules.get("torch.distributed")
    is_there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if distributed is not None and is_there else 1
