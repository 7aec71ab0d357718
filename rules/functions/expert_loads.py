"""Balances the experts of a mixture over GPUs as Surogate's LLEP does: tokens per expert in, loads and a plan out.

Source: github.com/invergent-ai/surogate, commit 524fb776, csrc/src/runtime/ep/lpt_planner.cpp and ep_strategy.cpp. Its
sort leaves the order of equal experts, and of equally loaded GPUs, open. Here the lower index comes first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_FLOAT32: Final = struct.Struct("f")

#: The threshold from which on nothing is balanced.
_NEVER: Final = 100.0


def float32(value: float) -> float:
    """Return a number in single precision.

    >>> float32(1.3)
    1.2999999523162842
    """
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    return rounded


def token_counts(values: Sequence[float], gpus: int) -> list[int]:
    """Return the tokens of each expert as whole numbers.

    Args:
        values: The tokens of each expert. Shape (experts,).
        gpus: The number of GPUs that share the experts, the same number each.

    Raises:
        ValueError: The experts cannot be shared evenly, or one of the values is no count.
    """
    if not values or len(values) % gpus:
        raise ValueError(f"{len(values)} experts cannot be shared evenly by {gpus} GPUs")
    for value in values:
        if not (value >= 0 and float(value).is_integer()):
            raise ValueError(f"an expert's tokens must be a whole number from 0; got {value}")
    return [int(value) for value in values]


def native_owners(experts: int, gpus: int) -> list[int]:
    """Return the GPU that holds each expert: the first GPU the first ones, and so on.

    >>> native_owners(4, 2)
    [0, 0, 1, 1]
    """
    return [expert // (experts // gpus) for expert in range(experts)]


def gpu_loads(counts: Sequence[int], owners: Sequence[int], gpus: int) -> list[int]:
    """Return the tokens of each GPU where each expert's tokens are all computed by its owner."""
    loads = [0] * gpus
    for owner, tokens in zip(owners, counts, strict=True):
        loads[owner] += tokens
    return loads


def load_ratio(loads: Sequence[int]) -> float:
    """Return the load of the busiest GPU, in mean loads, in single precision; 1.0 where there are no tokens.

    >>> load_ratio([100, 0])
    2.0
    """
    mean = float32(float32(sum(loads)) / len(loads))
    return float32(float32(max(loads)) / mean) if mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """A plan of LLEP for one dispatch.

    Attributes:
        chunks: For each expert the GPUs that compute its tokens, each with the number of tokens.
        loads: The tokens of each GPU under the plan.
        owners: For each expert the GPU with its largest chunk, the first of equals; its own GPU if it has no tokens.
            Surogate's runtime sends all tokens of the expert there.
        transfers: Whose weights go where: expert and GPU, each pair once.
    """

    chunks: tuple[tuple[tuple[int, int], ...], ...]
    loads: tuple[int, ...]
    owners: tuple[int, ...]
    transfers: frozenset[tuple[int, int]]


def expert_plan(counts: Sequence[int], gpus: int, alpha: float = 1.1, min_chunk: int = 1024) -> ExpertPlan:
    """Return the plan for the tokens of one dispatch.

    Args:
        counts: The tokens of each expert, over all GPUs. Shape (experts,).
        gpus: The number of GPUs, of which each holds the same number of experts.
        alpha: How many mean loads a GPU may take.
        min_chunk: The fewest tokens of an expert that are worth a transfer, unless they are all that is left.

    >>> plan = expert_plan([5000, 5000, 0, 0, 0, 0, 0, 0], 4)
    >>> plan.loads, plan.owners[:2]
    ((2750, 2750, 2250, 2250), (1, 0))
    """
    planning = _Planning(counts, gpus, alpha, min_chunk)
    for expert in sorted(range(len(counts)), key=lambda expert: -counts[expert]):
        if counts[expert]:
            planning.place(expert, counts[expert])
    chunks, native = planning.chunks, planning.native
    return ExpertPlan(
        tuple(tuple(given) for given in chunks),
        tuple(planning.assigned),
        tuple(_largest(given, native[expert]) for expert, given in enumerate(chunks)),
        frozenset((expert, gpu) for expert, given in enumerate(chunks) for gpu, _ in given if gpu != native[expert]),
    )


def _largest(chunks: Sequence[tuple[int, int]], native: int) -> int:
    return max(chunks, key=lambda chunk: chunk[1])[0] if chunks else native


