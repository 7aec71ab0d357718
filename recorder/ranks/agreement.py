"""Makes the orders of rules take effect on all ranks of a job at the same step.

Rules run on rank 0. In a job with a process group they set flags that no loop reads, and ``Agreement.reach`` copies
these to ``Recorder.control`` on every rank. In a job without one, or of one process, the rules set ``control`` itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...store.errors import TelemetryError
from ..calls.warnings import CallWarnings
from ..control import FLAGS, Callbacks, Control
from ..position import Position
from .rank import Rank
from .rank_values import RankValues

if TYPE_CHECKING:
    from ...rules.engine.decisions import Decision
    from ..operations.carrying_out import Operations
    from ..steering import Steering
    from .private_group import Agreed, PrivateGroup

#: The most operations with arguments that ranks can agree on: their bits, and those of the flags, are one integer.
MAX_CALLS: Final = 56

#: Updates for which an order waits before a loop is taken to make no agreement.
_UNAGREED_STEPS: Final = 100

#: Records an event of this recorder: its kind and metrics, and its attributes.
Emit = Callable[..., None]


class Agreement:
    """The agreements of one rank. Its construction is collective.

    Args:
        rank: This rank.
        control: The flags that the loop reads.
        callbacks: Called when an order takes effect.
        timeout_s: The most seconds that an agreement takes.
        names: The metrics that rules read on all ranks; the same on all ranks.
        calls: The operations with arguments that rules may order; the same on all ranks.

    Attributes:
        orders: The flags that rules set: those of ``control``, unless ranks must agree on them first.
        values: The values of this rank that rules read on all ranks; None if they read none.
        operations: Carries out operations with arguments; None while nobody knows any.
    """

    def __init__(
        self,
        rank: Rank,
        control: Control,
        callbacks: Callbacks,
        timeout_s: float,
        names: Iterable[str] = (),
        calls: Sequence[str] = (),
    ) -> None:
        self._rank, self._control, self._callbacks, self._timeout_s = rank, control, callbacks, timeout_s
        self.orders = Control() if rank.has_group else control
        self.values = RankValues(names) if rank.has_group and names else None
        self._calls = calls[:MAX_CALLS]
        self._asked: list[tuple[str, Decision]] = []
        self.operations: Operations | None = None
        self._pid = os.getpid()
        self._group: PrivateGroup | None = None
        self._failure, self._has_differed, self._has_agreed = "", False, False
        if rank.has_group:
            # The modules that only this one needs take 1 ms.
            from .private_group import PrivateGroup

            try:
                self._group = PrivateGroup(rank, timeout_s)
            except Exception as error:  # A job that can record must not fail because its ranks cannot agree.
                self._failure = f"there is no gloo group: {error}"

    def begin(
        self,
        steering: Steering | None,
        warnings: CallWarnings,
        position: Position,
        emit: Emit,
    ) -> None:
        """Take what an agreement acts on, now that it exists."""
        self._steering, self._warnings, self._position, self._emit = steering, warnings, position, emit
        self._agreed_at, self._looks = position.step, 0
        if steering is not None and self._rank.world_size > 1 and not self._rank.has_group:
            self._warnings.once(
                f"rules steer rank 0 only, because no process group connects the {self._rank.world_size} ranks. "
                "Create the recorder after torch.distributed's process group, without rank=, and call rec.agree() on "
                "every rank"
            )

    def reach(self) -> Control:
        """Bring ``control`` to the same state on all ranks, call what is ordered, and return ``control``. Collective.

        Returns at once where ranks need not agree, or cannot any more.
        """
        if not self._rank.has_group or os.getpid() != self._pid:
            return self._control
        if self._group is None:
            self._set(0)
            if self._failure:
                self._turn_off(self._failure, 0.0)
            return self._control
        began, step = time.monotonic(), self._position.step
        try:
            agreed = self._group.agree(step, self.values.vector() if self.values else (), self._decided)
        except BaseException as error:  # The loop may catch it and train on.
            self._set(0)
            self._turn_off(f"an agreement was left by {type(error).__name__}", time.monotonic() - began)
            raise
        if isinstance(agreed, str):
            self._set(0)
            self._turn_off(agreed, time.monotonic() - began)
        else:
            self._obey(agreed, step, began)
        return self._control

    @property
    def is_off(self) -> bool:
        """Whether the ranks, which must agree, cannot any more, so that nobody obeys an order."""
        return self._rank.has_group and self._group is None

    @property
    def is_awaited(self) -> bool:
        """Whether the ranks must agree and have not done so yet."""
        return self._rank.has_group and not self._has_agreed

    def order(self, name: str) -> None:
        """Order what somebody asked for from outside, as rules order it: ``stop``, ``save`` or ``evaluate``."""
        setattr(self.orders, FLAGS[name], True)
        if not self._rank.has_group:
            self._callbacks.serve(name)

    def ask(self, operation: str, decision: Decision) -> None:
        """Ask for an operation with arguments, on all ranks at their next agreement if they must agree."""
        assert self.operations is not None
        if not self._rank.has_group:
            self.operations.ask(operation, decision, outlives=self.operations.outlive_rollback(decision))
        elif self._group is None or operation not in self._calls:
            why = "the ranks agree no longer" if self._group is None else f"ranks agree on {MAX_CALLS} operations"
            self.operations.refuse(operation, decision, why)
        else:
            self._asked.append((operation, decision))

    def look(self, *, is_end: bool = False) -> None:
        """Warn if the loop seems to make no agreement. To be called on rank 0 now and then, and at the end of the run.

        Args:
            is_end: Whether an order that no agreement was made for will take effect no more.
        """
        self._looks += 1
        waited = self._position.step - self._agreed_at
        # A loop may count in larger steps. The second look since an agreement is a second or more after the first.
        is_long = waited >= _UNAGREED_STEPS and self._looks > 1
        is_ordered = _bits(self.orders) > 0
        never = self.is_awaited and ((is_ordered and is_end) or (self._steering is not None and is_long))
        if self._group is not None and (never or (is_ordered and is_long)):
            self._warnings.once(
                f"this loop of several ranks has not called rec.agree() for {waited} steps; no rank obeys rules or "
                "requests until it does. Call it on every rank, at the same place",
                about="rec.agree",
            )

    def close(self) -> None:
        """Give up the connections to the other ranks. Not collective."""
        if self._group is not None and os.getpid() == self._pid:
            self._group.close()
            self._group = None

    def _decided(self, vectors: Sequence[Sequence[float]]) -> tuple[int, int]:
        """Return the flags of rank 0, and among them those that rules have set since the last agreement."""
        if self.values is not None:
            self._emit("ranks", self.values.of_all(vectors), attrs={"world_size": self._rank.world_size})
        self._refuse_late()
        order = _bits(self.orders) | sum(1 << self._bit(operation) for operation in {name for name, _ in self._asked})
        for flag in FLAGS.values():
            setattr(self.orders, flag, False)
        return _bits(self._control) | order, order

    def _refuse_late(self) -> None:
        """Refuse operations that can take effect no more, so that no rank hears of them."""
        asked, self._asked = self._asked, []
        for operation, decision in asked:
            assert self.operations is not None
            if why := self.operations.why_too_late(operation, decision):
                self.operations.refuse(operation, decision, why)
            else:
                self._asked.append((operation, decision))

    def _bit(self, operation: str) -> int:
        return len(FLAGS) + self._calls.index(operation)

    def _set(self, flags: int) -> None:
        """Set ``control``. A stop stays."""
        for bit, (name, flag) in enumerate(FLAGS.items()):
            if name != "stop" or flags & 1:
                setattr(self._control, flag, bool(flags >> bit & 1))

    def _obey(self, agreed: Agreed, step: int, began: float) -> None:
        self._set(agreed.flags)
        self._has_agreed, self._agreed_at, self._looks = True, step, 0
        if self.values is not None:
            self.values.resume()
        differs = agreed.step != step and not self._has_differed
        self._has_differed = self._has_differed or differs
        if differs:
            self._emit("agreement", attrs={"step": agreed.step, "own_step": step})
        names = [name for bit, name in enumerate((*FLAGS, *self._calls)) if agreed.order >> bit & 1]
        if names:
            self._emit("agreement", attrs={"orders": names, "step": agreed.step})
        if self._steering is not None and "stop" in names:
            self._steering.await_stop(agreed.step)
        if agreed.lost:
            self._turn_off(agreed.lost, time.monotonic() - began)
        self._carry_out([name for name in names if name in self._calls])
        for name in names:
            self._callbacks.serve(name)
        if differs:
            what = "agree: the ranks are at different steps"
            got = f"step {step} on rank {self._rank.rank}, step {agreed.step} on rank 0"
            self._warnings.object_to(what, got=got, fix="Call rec.agree() at the same place on every rank")

    def _carry_out(self, calls: Sequence[str]) -> None:
        """Carry out operations that all ranks can, and refuse the others."""
        if not calls or self.operations is None:
            return
        # Rank 0 alone knows the decisions.
        outliving = [call for call, decision in self._asked if self.operations.outlive_rollback(decision)]
        told = self._rank.gather(([call for call in calls if not self.operations.can(call)], outliving))
        for call in self.operations.in_order(calls):
            decision, without = self._next_asked(call), [rank for rank, (names, _) in enumerate(told) if call in names]
            if without:
                self.operations.refuse(call, decision, f"the loop of rank {without[0]} has no handler for it")
            else:
                self.operations.ask(call, decision, outlives=call in told[0][1])

    def _next_asked(self, operation: str) -> Decision | None:
        """Take the oldest decision that asks for an operation; None on another rank than 0."""
        for index, (name, decision) in enumerate(self._asked):
            if name == operation:
                del self._asked[index]
                return decision
        return None

    def _turn_off(self, why: str, waited_s: float) -> None:
        """End the agreements of this attempt."""
        self._group, self._failure = None, ""
        attrs: dict[str, Any] = {"off": why, "waited_s": round(waited_s, 3)}
        self._emit("agreement", attrs=attrs)
        for operation, decision in self._asked:
            assert self.operations is not None
            self.operations.refuse(operation, decision, "the ranks agree no longer")
        self._asked.clear()
        error = TelemetryError(
            f"rank {self._rank.rank} agrees with the other ranks no longer: {why}. Rules steer it no more",
            got=f"{waited_s:.1f} s of waiting, agree_timeout_s={self._timeout_s:g}",
            fix="Call rec.agree() at the same place on every rank, or give a longer Ranks(agree_timeout_s=...)",
        )
        self._warnings.once(str(error))


def _bits(control: Control) -> int:
    return sum(getattr(control, flag) << bit for bit, flag in enumerate(FLAGS.values()))
