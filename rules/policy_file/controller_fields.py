"""Reads the keys that say when and how a controller decides, beyond its rule and patience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from .. import habits
from ..compiled.names import Names
from ..errors import ExpressionError, suggestion
from ..language.bound_rule import NameScope
from ..language.families import is_pattern
from ..language.references import SeriesKey
from ..language.timing import Cooldown, Span, StepWindow, Unit
from .admission_fields import AdmissionFieldReader
from .declarations import ACT, SEVERITIES, SHADOW, Rule
from .fields import Fields, is_null
from .message import MessageTemplate, parse_message

#: Keys of a controller, beyond its rule and patience.
TIMING_KEYS: Final = (
    "for",
    "cooldown",
    "once",
    "between",
    "severity",
    "message",
    "mode",
    "requires",
    "every",
    "clear",
    "for_each",
    "escalate",
)

_EACH_VALUE: Final = "value"
_EVERY_OTHER: Final = (
    "Write 'step % 100 == 0' in the rule for each 100th step, or 'cooldown: 100' for once in 100 steps."
)

_UNITS: Final = tuple(unit.value for unit in Unit)
#: Longest span, in any unit: more than a century of seconds.
_MAX_SPAN: Final = 10**10


class ControllerFieldReader(AdmissionFieldReader):
    """Reads spans, cooldowns, step windows and messages."""

    def span(self, node: yaml.Node, where: str) -> Span | None:
        """Return a span: a number of steps, or a mapping with one unit."""
        if self._refuses_unit(node, where):
            return None
        if not isinstance(node, yaml.MappingNode):
            steps = self.at_least(node, where, 1)
            return None if steps is None else Span(steps)
        fields = self.fields(node, where, _UNITS, habits=habits.UNITS)
        if len(fields) != 1:
            if not node.value or fields:
                self.refuse(node, where, f"takes one of {', '.join(_UNITS)}", shows=False)
            return None
        name, value = next(iter(fields.items()))
        unit = Unit(name)
        where = f"{where}, {name}"
        amount = self._seconds(value, where) if unit is Unit.SECONDS else self.at_least(value, where, 1)
        return None if amount is None else Span(amount, unit)

    def _refuses_unit(self, node: yaml.Node, where: str) -> bool:
        """Refuse a text such as ``5m``, and return whether it is one."""
        written = habits.SPAN.fullmatch(node.value) if isinstance(node, yaml.ScalarNode) else None
        if written is None or node.value in self.params:
            return False
        amount, unit = float(written[1]), written[2]
        fix = "Write steps, or one of {steps: 100}, {evaluations: 3} and {seconds: 300}."
        if unit in habits.SECONDS:
            fix = f"Write {{seconds: {amount * habits.SECONDS[unit]:g}}}. The units are {', '.join(_UNITS)}."
        elif unit in ("step", "steps"):
            fix = f"Write {amount:g}."
        self.refuse(node, where, "must be a number of steps, or a mapping with a unit", fix)
        return True

    def at_least(self, node: yaml.Node, where: str, least: int) -> int | None:
        """Return a whole number that is not below the least."""
        value = self.whole(node, where)
        if value is not None and not least <= value <= _MAX_SPAN:
            self.refuse(node, where, f"must be from {least} to {_MAX_SPAN:,}")
            return None
        return value

    def _seconds(self, node: yaml.Node, where: str) -> float | None:
        value = self.number(node, where)
        if value is not None and not 0 < value <= _MAX_SPAN:
            self.refuse(node, where, f"must be above 0 and at most {_MAX_SPAN:,}")
            return None
        return value

    def cooldowns(self, fields: Fields) -> Mapping[str, Span]:
        """Return the cooldowns that controllers share by name."""
        node = fields.get("cooldowns")
        if node is None or is_null(node):
            return {}
        named: dict[str, Span] = {}
        for name, value in self.fields(node, "cooldowns", None).items():
            span = self.span(value, f"cooldown '{name}'")
            # A refused cooldown keeps its name, so that one mistake is one problem.
            named[name] = span or Span(1)
        return named

    def cooldown(self, fields: Fields, where: str, shared: Mapping[str, Span]) -> Cooldown | None:
        """Return the controller's cooldown: a span of its own, or the name of a shared one."""
        node = fields.get("cooldown")
        if node is None:
            return None
        is_text = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str")
        if not is_text or node.value in self.params:
            span = self.span(node, f"{where}, cooldown")
            return None if span is None else Cooldown(span)
        if node.value not in shared and not self._refuses_unit(node, f"{where}, cooldown"):
            self.refuse(node, f"{where}, cooldown", "not defined under 'cooldowns'", suggestion(node.value, shared))
        return Cooldown(shared[node.value], node.value) if node.value in shared else None

    def hold(self, fields: Fields, where: str) -> Span | None:
        """Return how long a rule must have been true."""
        return self.span(fields["for"], f"{where}, for") if "for" in fields else None

    def is_once(self, fields: Fields, where: str) -> bool:
        """Whether the controller decides only once."""
        return "once" in fields and self.flag(fields["once"], f"{where}, once") is True

    def between(self, fields: Fields, where: str) -> StepWindow:
        """Return the steps ``[first, last]``, either of them null for an open end."""
        if "between" not in fields:
            return StepWindow()
        node, where = fields["between"], f"{where}, between"
        ends = node.value if isinstance(node, yaml.SequenceNode) else ()
        if len(ends) != 2:
            self.refuse(node, where, "takes the first and the last step", "Write [1000, 2000] or [1000, null].")
            return StepWindow()
        first, last = (None if is_null(end) else self.whole(end, where) for end in ends)
        if first is not None and last is not None and first > last:
            place = self.document.place(node)
            self.refuse_at(place, where, "the first step is after the last", f"[{first}, {last}]", "")
        return StepWindow(first, last)

    def requires(self, fields: Fields, where: str) -> tuple[SeriesKey, ...]:
        """Return the series without which a controller is not asked: metrics, and families with any member."""
        where += ", requires"
        nodes = self.items(fields["requires"], where) if "requires" in fields else []
        for node in nodes:
            if isinstance(node, yaml.ScalarNode) and any(sign in node.value for sign in "<>="):
                self.refuse(node, where, "takes names of metrics", "A condition belongs into the rule.")
        return tuple(key for node in nodes if (key := self._series_or_family(node, where)) is not None)

    def each(self, fields: Fields, where: str) -> SeriesKey | None:
        """Return the series of a member of the family for whose members there is a controller each; None without."""
        if "for_each" not in fields:
            return None
        node = fields["for_each"]
        if not isinstance(node, yaml.ScalarNode) or "(" in node.value:
            self.refuse(node, f"{where}, for_each", "takes one pattern of names", "Write for_each: grad_norm/*.")
            return None
        key = self._series_or_family(node, f"{where}, for_each")
        if key is not None and not key.is_of_member:
            fix = f"Write {key.name}/* for all series whose names begin so."
            self.refuse(fields["for_each"], f"{where}, for_each", "not a pattern of names", fix)
            return None
        return key

    def _series_or_family(self, node: yaml.Node, where: str) -> SeriesKey | None:
        name = self.text(node, where)
        if name is None:
            return None
        if not NameScope(series=self.series).lists(name):
            fix = suggestion(name, self.series or ())
            self.refuse(node, where, "not one of the series that this file lists", fix)
            return None
        return SeriesKey(name, is_of_member=is_pattern(name))

    def awaits_value(self, fields: Fields, where: str, rule: Rule | None) -> bool:
        """Whether a controller is asked only where the first series of its rule has a new value."""
        node = fields.get("every")
        if node is None:
            return False
        if not isinstance(node, yaml.ScalarNode) or node.value != _EACH_VALUE:
            self.refuse(node, f"{where}, every", "takes the word 'value' alone", _EVERY_OTHER)
            return False
        if rule is not None and rule.bound.driver is None:
            fix = "It is asked at each value of the first series that it reads."
            self.refuse(fields["every"], f"{where}, every", "the rule reads no series", fix, shows=False)
        return True

    def choice(self, fields: Fields, key: str, where: str, known: tuple[str, ...], meant: Mapping[str, str]) -> str:
        """Return one of the known words; empty when it is left out or refused."""
        if key not in fields:
            return ""
        value = self.text(fields[key], f"{where}, {key}")
        if value is None or value in known:
            return value or ""
        self.refuse(fields[key], f"{where}, {key}", f"unknown {key}", suggestion(value, known, meant))
        return ""

    def severity(self, fields: Fields, where: str) -> str:
        """Return the severity of a decision."""
        return self.choice(fields, "severity", where, SEVERITIES, habits.SEVERITIES)

    def is_shadow(self, fields: Fields, where: str) -> bool:
        """Whether the controller orders nothing."""
        return self.choice(fields, "mode", where, (ACT, SHADOW), habits.CONTROLLER_MODES) == SHADOW

    def message(self, fields: Fields, where: str, scope: NameScope, names: Names) -> MessageTemplate | None:
        """Return the template of a decision's message; None without one, or when it is refused."""
        if "message" not in fields:
            return None
        node, where = fields["message"], f"{where}, message"
        text = self.text(node, where)
        if text is None:
            return None
        assert isinstance(node, yaml.ScalarNode)
        try:
            return parse_message(text, scope, names)
        except ExpressionError as error:
            self.refuse_faults(node, where, error)
            return None
