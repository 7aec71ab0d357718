"""Hands the operations that rules ask for to the loop, and records its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...rules.control import LearningRateState, OperationCall, in_order, parse_call, rolls_back
from ...store.errors import TelemetryError, counted, shortened
from ...store.events import OPERATION_APPLIED, OPERATION_REFUSED, Event
from ..calls.warnings import CallWarnings
from ..control import Control
from ..position import Position
from ..resume_point import ROLL_BACK
from .handlers import LEARNING_RATE, SKIP, Handlers, OperationRequest, SavePoint, how_to_handle
from .learning_rate import IDLE_UPDATES, LearningRate

if TYPE_CHECKING:
    from ...rules.engine.decisions import Decision

logger = logging.getLogger("steptape.rules")

#: The most ids of skipped samples that a receipt holds.
MAX_IDS: Final = 1_000

#: Events before an update that a skip may wait for it, before the loop is taken to record it no more.
_UNANSWERED_EVENTS: Final = 10


def learning_rate_after(receipts: Iterable[Event]) -> LearningRateState:
    """Return what the receipts of a run have made of its learning rate."""
    state = LearningRateState()
    for event in receipts:
        call = parse_call(str(event.attrs["operation"]))
        if call.name.startswith(LEARNING_RATE):
            state = state.after(call, event.step, tuple(event.attrs["base"]))
    return state


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

    Attributes:
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
    ) -> None:
        self._gather, self.handlers, self._control, self._position = gather, handlers, control, position
        self._warnings, self._emit, self._calls = warnings, emit, calls
        known = list(kept)
        self._receipts = [event for event in known if event.kind == OPERATION_APPLIED]
        saves = (event for event in known if event.kind == "save")
        self._saves = [SavePoint(event.step, str(event.attrs.get("path", ""))) for event in saves]
        self._skips: list[dict[str, Any]] = []
        self._waiting: list[tuple[OperationCall, dict[str, Any]]] = []
        self._unanswered = 0
        self.rollback: tuple[OperationCall, dict[str, Any], SavePoint | str] | None = None
        if handlers.learning_rate is not None:
            handlers.learning_rate.resume(position, learning_rate_after(self._receipts))

    def ask(self, operation: str, decision: Decision | None = None, *, outlives: bool = False) -> None:
        """Let the loop carry out an operation, and record its answer.

        Args:
            operation: The call, as decisions write it.
            decision: The decision that orders it; None on other ranks than 0.
            outlives: Whether a rollback that waits must not undo it.
        """
        call = parse_call(operation)
        about = _about(operation, decision)
        if not self.can(operation):
            self._refuse(about, "the loop has no handler for it")
        elif why := self.why_too_late(operation, decision):
            self._refuse(about, why)
        elif call.name.startswith(LEARNING_RATE):
            if outlives and self.rollback is not None:
                self._waiting.append((call, about))
            else:
                self.carry_out([(call, about)])
        elif call.name == SKIP:
            self._control.should_skip = True
            self._skips.append(about)
        elif call.name == ROLL_BACK:
            self._prepare_rollback(call, about)
        else:
            self._answer(about, lambda: self._call(self._request(call, about)))

    @staticmethod
    def in_order(operations: Iterable[str]) -> list[str]:
        """Return operations as they are to be asked for."""
        return in_order(operations)

    @staticmethod
    def outlive_rollback(decision: Decision) -> bool:
        """Whether what a decision orders holds after a rollback: it does if it orders the rollback, too."""
        return rolls_back(decision.operations)

    def take_waiting(self) -> list[tuple[OperationCall, dict[str, Any]]]:
        """Take the operations on the learning rate that wait for a rollback, which would undo them."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def carry_out(
        self, waiting: Iterable[tuple[OperationCall, dict[str, Any]]], from_attempt: int | None = None
    ) -> None:
        """Carry out operations on the learning rate.

        Args:
            waiting: The operations, with how their receipts begin.
            from_attempt: The attempt that ordered them, if a rollback has ended it.
        """
        came_from = {} if from_attempt is None else {"from_attempt": from_attempt}
        for call, about in waiting:
            self._answer({**about, **came_from}, partial(self._on_learning_rate, call))

    def can(self, operation: str) -> bool:
        """Whether this rank's loop has a handler for an operation."""
        return self.handlers.has(parse_call(operation).name)

    def why_too_late(self, operation: str, decision: Decision | None) -> str:
        """Return why an operation can take effect no more; empty if it can."""
        is_over = decision is not None and decision.step < self._position.step
        return "the update that it was for is over" if is_over and operation.startswith(SKIP) else ""

    def begin_update(self) -> None:
        """Name the operations that the loop has no handler for, at the first update."""
        if self.handlers.has_named:
            return
        self.handlers.has_named = True
        self._name_what_a_resume_lacks()
        for operation in self._calls:
            name = parse_call(operation).name
            if not self.handlers.has(name):
                what = f"rules may order {operation}, and this loop would refuse it"
                self._warnings.once(f"{what}. {how_to_handle(name)}")

    def _name_what_a_resume_lacks(self) -> None:
        state = learning_rate_after(self._receipts)
        if state != LearningRateState() and self.handlers.learning_rate is None:
            what = "rules have changed the learning rate of this run, and this process trains with the schedule's"
            self._warnings.once(f"{what}. {how_to_handle(LEARNING_RATE)}")

    def note_save(self, path: str) -> None:
        """Note a checkpoint."""
        self._saves.append(SavePoint(self._position.step, path))

    def metrics(self, *, is_applied: bool) -> Mapping[str, float]:
        """Return the metrics of the update that ends; none if it was not applied."""
        rate = self.handlers.learning_rate
        metrics = {} if rate is None else rate.end_update()
        if is_applied and rate is not None and rate.is_idle:
            what = f"the optimizer of rec.learning_rate has not stepped in {IDLE_UPDATES} updates"
            self._warnings.once(f"{what}, so rules do not change the rate. Is it a copy of the one that trains?")
        return metrics if is_applied else {}

    def end_update(self, *, is_applied: bool, sample_ids: Any = None) -> None:
        """Answer what was asked before the update."""
        skips, self._skips, self._unanswered = self._skips, [], 0
        self._control.should_skip = False
        for about in skips:
            if is_applied:
                self._refuse(about, "the loop has applied the update")
                continue
            ids = [] if sample_ids is None else [getattr(one, "item", lambda one=one: one)() for one in sample_ids]
            kept = {"sample_ids": ids[:MAX_IDS], "num_samples": len(ids)} if ids else {}
            self._receive(about, kept)

    def note_update_begins(self) -> None:
        """Warn of a loop that leaves out batch after batch, because it never records the update that was skipped."""
        if not self._skips:
            return
        self._unanswered += 1
        if self._unanswered == _UNANSWERED_EVENTS:
            what = f"should_skip is set since step {self._position.step}, and every batch since was left out"
            self._warnings.once(f"{what}. Call rec.step(applied=False) for a skipped update: it takes the flag back")

    def refuse_waiting(self) -> None:
        """Refuse what still waits when the run ends."""
        skips, self._skips = self._skips, []
        for about in skips:
            self._refuse(about, "the run ended before the update was recorded")
        if self.rollback is not None:
            (_, about, _), self.rollback = self.rollback, None
            for each in (about, *(other for _, other in self.take_waiting())):
                self._refuse(each, "the run ended before the next rec.step")

    def rolled_back(self, about: Mapping[str, Any], save: SavePoint, attempt: int, step: int) -> None:
        """Record, in the attempt that continues from a checkpoint, which attempt it left at which step."""
        place = {"save_step": save.step, "path": save.path, "from_attempt": attempt, "from_step": step}
        self._receive(dict(about), place)

    def take_learning_rate(
        self, optimizer: Any, scheduler: Any, on_foreign_change: Callable[[str], object]
    ) -> LearningRate:
        """Return a learning rate that operations change from now on, in place of an earlier one.

        Raises:
            TelemetryError: The optimizer is none.
        """
        state = learning_rate_after(self._receipts)
        rate = LearningRate(self._position, state, optimizer, scheduler, on_foreign_change)
        if self.handlers.learning_rate is not None:
            self.handlers.learning_rate.detach()
            if not rate.is_of(self.handlers.learning_rate):
                what = "rec.learning_rate was called with another optimizer"
                self._warnings.once(f"{what}: from now on rules change its rate, and no more that of the one before")
        self.handlers.learning_rate = rate
        return rate

    def end(self) -> None:
        """Leave the loop's optimizer alone: the run is over."""
        if self.handlers.learning_rate is not None:
            self.handlers.learning_rate.detach()

    def load_checkpoint(self) -> tuple[SavePoint, dict[str, Any], Mapping[str, Any] | None] | None:
        """Let the loop load the checkpoint that a rollback asks for. Collective in a job with a process group.

        Returns:
            The checkpoint, what the receipt says, and the recorder's state that the checkpoint keeps; None if the loop
            did not load it.

        Raises:
            TelemetryError: Some ranks have loaded it and others have not.
        """
        if self.rollback is None:
            return None
        (call, about, own), self.rollback = self.rollback, None
        save: SavePoint | str = self._of_all(own)[0]  # Rank 0 alone need have recorded it.
        if isinstance(save, str):
            self._refuse(about, save)
            return None
        state = self._loaded(self._request(call, about, save), about)
        failures = self._of_all(state if isinstance(state, str) else "")
        failed = next((rank for rank, failure in enumerate(failures) if failure), None)
        if failed is None:
            return save, about, None if isinstance(state, str) else state
        self._refuse(about, state if isinstance(state, str) else f"rank {failed}: {failures[failed]}")
        if not all(failures):
            what = f"rollback: rank {failed} could not load the checkpoint of step {save.step}, and other ranks have"
            fix = "Begin again from a checkpoint: the ranks hold different weights"
            raise TelemetryError(what, got=failures[failed], fix=fix)
        return None

    def refuse(self, operation: str, decision: Decision | None, why: str) -> None:
        """Record that an operation was not carried out."""
        self._refuse(_about(operation, decision), why)

    # ------------------------------------------------------------------------------------------------------------------

    def _request(
        self, call: OperationCall, about: Mapping[str, Any], save: SavePoint | None = None
    ) -> OperationRequest:
        controller = str(about.get("controller", ""))
        return OperationRequest(call.name, call.arguments, self._position.step, controller, save)

    def _call(self, request: OperationRequest) -> str | Mapping[str, Any] | None:
        function = self.handlers.functions[request.operation]
        assert function is not None
        return function(request)

    def _on_learning_rate(self, call: OperationCall) -> Mapping[str, Any]:
        rate = self.handlers.learning_rate
        assert rate is not None
        return rate.carry_out(call)

    def _answer(self, about: dict[str, Any], carry_out: Callable[[], str | Mapping[str, Any] | None]) -> None:
        try:
            answer = carry_out()
        except Exception as error:  # A function of the loop may fail in any way. The receipt says how.
            logger.exception("%s failed; training continues", about["operation"])
            self._refuse(about, f"{type(error).__name__}: {error}")
            return
        if isinstance(answer, str):
            self._refuse(about, answer)
        else:
            self._receive(about, answer or {})

    def _prepare_rollback(self, call: OperationCall, about: dict[str, Any]) -> None:
        if self.rollback is not None:
            self._refuse(about, "another rollback comes first")
            return
        save = self._save_for(call)
        if isinstance(save, str) and self._gather is None:  # Ranks hear first what rank 0 says.
            self._refuse(about, save)
        else:
            self.rollback = (call, about, save)

    def _save_for(self, call: OperationCall) -> SavePoint | str:
        """Return the checkpoint that a rollback is to load, or why there is none."""
        latest = self._position.step - int(call.arguments["before"] or 0)
        save = next((save for save in reversed(self._saves) if save.step <= latest), None)
        if save is None:
            return f"there is no checkpoint up to step {latest}"
        times = sum(event.attrs.get("save_step") == save.step for event in self._receipts)
        if times >= int(call.arguments["times"] or 0):
            return f"the run was rolled back to step {save.step} {counted(times, 'time')} already"
        return save

    def _of_all(self, own: Any) -> list[Any]:
        return [own] if self._gather is None else self._gather(own)

    def _loaded(self, request: OperationRequest, about: Mapping[str, Any]) -> str | Mapping[str, Any] | None:
        """Let the loop load a checkpoint. Return the recorder's state in it, or why it was not loaded."""
        try:
            return self._call(request)
        except Exception as error:  # As above.
            logger.exception("%s failed; training continues", about["operation"])
            return f"{type(error).__name__}: {error}"

    def _receive(self, about: dict[str, Any], details: Mapping[str, Any]) -> None:
        self._emit(OPERATION_APPLIED, attrs={**about, **details})
        event = Event(OPERATION_APPLIED, step=self._position.step, attrs={**about, **details})
        self._receipts.append(event)

    def _refuse(self, about: dict[str, Any], why: str) -> None:
        why = shortened(why, 500)
        logger.warning("step %d: %s is refused: %s", self._position.step, about["operation"], why)
        self._emit(OPERATION_REFUSED, attrs={**about, "reason": why})


def _about(operation: str, decision: Decision | None) -> dict[str, Any]:
    """Return how a receipt begins."""
    if decision is None:
        return {"operation": operation}
    about = {"controller": decision.controller, "event_seq": decision.seq, "decided_step": decision.step}
    return {"operation": operation, **about}
