"""The value of a controller metric, the class of a state, and the newest change of one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ...store.events import Event
from ..errors import suggestion
from ..functions.plain_functions import Function
from ..functions.undefined import Undefined
from .call import Call
from .first_events import START, First
from .generated import EVENT, attribute, call, name
from .reading import (
    CLASS,
    AnyTerm,
    Code,
    Names,
    NotColumnar,
    Reading,
    RunSeries,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector


#: The function of the newest change of a state, apart from ``age``.
FUNCTIONS: Final = (
    Function("previous", 'previous("state")', "The class before the newest change. Undefined before the second class."),
)


@dataclass(frozen=True, slots=True)
class MetricValue(Reading):
    """The value of a controller metric."""

    name: str

    examples: ClassVar[tuple[str, ...]] = ("newest",)
    is_of_event_alone: ClassVar[bool] = True
    changes_within_event: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.UNKNOWN
    is_standing: ClassVar[bool] = True

    @property
    def metric_read(self) -> str:
        return self.name

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return attribute(name(code.names.cell_of(self.name)), "value")

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        raise NotColumnar(f"it reads the controller metric {self.name!r}")

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns read metrics by their keys")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: it may be no number."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the metric may be there. The truth of one that is not there yet is true."""
        return seen.metric(self.name) if wanted is None else START


class StateClass(MetricValue):
    """The class of a state."""

    examples: ClassVar[tuple[str, ...]] = ("mood",)
    __slots__ = ()

    is_shown_by_name: ClassVar[bool] = True

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_state(CLASS, self.name)


@dataclass(frozen=True, slots=True)
class StateChange(Reading):
    """A question about the newest change of a state: its age in steps, or the class before."""

    question: str
    state: str

    examples: ClassVar[tuple[str, ...]] = ('previous("mood")', 'age("mood")')
    is_of_event_alone: ClassVar[bool] = True
    changes_within_event: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> StateChange | None:
        """Return a question about a state, whose name is a literal."""
        name = call.named("state")
        if name is None:
            return None
        if name not in call.scope.states:
            fix = suggestion(name, call.scope.states) or "Sort the run into classes under 'states:'."
            call.faults.refuse(call.node.args[0], "unknown state", fix)
            return None
        return cls(call.function.name, name)

    @property
    def metric_read(self) -> str:
        return self.state

    @property
    def value_type(self) -> ValueType:
        """A text or a number of steps."""
        return ValueType.TEXT if self.question == "previous" else ValueType.WHOLE

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return asked_of_state(code.names, self.state, self.question)

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_state(self.question, self.state)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns hold no states")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the state may have a class; without one, nothing is known."""
        return seen.metric(self.state)


def asked_of_state(names: Names, state: str, question: str) -> ast.expr:
    """Return the code that asks about the newest change of a state."""
    return call(attribute(name(names.state_of(state)), question), name(EVENT))


class HeldState:
    """The newest change of a state.

    Attributes:
        changed_at: The event at which it took its class; None before the first.
        before: The class before; None before the second.
    """

    __slots__ = ("before", "changed_at")

    def __init__(self) -> None:
        self.changed_at: Event | None = None
        self.before: str | None = None

    def change(self, before: str | None, event: Event) -> None:
        """Note a change."""
        self.before = before
        self.changed_at = event

    def changed(self, event: Event) -> bool:
        """Return whether it changed at this event."""
        return self.changed_at is event

    def age(self, event: Event) -> int:
        """Return the steps since the change. Undefined before the first."""
        if self.changed_at is None:
            raise Undefined("not classified")
        return event.step - self.changed_at.step

    def previous(self, event: Event) -> str:
        """Return the class before. Undefined before the second."""
        if self.before is None:
            raise Undefined("never changed")
        return self.before