class _Planning:
    """The loads of all GPUs while a plan is made: what each was assigned, and what it still expects of its own."""

    def __init__(self, counts: Sequence[int], gpus: int, alpha: float, min_chunk: int) -> None:
        total = sum(counts)
        balanced = total // gpus
        self._cap = max(int(float32(float32(alpha) * float32(balanced))) if balanced else total, 1)
        self._min_chunk = min_chunk
        self.native = native_owners(len(counts), gpus)
        self._pending = gpu_loads(counts, self.native, gpus)
        self.assigned = [0] * gpus
        self.chunks: list[list[tuple[int, int]]] = [[] for _ in counts]

    def place(self, expert: int, tokens: int) -> None:
        """Give an expert's tokens to its own GPU, as far as it has room, and the rest to others."""
        own = self.native[expert]
        self._pending[own] -= tokens
        room = self._cap - self._load(own)
        if room <= 0:
            self._send_all(expert, tokens)
            return
        self._give(expert, own, min(room, tokens))
        if room < tokens:
            self._send_rest(expert, tokens - room)

    def _load(self, gpu: int) -> int:
        return self.assigned[gpu] + self._pending[gpu]

    def _give(self, expert: int, gpu: int, tokens: int) -> None:
        self.chunks[expert].append((gpu, tokens))
        self.assigned[gpu] += tokens

    def _helpers(self, expert: int) -> list[int]:
        """Return the other GPUs, the least loaded first."""
        return sorted((gpu for gpu in range(len(self.assigned)) if gpu != self.native[expert]), key=self._load)

    def _send_rest(self, expert: int, rest: int) -> None:
        """Give what the expert's own GPU has no room for to whichever GPU is the least loaded at the time."""
        while rest:
            helpers = self._helpers(expert)
            if not helpers:
                ((own, tokens),) = self.chunks[expert]
                self.chunks[expert] = [(own, tokens + rest)]
                self.assigned[own] += rest
                return
            room = self._cap - self._load(helpers[0])
            chunk = min(rest, room) if room > 0 else rest
            chunk = rest if chunk < self._min_chunk else chunk
            self._give(expert, helpers[0], chunk)
            rest -= chunk

    def _send_all(self, expert: int, rest: int) -> None:
        """Give all tokens to GPUs with room, in the order of their load at the start, what remains to the first."""
        helpers = self._helpers(expert) or [self.native[expert]]
        rooms = [self._cap - self._load(gpu) for gpu in helpers]
        for gpu, room in zip(helpers, rooms, strict=True):
            chunk = min(rest, room)
            if chunk > 0 and (chunk >= self._min_chunk or chunk == rest):
                self._give(expert, gpu, chunk)
                rest -= chunk
        if rest:
            self._give(expert, helpers[0], rest)


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """How LLEP balances.

    Attributes:
        gpus: The number of GPUs that share the experts.
        alpha: How many mean loads a GPU may take in a plan.
        min_chunk: The fewest tokens worth a transfer.
        threshold: The load ratio from which on a dispatch is balanced; none is from 100 on.
        refresh: The dispatches of a layer from one plan to the next.
    """

    gpus: int
    alpha: float = 1.1
    min_chunk: int = 1024
    threshold: float = 1.3
    refresh: int = 16


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One dispatch of one layer, and what LLEP would have made of it. Ratios are those of ``load_ratio``.

    Attributes:
        tokens: Its tokens.
        ratio: Of the experts on their own GPUs.
        chunk_ratio: After a plan for these tokens, as planned: in chunks.
        expert_ratio: After the same plan as the runtime executes it: whole experts.
        sticky_ratio: Under the plan in use, which may be older, as the runtime executes it.
        is_over: Whether ``ratio`` reaches the threshold.
        is_active: Whether there is a plan in use.
        chunk_moved: Tokens that a plan for these tokens gives to other GPUs.
        moved: Tokens that the plan in use sends to other GPUs.
        transfers: The pairs of expert and GPU whose weights the plan in use copies at each dispatch.
    """

    tokens: int
    ratio: float
    chunk_ratio: float
    expert_ratio: float
    sticky_ratio: float
    is_over: bool
    is_active: bool
    chunk_moved: int
    moved: int
    transfers: int


class LayerBalance:
    """The dispatches of one layer, one after the other, with the plan in use between them.

    Args:
        settings: How to balance.
    """

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._native: list[int] = []
        self._owners: Sequence[int] = ()
        self._transfers = 0
        self._is_active = False
        self._age = 0

    def dispatch(self, counts: Sequence[int]) -> Dispatch:
        """Take the tokens of each expert. A change in their number begins anew, without a plan."""
        use, gpus = self._settings, self._settings.gpus
        if len(counts) != len(self._native):
            self._native, self._age = native_owners(len(counts), gpus), 0
        loads = gpu_loads(counts, self._native, gpus)
        ratio = load_ratio(loads)
        is_over = use.threshold < _NEVER and ratio >= float32(use.threshold)
        plan = expert_plan(counts, gpus, use.alpha, use.min_chunk) if is_over else None
        fresh = self._native if plan is None else plan.owners
        if self._age == 0:
            self._owners, self._transfers = fresh, 0 if plan is None else len(plan.transfers)
            self._is_active = is_over
        self._age = (self._age + 1) % use.refresh
        return Dispatch(
            tokens=sum(counts),
            ratio=ratio,
            chunk_ratio=ratio if plan is None else load_ratio(plan.loads),
            expert_ratio=load_ratio(gpu_loads(counts, fresh, gpus)),
            sticky_ratio=load_ratio(gpu_loads(counts, self._owners, gpus)),
            is_over=is_over,
            is_active=self._is_active,
            chunk_moved=0 if plan is None else _moved_chunks(plan, self._native),
            moved=_moved(counts, self._owners, self._native),
            transfers=self._transfers,
        )


def _moved(counts: Sequence[int], owners: Sequence[int], native: Sequence[int]) -> int:
    return sum(tokens for tokens, owner, own in zip(counts, owners, native, strict=True) if owner != own)


def _moved_chunks(plan: ExpertPlan, native: Sequence[int]) -> int:
    return sum(tokens for given, own in zip(plan.chunks, native, strict=True) for gpu, tokens in given if gpu != own)
