"""Hands the operations with arguments that rules order to the loop, and records its answers.

Decisions in; calls of the loop's handlers, a learning rate, a flag, and the receipts of all of them out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...rules.effects import (
    CALLS,
    LEARNING_RATE,
    ROLL_BACK,
    SKIP,
    UNDO,
    LearningRateState,
    OperationCall,
    call_name,
    in_order,
    is_before_update,
    parse_call,
    parse_template,
    rolls_back,
)
from ...store.errors import TelemetryError, counted, shortened
from ...store.events import OPERATION_APPLIED, OPERATION_REFUSED, RESTORE_POINT, Event
from ..advice import OWN, Advice
from ..calls.call_warnings import CallWarnings
from ..control import Control
from ..position import Position
from .learning_rate import IDLE_UPDATES, LearningRate

if TYPE_CHECKING:
    from ...rules.engine.decisions import Decision
    from .restore_points import RestorePoints

logger = logging.getLogger("steptape.rules")

#: What a loop must call to carry out an operation, by the operation's first word.
_HOW: Final[Mapping[str, str]] = {
    "lr": "Call {rec}.learning_rate(optimizer, scheduler)",
    "batch": "Call {rec}.handle('batch.skip'), and leave out the update when {rec}.control.should_skip is true",
    "undo": "Call {rec}.restore_points(model, optimizer)",
    "rollback": "Give {rec}.handle('rollback.to', function) a function that loads a checkpoint",
}

_NO_HANDLER: Final = "the loop has no handler for it"

#: The most ids of skipped samples that a receipt holds.
_MAX_IDS: Final = 1_000

#: Events before an update that a skip may wait for it, before the loop is taken to record it no more.
_UNANSWERED_EVENTS: Final = 10


@dataclass(frozen=True, slots=True)
class SavePoint:
    """A checkpoint of this run.

    Attributes:
        step: Updates that it contains.
        path: Its path, as the loop gave it.
    """

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """An order of a rule to the loop.

    Attributes:
        operation: The operation, as ``name.action``.
        arguments: Its arguments by name.
        step: Updates finished now.
        controller: The controller that asks; empty on other ranks than 0.
        save: For ``rollback.to``, the checkpoint to load.
    """

    operation: str
    arguments: Mapping[str, int | float | str | None]
    step: int
    controller: str = ""
    save: SavePoint | None = None


@dataclass(frozen=True, slots=True)
class OrderedOperation:
    """An operation that a rule orders.

    Attributes:
        operation: The call, as decisions write it.
        call: The same, parsed.
        decision: The decision that orders it; None on other ranks than 0.
        from_attempt: The attempt of the decision, if a rollback has ended it since.
    """

    operation: str
    call: OperationCall
    decision: Decision | None = None
    from_attempt: int | None = None

    @classmethod
    def from_text(cls, operation: str, decision: Decision | None) -> OrderedOperation:
        """Parse a call."""
        return cls(operation, parse_template(operation).call, decision)

    def request(self, step: int, save: SavePoint | None = None) -> OperationRequest:
        """Return the request to the loop at this step."""
        controller = "" if self.decision is None else self.decision.controller
        return OperationRequest(self.call.name, self.call.arguments, step, controller, save)

    def to_attrs(self) -> dict[str, object]:
        """Return how a receipt begins."""
        attrs: dict[str, object] = {"operation": self.operation}
        if (decision := self.decision) is not None:
            attrs |= {"controller": decision.controller, "event_seq": decision.seq, "decided_step": decision.step}
        return attrs if self.from_attempt is None else {**attrs, "from_attempt": self.from_attempt}


@dataclass(slots=True)
class _Skip:
    """Updates that the loop is to leave out.

    Attributes:
        order: The order.
        updates: How many are left.
        ids: The ids of the samples that were left out.
    """

    order: OrderedOperation
    updates: int
    ids: list[Any] = field(default_factory=list)


#: Carries out a request. Returns None or details for the receipt, or the reason why it did not.
Handler: TypeAlias = Callable[[OperationRequest], "str | Mapping[str, Any] | None"]


@dataclass
class Handlers:
    """The operations that a loop can carry out. All attempts of a process share them.

    Attributes:
        functions: By operation; None for one that the loop reads from a flag.
        learning_rate: The loop's; None without one.
        points: The loop's restore points; None without any.
        has_named: Whether the operations that lack a handler have been named.
    """

    functions: dict[str, Handler | None] = field(default_factory=dict)
    learning_rate: LearningRate | None = None
    points: RestorePoints | None = None
    has_named: bool = False

    def has(self, operation: str) -> bool:
        """Whether the loop carries out an operation."""
        if operation == UNDO:
            return self.points is not None
        return self.learning_rate is not None if operation.startswith(LEARNING_RATE) else operation in self.functions

    def add(self, operation: str, function: Handler | None) -> None:
        """Take a handler.

        Raises:
            TelemetryError: There is no such operation, or it cannot be handled in this way.
        """
        if operation.startswith(LEARNING_RATE) or operation == UNDO or operation not in CALLS:
            fix = _how_to_handle(operation) if operation in CALLS else f"Operations are {', '.join(CALLS)}"
            raise TelemetryError("handle: not an operation that takes a function", got=operation, fix=fix)
        if (function is None) != (operation == SKIP):
            what = "takes no function: read control.should_skip" if operation == SKIP else "needs a function"
            raise TelemetryError(f"handle: {operation!r} {what}", got=function)
        self.functions[operation] = function

    def call(self, request: OperationRequest) -> str | Mapping[str, Any] | None:
        """Let the loop carry out a request, and return its answer."""
        function = self.functions[request.operation]
        assert function is not None
        return function(request)


def _how_to_handle(operation: str, advice: Advice = OWN) -> str:
    """Return what a loop must call to carry out an operation."""
    how = advice.handle or _HOW.get(
        operation.partition(".")[0], f"Give {{rec}}.handle({operation!r}, function) a function for it"
    )
    return how.format(rec=advice.recorder)


class Receipts:
    """The answers of the loop to what rules ordered.

    Args:
        position: Of the loop.
        emit: Records an event.
        kept: The events of the attempts that this one continues; its receipts are taken.

    Attributes:
        position, emit: The same.
        applied: The receipts of what was carried out, in order.
    """

    def __init__(self, position: Position, emit: Callable[..., None], kept: Iterable[Event]) -> None:
        self.position, self.emit = position, emit
        self.applied = [event for event in kept if event.kind == OPERATION_APPLIED]

    def record(self, order: OrderedOperation, details: Mapping[str, Any]) -> None:
        """Record that an operation was carried out."""
        attrs = {**order.to_attrs(), **details}
        self.emit(OPERATION_APPLIED, attrs=attrs)
        self.applied.append(Event(OPERATION_APPLIED, step=self.position.step, attrs=attrs))

    def refuse(self, order: OrderedOperation, why: str) -> None:
        """Record that an operation was not carried out."""
        why = shortened(why, 500)
        logger.warning("step %d: %s is refused: %s", self.position.step, order.operation, why)
        self.emit(OPERATION_REFUSED, attrs={**order.to_attrs(), "reason": why})

    def greatest(self, count: str) -> int:
        """Return a count that receipts keep, which only grows."""
        return max((int(receipt.attrs.get(count, 0)) for receipt in self.applied), default=0)


class Undos:
    """The restore points of one attempt, and the returns to them, on all ranks alike.

    Args:
        handlers: What the loop has.
        receipts: Takes the receipts.
        warnings: Those of the recorder.
        of_all: Returns the values of all ranks, by rank.
        is_alarmed: Whether a rule that orders an undo is true. No restore point is taken then.
        give_up: Asks for a checkpoint and the end of the training, and says why.
        is_alone: Whether no other rank is to do the same.
    """

    def __init__(
        self,
        handlers: Handlers,
        receipts: Receipts,
        warnings: CallWarnings,
        of_all: Callable[[Any], list[Any]],
        is_alarmed: Callable[[], bool],
        give_up: Callable[[str], None],
        *,
        is_alone: bool,
    ) -> None:
        self._is_alone = is_alone
        self._handlers, self._receipts, self._position = handlers, receipts, receipts.position
        self._warnings, self._of_all = warnings, of_all
        self._is_alarmed, self._give_up = is_alarmed, give_up

    def take_point_if_due(self) -> None:
        """Keep a restore point if one is due, where no other rank is to take it at the same time."""
        if self._is_alone and self.is_point_due:
            self.take_point()

    @property
    def is_point_due(self) -> bool:
        """Whether a restore point is to be taken now."""
        points = self._handlers.points
        return points is not None and points.is_due(self._position.step) and not self._is_alarmed()

    def take_point(self) -> None:
        """Keep a restore point of this step, if there is room for it."""
        points = self._handlers.points
        assert points is not None
        try:
            size = points.take(self._position.step)
        except (MemoryError, RuntimeError) as error:
            kept = counted(len(points.steps), "point")
            what = f"restore points: no room for another; {kept} of before {'is' if kept[:2] == '1 ' else 'are'} kept"
            self._warnings.once(f"{what} ({error})")
        except Exception as error:  # An optimizer may hold any object. The training goes on.
            fix = "Load a checkpoint with rollback.to"
            self._warnings.once(f"restore points: none can be taken ({type(error).__name__}: {error}). {fix}")
        else:
            self._receipts.emit(RESTORE_POINT, attrs={"size_bytes": size})

    def carry_out(self, order: OrderedOperation) -> None:
        """Return to a restore point, on all ranks to the same. Collective in a job with a process group.

        Raises:
            TelemetryError: Some ranks have returned to it and others have not.
        """
        points, latest = self._handlers.points, self._position.step - int(order.call.arguments["before"] or 0)
        assert points is not None
        own = [step for step in points.steps if step <= latest and not points.why_not(step)]
        answers = self._of_all((own, self._times(own)))
        step = max(set(own).intersection(*(steps for steps, _ in answers)), default=None)
        if step is None:
            lacking = next((points.why_not(each) for each in reversed(points.steps) if each <= latest), "")
            since = f" up to step {latest}" if latest > 0 else " yet"
            self._receipts.refuse(order, lacking or f"there is no restore point{since}")
            return
        times, most = answers[0][1][step], int(order.call.arguments["times"] or 0)
        if times >= most:
            why = f"the training went back to step {step} {counted(times, 'time')} already"
            self._receipts.refuse(order, why)
            self._give_up(f"{order.call}: {why}")
            return
        failures = self._of_all(self._restored(step))
        if not any(failures):
            undos = 1 + self._receipts.greatest("undos")
            self._receipts.record(order, {"point_step": step, "times": times + 1, "undos": undos})
            return
        rank = next(rank for rank, each in enumerate(failures) if each)
        self._receipts.refuse(order, failures[rank])
        if all(failures):
            self._give_up(f"{order.call}: the return to step {step} failed midway: {failures[rank]}")
            return
        fix = "Begin again from a checkpoint: the weights are of two moments"
        raise TelemetryError(f"undo: rank {rank} could not return to step {step}", got=failures[rank], fix=fix)

    def _restored(self, step: int) -> str:
        """Return to a point on this rank, and return why it failed; empty if it did not."""
        assert self._handlers.points is not None
        try:
            self._handlers.points.restore(step, now=self._position.step)
        except Exception as error:  # As in Operations.load_checkpoint.
            logger.exception("the return to step %d failed", step)
            return f"{type(error).__name__}: {error}"
        return ""

    def _times(self, steps: Iterable[int]) -> dict[int, int]:
        """Return how often the run went back to each of these steps."""
        back = [receipt.attrs.get("point_step") for receipt in self._receipts.applied]
        return {step: back.count(step) for step in steps}


class Operations:
    """The operations with arguments of one attempt.

    Args:
        gather: Returns the values of all ranks, by rank; None in a job without a process group.
        handlers: What the loop carries out.
        control: The flags that the loop reads.
        position: Of the loop.
        warnings: Those of the recorder.
        emit: Records an event.
        calls: The operations that its rules may order.
        kept: The receipts of what was carried out so far, and the checkpoints, in order.
        is_alarmed: Whether a rule that orders an undo is true. No restore point is taken then.
        give_up: Asks for a checkpoint and the end of the training, and says why.

    Attributes:
        receipts: The receipts so far.
        undos: Takes restore points, and returns to one of them.
        rollback: The rollback to carry out once all decisions of the event are; None without one.
    """

    def __init__(
        self,
        gather: Callable[[Any], list[Any]] | None,
        handlers: Handlers,
        control: Control,
        position: Position,
        warnings: CallWarnings,
        emit: Callable[..., None],
        calls: tuple[str, ...],
        kept: Iterable[Event],
        is_alarmed: Callable[[], bool],
        give_up: Callable[[str], None],
    ) -> None:
        self._gather, self.handlers, self._control, self._position = gather, handlers, control, position
        self._warnings, self._calls = warnings, calls
        known = list(kept)
        self.receipts = Receipts(position, emit, known)
        saves = (event for event in known if event.kind == "save")
        self._saves = [SavePoint(event.step, str(event.attrs.get("path", ""))) for event in saves]
        alone = gather is None
        self.undos = Undos(handlers, self.receipts, warnings, self._of_all, is_alarmed, give_up, is_alone=alone)
        self._skips: list[_Skip] = []
        self._waiting: list[OrderedOperation] = []
        self._early: list[OrderedOperation] = []
        self._unanswered = 0
        self.rollback: tuple[OrderedOperation, SavePoint | str] | None = None
        if handlers.learning_rate is not None:
            handlers.learning_rate.resume(position, _learning_rate_after(self.receipts.applied))

    def order(self, operation: str, decision: Decision | None = None, *, outlives: bool = False) -> None:
        """Let the loop carry out an operation, and record its answer.

        Args:
            operation: The call, as decisions write it.
            decision: The decision that orders it; None on other ranks than 0.
            outlives: Whether a rollback that waits must not undo it.
        """
        order = OrderedOperation.from_text(operation, decision)
        name = order.call.name
        if not self.handlers.has(name):
            # A rule may order it as the training begins, and a loop names its functions after that.
            if self.handlers.has_named or name in (SKIP, ROLL_BACK, UNDO) or name.startswith(LEARNING_RATE):
                self.receipts.refuse(order, _NO_HANDLER)
            else:
                self._early.append(order)
        elif why := self.why_too_late(operation, decision):
            self.receipts.refuse(order, why)
        elif name.startswith(LEARNING_RATE):
            if outlives and self.rollback is not None:
                self._waiting.append(order)
            else:
                self.change_rate([order])
        elif name == SKIP:
            self._control.should_skip = True
            self._skips.append(_Skip(order, int(order.call.arguments["updates"] or 1)))
        elif name == ROLL_BACK:
            self._prepare_rollback(order)
        elif name == UNDO:
            self.undos.carry_out(order)
        else:
            self._answer(order, lambda: self.handlers.call(order.request(self._position.step)))

    def handle(self, operation: str, function: Handler | None) -> None:
        """Take a handler, and let it carry out what was ordered before.

        Raises:
            TelemetryError: As in ``Handlers.add``.
        """
        self.handlers.add(operation, function)
        early, self._early = self._early, []
        for order in early:
            self.order(order.operation, order.decision)

    @property
    def is_idle(self) -> bool:
        """Whether the end of an update has nothing to do with it."""
        hands = self.handlers
        return not self._skips and hands.learning_rate is None and hands.points is None and hands.has_named

    @staticmethod
    def in_order(operations: Iterable[str]) -> list[str]:
        """Return operations as they are to be asked for."""
        return in_order(operations)

    @staticmethod
    def outlive_rollback(decision: Decision) -> bool:
        """Whether what a decision orders holds after a rollback: it does if it orders the rollback, too."""
        return rolls_back(decision.operations)

    def pop_waiting(self) -> list[OrderedOperation]:
        """Return the operations on the learning rate that wait for a rollback, which would undo them, once."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def change_rate(self, orders: Iterable[OrderedOperation]) -> None:
        """Carry out operations on the learning rate."""
        rate = self.handlers.learning_rate
        for order in orders:
            assert rate is not None
            self._answer(order, partial(rate.carry_out, order.call))

    def why_too_late(self, operation: str, decision: Decision | None) -> str:
        """Return why an operation can take effect no more; empty if it can."""
        is_over = decision is not None and decision.step < self._position.step
        return "the update that it was for is over" if is_over and is_before_update(operation) else ""

    def name_what_is_not_handled(self) -> None:
        """Warn of the operations that the loop has no handler for, at the first update."""
        if self.handlers.has_named:
            return
        self.handlers.has_named = True
        for order in self._early:
            self.receipts.refuse(order, _NO_HANDLER)
        self._early.clear()
        if _learning_rate_after(self.receipts.applied) != LearningRateState() and self.handlers.learning_rate is None:
            what = "rules have changed the learning rate of this run, and this process trains with the schedule's"
            self._warnings.once(f"{what}. {_how_to_handle(LEARNING_RATE, self._warnings.advice)}")
        for operation in self._calls:
            name = call_name(operation)
            if not self.handlers.has(name):
                what = f"rules may order {operation}, and this loop would refuse it"
                self._warnings.once(f"{what}. {_how_to_handle(name, self._warnings.advice)}")

    def add_save(self, path: str) -> None:
        """Add a checkpoint to those that a rollback may load."""
        self._saves.append(SavePoint(self._position.step, path))

    def metrics(self, *, is_applied: bool) -> Mapping[str, float]:
        """Return the metrics of the update that ends; none if it was not applied."""
        rate = self.handlers.learning_rate
        metrics = {} if rate is None else rate.end_update()
        if is_applied and rate is not None and rate.is_idle:
            optimizer = f"the optimizer of {self._warnings.advice.recorder}.learning_rate"
            what = f"{optimizer} has not stepped in {IDLE_UPDATES} updates"
            self._warnings.once(f"{what}, so rules do not change the rate. Is it a copy of the one that trains?")
        return metrics if is_applied else {}

    def end_update(self, *, is_applied: bool, sample_ids: Any = None) -> None:
        """Answer what was asked before the update."""
        skips, self._skips, self._unanswered = self._skips, [], 0
        for skip in skips:
            if is_applied:
                self.receipts.refuse(skip.order, "the loop has applied the update")
                continue
            skip.updates -= 1
            if sample_ids is not None:
                skip.ids += [getattr(one, "item", lambda one=one: one)() for one in sample_ids]
            if skip.updates:
                self._skips.append(skip)
                continue
            kept = {"sample_ids": skip.ids[:_MAX_IDS], "num_samples": len(skip.ids)} if skip.ids else {}
            self.receipts.record(skip.order, kept)
        self._control.should_skip = bool(self._skips)

    def count_unanswered_skip(self) -> None:
        """Warn of a loop that leaves out batch after batch, because it never records the update that was skipped."""
        if not self._skips:
            return
        self._unanswered += 1
        if self._unanswered == _UNANSWERED_EVENTS:
            what = f"should_skip is set since step {self._position.step}, and every batch since was left out"
            call = f"{self._warnings.advice.recorder}.step(applied=False)"
            self._warnings.once(f"{what}. Call {call} for a skipped update: it takes the flag back")

    def refuse_waiting(self) -> None:
        """Refuse what still waits when the run ends."""
        skips, self._skips = self._skips, []
        for skip in skips:
            self.receipts.refuse(skip.order, "the run ended before the update was recorded")
        early, self._early = self._early, []
        for order in early:
            self.receipts.refuse(order, _NO_HANDLER)
        if self.rollback is not None:
            (rollback, _), self.rollback = self.rollback, None
            for order in (rollback, *self.pop_waiting()):
                self.receipts.refuse(order, "the run ended before the next rec.step")

    def record_rollback(self, order: OrderedOperation, save: SavePoint, attempt: int, step: int, undos: int) -> None:
        """Record, in the attempt that continues from a checkpoint, which attempt it left at which step.

        Args:
            undos: How often the training went back to a restore point before. Those are rolled back, and still count.
        """
        place = {"save_step": save.step, "path": save.path, "from_attempt": attempt, "from_step": step}
        if self.handlers.points is not None:
            self.handlers.points.drop_after(save.step)
        self.receipts.record(order, {**place, "rollbacks": 1 + self.receipts.greatest("rollbacks"), "undos": undos})

    def use_learning_rate(
        self, optimizer: Any, scheduler: Any, on_foreign_change: Callable[[str], object]
    ) -> LearningRate:
        """Return a learning rate that operations change from now on, in place of an earlier one.

        Raises:
            TelemetryError: The optimizer is none.
        """
        state = _learning_rate_after(self.receipts.applied)
        rate = LearningRate(self._position, state, optimizer, scheduler, on_foreign_change)
        if self.handlers.learning_rate is not None:
            self.handlers.learning_rate.detach()
            if not rate.is_of(self.handlers.learning_rate):
                what = f"{self._warnings.advice.recorder}.learning_rate was called with another optimizer"
                self._warnings.once(f"{what}: from now on rules change its rate, and no more that of the one before")
        self.handlers.learning_rate = rate
        return rate

    def end(self) -> None:
        """Leave the loop's optimizer alone: the run is over."""
        if self.handlers.learning_rate is not None:
            self.handlers.learning_rate.detach()

    def load_checkpoint(self) -> tuple[OrderedOperation, SavePoint, Mapping[str, Any] | None] | None:
        """Let the loop load the checkpoint that a rollback asks for. Collective in a job with a process group.

        Returns:
            The order, the checkpoint, and the recorder's state that the checkpoint keeps; None if the loop did not load
            it.

        Raises:
            TelemetryError: Some ranks have loaded it and others have not.
        """
        if self.rollback is None:
            return None
        (order, own), self.rollback = self.rollback, None
        save: SavePoint | str = self._of_all(own)[0]  # Rank 0 alone need have recorded it.
        if isinstance(save, str):
            self.receipts.refuse(order, save)
            return None
        state: str | Mapping[str, Any] | None
        try:
            state = self.handlers.call(order.request(self._position.step, save))
        except Exception as error:  # A function of the loop may fail in any way. The receipt says how.
            logger.exception("%s failed; training continues", order.operation)
            state = f"{type(error).__name__}: {error}"
        failures = self._of_all(state if isinstance(state, str) else "")
        failed = next((rank for rank, failure in enumerate(failures) if failure), None)
        if failed is None:
            return order, save, None if isinstance(state, str) else state
        self.receipts.refuse(order, state if isinstance(state, str) else f"rank {failed}: {failures[failed]}")
        if not all(failures):
            what = f"rollback: rank {failed} could not load the checkpoint of step {save.step}, and other ranks have"
            fix = "Begin again from a checkpoint: the ranks hold different weights"
            raise TelemetryError(what, got=failures[failed], fix=fix)
        return None

    def refuse(self, operation: str, decision: Decision | None, why: str) -> None:
        """Record that an operation was not carried out."""
        self.receipts.refuse(OrderedOperation.from_text(operation, decision), why)

    # ------------------------------------------------------------------------------------------------------------------

    def _answer(self, order: OrderedOperation, carry_out: Callable[[], str | Mapping[str, Any] | None]) -> None:
        try:
            answer = carry_out()
        except Exception as error:  # As in load_checkpoint.
            logger.exception("%s failed; training continues", order.operation)
            self.receipts.refuse(order, f"{type(error).__name__}: {error}")
            return
        if isinstance(answer, str):
            self.receipts.refuse(order, answer)
        else:
            self.receipts.record(order, answer or {})

    def _prepare_rollback(self, order: OrderedOperation) -> None:
        if self.rollback is not None:
            self.receipts.refuse(order, "another rollback comes first")
            return
        latest = self._position.step - int(order.call.arguments["before"] or 0)
        most_times = int(order.call.arguments["times"] or 0)
        save = _save_to_load(self._saves, self.receipts.applied, latest, most_times)
        if isinstance(save, str) and self._gather is None:  # Ranks hear first what rank 0 says.
            self.receipts.refuse(order, save)
        else:
            self.rollback = (order, save)

    def _of_all(self, own: Any) -> list[Any]:
        return [own] if self._gather is None else self._gather(own)


def _save_to_load(
    saves: Sequence[SavePoint], receipts: Iterable[Event], latest: int, most_times: int
) -> SavePoint | str:
    """Return the newest checkpoint up to a step, or why a rollback cannot load it.

    Args:
        saves: The checkpoints, oldest first.
        receipts: What was carried out so far.
        latest: The step.
        most_times: How often a run may be rolled back to the same step.
    """
    save = next((save for save in reversed(saves) if save.step <= latest), None)
    if save is None:
        return f"there is no checkpoint up to step {latest}"
    times = sum(event.attrs.get("save_step") == save.step for event in receipts)
    if times >= most_times:
        return f"the run was rolled back to step {save.step} {counted(times, 'time')} already"
    return save


def _learning_rate_after(receipts: Iterable[Event]) -> LearningRateState:
    """Return what the receipts of a run have made of its learning rate."""
    state = LearningRateState()
    for event in receipts:
        call = parse_call(str(event.attrs["operation"]))
        if call.name.startswith(LEARNING_RATE):
            state = state.after(call, event.step, tuple(event.attrs["base"]))
    return state
