"""Makes the orders of rules and of persons take effect on all ranks of a job at the same step.

Rules run on rank 0. In a job with a process group they set flags that no loop reads, and ``Agreement.reach`` copies
these to ``Recorder.control`` on every rank. In a job without one, or of one process, the rules set ``control`` itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...store.annotations import REQUEST, Annotation, RequestWatch
from ...store.errors import TelemetryError
from ...store.events import LATE_FOR, RESTORE_POINT, STEP_TIME, Event
from ...store.reading.tally import NewestValues
from ..calls.call_warnings import CallWarnings
from ..control import FLAGS, Callbacks, Control
from ..position import Position
from .rank import Rank

if TYPE_CHECKING:
    from ...rules.engine.decisions import Decision
    from ..operations.loop_operations import Operations
    from ..steering import Steering
    from .private_group import Agreed, PrivateGroup

#: The most operations with arguments that ranks can agree on: their bits, and those of the flags, are one integer.
_MAX_CALLS: Final = 56

#: Updates for which an order waits before a loop is taken to make no agreement.
_UNAGREED_STEPS: Final = 100

#: What the loop makes when it serves an order, and how.
_SERVED: Final = {
    "save": ("a checkpoint", "Save one when {control}.should_save is true and call {call}"),
    "evaluate": ("an evaluation", "Evaluate when {control}.should_evaluate is true and call {call}"),
    "stop_epoch": (
        "the end of an epoch",
        "Leave it when {control}.should_stop_epoch is true. The next begins with {call}",
    ),
}

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
        self._calls = calls[:_MAX_CALLS]
        #: The names of the bits on which ranks agree.
        self._orders = (*FLAGS, *self._calls)
        if calls:
            # A run without rules does not load the rule engine.
            from ...rules.effects import orders_undo

            self._orders += (RESTORE_POINT,) if orders_undo(calls) else ()
        self._ordered: list[tuple[str, Decision]] = []
        self._asked: dict[str, tuple[int, str]] = {}
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
                f"{warnings.advice.agree}"
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

    def order_flag(self, name: str, step: int | None = None, who: str = "a rule") -> None:
        """Set the flag of an order, and note who gave it first and at which step, by default the current one."""
        if not self._is_waiting(name):
            self._asked[name] = self._position.step if step is None else step, who
        setattr(self.orders, FLAGS[name], True)

    def serve(self, name: str) -> None:
        """Call the callback of an order from outside, unless the ranks must agree on it first."""
        if not self._rank.has_group:
            self._callbacks.serve(name)

    def order_operation(self, operation: str, decision: Decision) -> None:
        """Ask for an operation with arguments, on all ranks at their next agreement if they must agree.

        One whose arguments have no valid value is refused.
        """
        assert self.operations is not None
        if why := decision.not_ordered.get(operation):
            self.operations.refuse(operation, decision, why)
        elif not self._rank.has_group:
            self.operations.order(operation, decision, outlives=self.operations.outlive_rollback(decision))
        elif self._group is None or self._template(operation) is None:
            why = "the ranks agree no longer" if self._group is None else f"ranks agree on {_MAX_CALLS} operations"
            self.operations.refuse(operation, decision, why)
        else:
            self._ordered.append((operation, decision))

    def warn_if_unreached(self, *, is_end: bool = False) -> None:
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
                f"this loop of several ranks has not called {self.call} for {waited} steps; no rank obeys rules or "
                "requests until it does. Call it on every rank, at the same place",
                about="rec.agree",
            )

    def warn_of_unserved(self) -> None:
        """Warn of orders that still wait for the loop at the end of the run, those of its last event included."""
        if self.is_awaited:
            return  # No order took effect, which has its own warning.
        step, advice = self._position.step, self._warnings.advice
        for name, (what, how) in _SERVED.items():
            at, who = self._asked.get(name, (step, "a rule"))
            # A loop that leaves an epoch at its last step begins no other, which would clear the flag.
            if self._is_waiting(name) and (name != "stop_epoch" or at < step):
                call = advice.call("epoch_begin" if name == "stop_epoch" else name)
                if name in self._callbacks:
                    fix = f"Let the callback {name!r} call {call}"
                elif name in advice.serve:
                    fix = advice.serve[name]
                else:
                    fix = how.format(control=advice.control, call=call)
                    fix += f", or give callbacks={{{name!r}: ...}}" * (name != "stop_epoch")
                asked = f"{who} asked for {what} at step {min(at, step)}"
                self._warnings.once(f"{asked}, but none was recorded until the run ended at step {step}. {fix}")

    def ignored_stop(self) -> tuple[int, str]:
        """Return the steps since the loop was asked to stop, and who asked."""
        at, who = self._asked.get("stop", (self._position.step, ""))
        return self._position.step - at, who

    def _is_waiting(self, name: str) -> bool:
        return bool(getattr(self._control, FLAGS[name]) or getattr(self.orders, FLAGS[name]))

    @property
    def call(self) -> str:
        """The call that makes an agreement, as warnings name it."""
        return f"{self._warnings.advice.recorder}.agree()"

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
        asked = {self._template(operation) for operation, _ in self._ordered}
        order = _bits(self.orders) | sum(1 << len(FLAGS) + self._calls.index(each) for each in asked if each)
        if self._orders[-1] == RESTORE_POINT and self.operations is not None and self.operations.undos.is_point_due:
            order |= 1 << len(self._orders) - 1
        for flag in FLAGS.values():
            setattr(self.orders, flag, False)
        return _bits(self._control) | order, order

    def _refuse_late(self) -> None:
        """Refuse operations that can take effect no more, so that no rank hears of them."""
        asked, self._ordered = self._ordered, []
        for operation, decision in asked:
            assert self.operations is not None
            if why := self.operations.why_too_late(operation, decision):
                self.operations.refuse(operation, decision, why)
            else:
                self._ordered.append((operation, decision))

    def _template(self, operation: str) -> str | None:
        """Return the operation of the rules, as their file has it, that a decision writes with its values."""
        name = operation.partition("(")[0]
        alike = [each for each in self._calls if each.partition("(")[0] == name]
        return operation if operation in alike else next(iter(alike), None)

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
        names = [name for bit, name in enumerate(self._orders) if agreed.order >> bit & 1]
        takes_point = RESTORE_POINT in names and names.pop() == RESTORE_POINT
        if names:
            self._emit("agreement", attrs={"orders": names, "step": agreed.step})
        if "stop" in names:
            self._asked["stop"] = agreed.step, self._asked.get("stop", (0, ""))[1]
            if self._steering is not None:
                self._steering.await_stop(agreed.step)
        if agreed.lost:
            self._turn_off(agreed.lost, time.monotonic() - began)
        self._carry_out([name for name in names if name in self._calls], takes_point=takes_point)
        for name in names:
            self._callbacks.serve(name)
        if differs:
            what = "agree: the ranks are at different steps"
            got = f"step {step} on rank {self._rank.rank}, step {agreed.step} on rank 0"
            self._warnings.object_to(what, got=got, fix=f"Call {self.call} at the same place on every rank")

    def _carry_out(self, calls: Sequence[str], *, takes_point: bool) -> None:
        """Carry out operations that all ranks can, and refuse the others. Keep a restore point if one is due."""
        if self.operations is None:
            return
        if takes_point and self.operations.handlers.points is not None:
            self.operations.undos.take_point()
        if not calls:
            return
        # Rank 0 alone knows the decisions.
        outliving = [call for call, decision in self._ordered if self.operations.outlive_rollback(decision)]
        ordered = {template: call for call, _ in reversed(self._ordered) if (template := self._template(call))}
        lacked = [call for call in calls if not self.operations.handlers.has(call.partition("(")[0])]
        answers = self._rank.gather((lacked, outliving, ordered))
        for template in self.operations.in_order(calls):
            call = answers[0][2].get(template, template)
            decision = self._next_decision(call)
            without = [rank for rank, (names, *_) in enumerate(answers) if template in names]
            if without:
                self.operations.refuse(call, decision, f"the loop of rank {without[0]} has no handler for it")
            else:
                self.operations.order(call, decision, outlives=call in answers[0][1])

    def _next_decision(self, operation: str) -> Decision | None:
        """Take the oldest decision that asks for an operation; None on another rank than 0."""
        for index, (name, decision) in enumerate(self._ordered):
            if name == operation:
                del self._ordered[index]
                return decision
        return None

    def _turn_off(self, why: str, waited_s: float) -> None:
        """End the agreements of this attempt."""
        self._group, self._failure = None, ""
        attrs = {"off": why, "waited_s": round(waited_s, 3)}
        self._emit("agreement", attrs=attrs)
        for operation, decision in self._ordered:
            assert self.operations is not None
            self.operations.refuse(operation, decision, "the ranks agree no longer")
        self._ordered.clear()
        error = TelemetryError(
            f"rank {self._rank.rank} agrees with the other ranks no longer: {why}. Rules steer it no more",
            got=f"{waited_s:.1f} s of waiting, agree_timeout_s={self._timeout_s:g}",
            fix=f"Call {self.call} at the same place on every rank, or give a longer Ranks(agree_timeout_s=...)",
        )
        self._warnings.once(str(error))


def _bits(control: Control) -> int:
    return sum(getattr(control, flag) << bit for bit, flag in enumerate(FLAGS.values()))


class RankValues:
    """The newest values of some metrics since the last agreement, and the time of a step between agreements."""

    def __init__(self, names: Iterable[str]) -> None:
        self._newest = NewestValues(names)
        self._steps = 0
        self._since = time.monotonic()

    def add_event(self, event: Event) -> None:
        """Take the values of an event of this rank."""
        self._steps += event.kind == "step_end" and LATE_FOR not in event.attrs
        self._newest.add_values(event.metrics)

    def vector(self) -> list[float]:
        """Return the values of this rank as a vector, whose length depends on the names only."""
        values = self._newest.pop_values()
        steps, self._steps = self._steps, 0
        step_time_s = (time.monotonic() - self._since) / steps if steps else 0.0
        pairs = ((float(name in values), values.get(name, 0.0)) for name in self._newest.names)
        return [float(steps > 0), step_time_s, *(number for pair in pairs for number in pair)]

    def resume(self) -> None:
        """Begin to measure steps again, after the wait for the other ranks."""
        self._since = time.monotonic()

    def of_all(self, vectors: Sequence[Sequence[float]]) -> Mapping[str, float]:
        """Return the values of all ranks, as ``<name>@<rank>``."""
        names = (STEP_TIME, *self._newest.names)
        return {
            f"{name}@{rank}": vector[2 * index + 1]
            for rank, vector in enumerate(vectors)
            for index, name in enumerate(names)
            if vector[2 * index]
        }


class Requests:
    """The requests to one attempt: found in the middle of an event, and carried out after it.

    Args:
        folder: The run's folder.
        agreement: Gives orders to all ranks.
        warnings: Those of the recorder.
        emit: Records an event.

    Attributes:
        waiting: The requests that are not carried out yet.
        why_to_stop: Who asked for the end of the training, and why; empty if nobody did.
    """

    def __init__(self, folder: Path, agreement: Agreement, warnings: CallWarnings, emit: Emit) -> None:
        self._watch, self._agreement, self._warnings, self._emit = RequestWatch(folder), agreement, warnings, emit
        self.waiting: list[Annotation] = []
        self.why_to_stop = ""

    def read_new(self, folder: Path) -> None:
        """Find new requests in the run's folder."""
        try:
            self.waiting += self._watch.new(folder)
        except OSError as error:
            self._warnings.once(f"requests to the run in {folder} cannot be read: {error}", about="requests")

    def give_up(self, why: str) -> None:
        """Ask the loop for a checkpoint and its end, because what rules order heals nothing."""
        self._warnings.once(f"rules ask for a checkpoint and the end of the training: {why}")
        self.why_to_stop = self.why_to_stop or why
        for name in ("save", "stop"):
            self._agreement.order_flag(name, who=why)
            self._agreement.serve(name)

    def carry_out(self) -> None:
        """Carry out what was found, in the order in which it came."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self._obey(request)

    def _obey(self, request: Annotation) -> None:
        what = request.attrs[REQUEST]
        text = f"{request.author} asked to {what}{f': {request.text}' if request.text else ''}"
        is_off = self._agreement.is_off
        if is_off or self._agreement.is_awaited:
            why = (
                "the ranks agree no longer, so that none obeys"
                if is_off
                else f"this waits for the first {self._agreement.call}"
            )
            self._warnings.once(f"{text}; {why}")
        # Replays compare their stops with what a person does.
        action = {"action": what} if what == "stop" and not is_off else {}
        attrs = {"text": text, REQUEST: what, "author": request.author, "asked_ns": request.time_ns, **action}
        self._emit("annotation", attrs=attrs)
        self.why_to_stop = self.why_to_stop or (text if action else "")
        self._agreement.order_flag(what, who=request.author or "somebody")
        self._agreement.serve(what)
