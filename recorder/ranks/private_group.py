"""Lets the ranks of a job agree on orders of rank 0, over a gloo group of their own.

An agreement is one broadcast from rank 0. An order takes a vote and the outcome besides:

1. Rank 0 broadcasts its flags, its order and its step.
2. Every rank votes. Without the votes of all ranks there is no order, so a rank that has not voted may give up alone.
3. Rank 0 commits the order in the store of the process group, by ``compare_set``, and broadcasts the outcome.

A rank that has voted and receives no outcome writes to the same key that it gives up. One of the two writes is first,
and both ranks obey that one. The store hears of nothing else. While it cannot be reached either, a rank obeys an
outcome that has arrived, and else gives up.

Every wait ends with the timeout, and whatever fails, the group is never used again.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .rank import Rank

#: Seconds of the timeout, and at most their part of it, that are kept for the store.
_STORE_S: Final = 5.0
_STORE_PART: Final = 0.25

#: The most seconds of a slice of the wait for the store. A pause of the process or the machine costs one slice.
_SLICE_S: Final = 0.25

_KEY: Final = "steptape"
_GIVEN_UP: Final = "given up"
_NOT_ALL: Final = "rank 0 could not reach all ranks"
_CANCELLED: Final = -1

#: Given the values of all ranks, if they were gathered, returns rank 0's flags and its order as bits.
Decide: TypeAlias = Callable[[Sequence[Sequence[float]]], tuple[int, int]]


class GroupLost(Exception):
    """The ranks cannot agree any more, and this one obeys nothing that it has not obeyed so far."""


class Agreed(NamedTuple):
    """The outcome of an agreement, the same on all ranks.

    Attributes:
        flags: Rank 0's flags as bits.
        order: Those among them that rank 0 has ordered since the last agreement.
        step: Rank 0's step.
        lost: Why this was the last agreement; empty if it was not.
    """

    flags: int
    order: int
    step: int
    lost: str


class PrivateGroup:
    """A gloo group of all ranks. Its construction is collective.

    Args:
        rank: This rank.
        timeout_s: The most seconds that an agreement takes.

    Raises:
        Exception: PyTorch's, if there can be no such group.
    """

    def __init__(self, rank: Rank, timeout_s: float) -> None:
        self._torch, self._distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        self._decides, self._size = rank.decides, rank.world_size
        self._store_s = min(_STORE_S, timeout_s * _STORE_PART)
        self._patience_s = timeout_s - self._store_s
        self._committed, self._orders = "", 0
        # A group on the CPU, because one of NCCL would synchronize the device.
        self._group = self._distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))
        self._store: Any = None

    def agree(self, step: int, values: Sequence[float], decide: Decide) -> Agreed | str:
        """Obey rank 0. Collective.

        Args:
            step: This rank's step.
            values: What rank 0 gathers from all ranks; nothing if empty. Of the same length on all ranks.
            decide: Called on rank 0.

        Returns:
            What all ranks agreed on, or why they cannot any more.
        """
        try:
            return self._agreed(step, values, decide)
        except GroupLost as lost:
            return str(lost)

    def close(self) -> None:
        """Close the connections to the other ranks. Not collective. Only for a group that is not lost."""
        with contextlib.suppress(Exception):  # The program may have destroyed all groups.
            self._distributed.destroy_process_group(self._group)

    def _agreed(self, step: int, values: Sequence[float], decide: Decide) -> Agreed:
        until = time.monotonic() + self._patience_s
        flags, order = 0, 0
        if values:
            gathered = self._gather(values, until)
        if self._decides:
            flags, order = decide(gathered if values else ())
        head = self._whole(flags, order, step)
        self._wait(self._broadcast(head), until)
        flags, order, step = head.tolist()
        if flags == _CANCELLED:
            raise GroupLost(_NOT_ALL)
        return Agreed(flags, order, step, self._vote(order, until) if order else "")

    def _gather(self, values: Sequence[float], until: float) -> list[list[float]]:
        """Return the values of all ranks on rank 0."""
        own = self._torch.tensor(values, dtype=self._torch.float64, device="cpu")
        all_values = [self._torch.empty_like(own) for _ in range(self._size)] if self._decides else None
        work = self._post("gather", own, all_values, dst=0)
        if all_values is None:
            return []
        try:
            self._wait(work, until)
        except GroupLost:
            self._broadcast(self._whole(_CANCELLED, 0, 0))
            raise
        return [each.tolist() for each in all_values]

    def _vote(self, order: int, until: float) -> str:
        """Vote for an order and wait for the outcome. Return why the group is lost although the order holds, or ""."""
        self._orders += 1
        committed = f"{self._orders}:{order}"
        vote = self._post("reduce", self._whole(1), dst=0)
        lost = self._commit(committed, vote, until) if self._decides else self._outcome(committed, until)
        self._committed = committed
        return lost

    def _commit(self, committed: str, vote: Any, until: float) -> str:
        """Commit the order on rank 0, once all ranks have voted."""
        is_committed = False
        try:
            self._wait(vote, until)
            is_committed = self._first(committed, until) == committed
        finally:
            outcome = self._broadcast(self._whole(is_committed))
        if not is_committed:
            raise GroupLost("another rank gave up, or the store of the process group did not answer")
        try:
            self._wait(outcome, until)
        except GroupLost as lost:
            return str(lost)
        return ""

    def _outcome(self, committed: str, until: float) -> str:
        """Wait for the outcome on a rank that has voted."""
        is_committed = self._whole(False)
        work = self._broadcast(is_committed)
        try:
            self._wait(work, until)
        except GroupLost as lost:
            first = self._first(_GIVEN_UP, until)
            if not first:
                # This process may have been suspended, and rank 0, with the store, may have ended since.
                with contextlib.suppress(GroupLost):
                    self._wait(work, until)
                    first = committed if is_committed.item() else ""
            if first == committed:
                return str(lost)
            raise
        if not is_committed.item():
            raise GroupLost(_NOT_ALL)
        return ""

    def _first(self, wish: str, until: float) -> str:
        """Write how the order ends, unless another rank has. Return what was first; "" if the store does not answer.

        In a thread, because requests to a store have no timeout. Rank 0 waits as long as its timeout admits: without an
        answer it cannot know whether its order is committed, and another rank may read that it is.
        """
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def ask() -> None:
            try:
                if self._store is None:
                    self._store = self._connected_store()
                answers.put(self._store.compare_set(_KEY, self._committed, wish).decode())
            except Exception:  # Of a type that PyTorch chooses.
                answers.put("")

        threading.Thread(target=ask, name="steptape-order", daemon=True).start()
        wait_s = max(until - time.monotonic(), 0.0) + self._store_s
        slices = math.ceil(wait_s / _SLICE_S)
        for _ in range(slices):
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=wait_s / slices)
        return ""

    def _connected_store(self) -> Any:
        """Return the store of the group, where possible by a connection of its own.

        Another thread may wait on that of the group. Older releases of PyTorch have no public way to either.
        """
        if not hasattr(self._group, "get_group_store"):
            return self._distributed.distributed_c10d._get_process_group_store(self._group)
        store = self._group.get_group_store()
        return store.clone() if hasattr(store, "clone") else store

    def _whole(self, *numbers: int) -> Any:
        return self._torch.tensor(numbers, dtype=self._torch.int64, device="cpu")

    def _broadcast(self, numbers: Any) -> Any:
        return self._post("broadcast", numbers, src=0)

    def _post(self, collective: str, *tensors: Any, **root: int) -> Any:
        """Begin a collective."""
        try:
            return getattr(self._distributed, collective)(*tensors, group=self._group, async_op=True, **root)
        except Exception as error:  # The program may have destroyed the process group.
            raise GroupLost(f"{collective} failed: {_brief(error)}") from error

    def _wait(self, work: Any, until: float) -> None:
        """Wait for a collective, at least so long that one that is over counts."""
        try:
            work.wait(datetime.timedelta(seconds=max(until - time.monotonic(), 0.01)))
        except RuntimeError as error:
            if "timed out" in str(error).lower() or time.monotonic() >= until:
                raise GroupLost("not all ranks came in time") from error
            raise GroupLost(f"the connection to another rank broke ({_brief(error)})") from error


def _brief(error: Exception) -> str:
    """Return the first sentence of an error, without the place in the source that gloo puts before it."""
    return re.split(r"[.\n](?:\s|$)", re.sub(r"^\[[^]]*] ", "", str(error)), maxsplit=1)[0]
