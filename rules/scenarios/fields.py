"""Parses the keys of a policy test that describe its imagined run: series, samples, vectors, events, plan, length.

Takes a test's fields; returns a ``Scenario``, or None when any of them is refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import yaml

from ...store.events import is_kind
from ...store.plan import Plan
from ...store.sample_losses import SampleLosses
from ...store.vectors import Vectors
from ..errors import kind_suggestion
from ..policy_file.document import Document
from ..policy_file.fields import FieldReader, Fields
from .notation import NotationError, parse_values
from .scenario import MAX_STEPS, SERIES_KINDS, STEP_KINDS, Scenario, ScenarioSeries

#: Most values of series, samples and vectors together in one file.
MAX_FILE_VALUES: Final = 1_000_000

#: A step, or the first and the last step of a range.
STEPS: Final = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")

_PLAN_KEYS: Final = tuple(field.name for field in dataclasses.fields(Plan))
_KIND: Final = r"custom:[A-Za-z][^:]*|(?!custom:)[a-z_]+"
_SUFFIX: Final = re.compile(rf"(?P<name>.*)@(?:(?P<kind>{_KIND}):)?(?P<every>\d{{1,9}}|{_KIND})", re.DOTALL)


class RunReader(FieldReader):
    """Reads the description of a test's run."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._values_left = MAX_FILE_VALUES

    def scenario(self, fields: Fields, where: str) -> Scenario | None:
        """Return the run that a test's fields describe; None when any of them is refused."""
        before = len(self.problems)
        series = self._all_series(fields, where)
        samples = self._samples(fields, where)
        vectors = self._vectors(fields, where)
        every = self._events(fields, where)
        plan = self._plan(fields, where)
        step_s = self._seconds(fields, where)
        last = max([*samples, *vectors, *(entry.last_step() for entry in series)], default=0)
        steps = self._bounded(fields["steps"], f"{where}, steps", last) if "steps" in fields else last
        if steps is not None and steps > MAX_STEPS:
            what = f"a run of more than {MAX_STEPS:,} steps"
            self.refuse(fields.get("steps", fields["series"]), f"{where}, steps", what, shows=False)
        if len(self.problems) > before or steps is None:
            return None
        return Scenario(tuple(series), steps, every, samples, vectors, plan, step_s)

    def _all_series(self, fields: Fields, where: str) -> list[ScenarioSeries]:
        """Return the entries of ``series:``; refuse a metric that is given twice for one kind of event."""
        where += ", series"
        found: dict[tuple[str, str], ScenarioSeries] = {}
        if "series" not in fields:
            return []
        for key, node in self.fields(fields["series"], where, None).items():
            entry = self._one_series(key, node, where)
            if entry is None:
                continue
            if (entry.name, entry.kind) in found:
                what = f"'{entry.name}' is already given for {entry.kind} events"
                self.refuse(node, where, what, shows=False)
            found[entry.name, entry.kind] = entry
        return list(found.values())

    def _one_series(self, key: str, node: yaml.Node, where: str) -> ScenarioSeries | None:
        clock = self._clock(key, node, where)
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"{where} '{key}'", "must be text", "Write the values on one line, as in 2.0x50 9.0.")
            return None
        values = self._values(node, f"{where} '{key}'")
        return None if clock is None or values is None else ScenarioSeries(*clock, values)

    def _values(self, node: yaml.ScalarNode, where: str, more: int = 0) -> tuple[float | None, ...] | None:
        """Parse a text in the series notation; count its values, and ``more``, against the file's limit."""
        try:
            values = parse_values(node.value)
        except NotationError as error:
            fault = error.fault
            self.refuse_at(self.document.place_in(node, fault.offset), where, fault.what, fault.got, fault.fix)
            return None
        self._values_left -= len(values) + more
        if self._values_left < 0:
            self.refuse(node, where, f"more than {MAX_FILE_VALUES:,} values in one file", shows=False)
            return None
        return values

    def _samples(self, fields: Fields, where: str) -> dict[int, SampleLosses]:
        """Return the batches of ``samples:`` by step; a later entry replaces an earlier one."""
        if "samples" not in fields:
            return {}
        lists = self._lists(fields["samples"], f"{where}, samples", "losses", "every sample needs a loss")
        batches: dict[int, SampleLosses] = {}
        for steps, losses in lists:
            batches.update(dict.fromkeys(steps, SampleLosses(array("f", losses).tobytes())))
        return batches

    def _vectors(self, fields: Fields, where: str) -> dict[int, Vectors]:
        """Return the vectors of ``vectors:`` by step; a later entry of a name replaces an earlier one."""
        where += ", vectors"
        by_step: dict[int, dict[str, Sequence[float]]] = {}
        for name, node in self.fields(fields["vectors"], where, None).items() if "vectors" in fields else ():
            for steps, values in self._lists(node, f"{where} '{name}'", "values", "every place needs a value"):
                vector = array("d", values)
                for step in steps:
                    by_step.setdefault(step, {})[name] = vector
        return dict(by_step)

    def _lists(self, node: yaml.Node, where: str, what: str, needs: str) -> Iterator[tuple[range, list[float]]]:
        """Yield the lists of numbers of a mapping from steps, each with its steps.

        Args:
            what: What the lists hold, as messages name it.
            needs: The message about a number left out.
        """
        for key, entry in self.fields(node, where, None).items():
            match = STEPS.fullmatch(key)
            first = int(match["first"]) if match else 0
            last = int(match["last"] or first) if match else 0
            if not 1 <= first <= last <= MAX_STEPS or not isinstance(entry, yaml.ScalarNode):
                fix = "Write 51: 2.0x15 30.0, or 1-50: 2.0x16."
                self.refuse(entry, f"{where} '{key}'", f"not a step and its {what}", fix)
                continue
            given = self._values(entry, f"{where} '{key}'", more=last - first)
            values = [value for value in given or () if value is not None]
            if given is not None and len(values) < len(given):
                self.refuse(entry, f"{where} '{key}'", needs)
            yield range(first, last + 1), values

    def _clock(self, key: str, node: yaml.Node, where: str) -> tuple[str, str, int] | None:
        """Split a key of ``series:`` into name, kind and interval: NAME, NAME@N, NAME@KIND or NAME@KIND:N."""
        if "@" not in key:
            return key, "step_end", 1
        match = _SUFFIX.fullmatch(key)
        every = int(match["every"]) if match and match["every"].isdigit() else 1
        kind = (match["kind"] or ("evaluate" if match["every"].isdigit() else match["every"])) if match else ""
        if match is None or not match["name"] or every == 0 or (match["kind"] and not match["every"].isdigit()):
            fix = "Write NAME@10 (evaluations, every 10 steps), NAME@log or NAME@log:5."
            self.refuse_at(self.document.place(node), where, "not a series name with an interval", repr(key), fix)
            return None
        if not is_kind(kind, SERIES_KINDS):
            fix = kind_suggestion(kind, SERIES_KINDS)
            self.refuse_at(
                self.document.place(node), where, "not a kind of event that carries numbers", repr(kind), fix
            )
            return None
        return match["name"], kind, every

    def _events(self, fields: Fields, where: str) -> Mapping[str, int]:
        where += ", events"
        every: dict[str, int] = {}
        given = fields.get("events")
        named = [str(key.value) for key, _ in given.value] if isinstance(given, yaml.MappingNode) else []
        known = (*STEP_KINDS, *(kind for kind in named if is_kind(kind, ())))
        meant = {kind.casefold(): kind_suggestion(kind, STEP_KINDS) for kind in named if kind not in known}
        for kind, node in self.fields(given, where, known, habits=meant).items() if given is not None else ():
            interval = self._bounded(node, f"{where}, {kind}", 1)
            every[kind] = interval or 1
        return every

    def _plan(self, fields: Fields, where: str) -> Plan:
        where += ", plan"
        given = self.fields(fields["plan"], where, _PLAN_KEYS) if "plan" in fields else {}
        constants = given.pop("constants", None)
        numbers = {key: self._bounded(node, f"{where}, {key}", 1) for key, node in given.items()}
        return Plan(**numbers, constants={} if constants is None else self._constants(constants, f"{where}, constants"))

    def _constants(self, node: yaml.Node, where: str) -> Mapping[str, float]:
        named = {name: self.number(value, f"{where}, {name}") for name, value in self.fields(node, where, None).items()}
        return {name: value for name, value in named.items() if value is not None}

    def _seconds(self, fields: Fields, where: str) -> float:
        if "step_s" not in fields:
            return 1.0
        value = self.param(fields["step_s"], f"{where}, step_s")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9:
            return float(value)
        if value is not None:
            self.refuse(fields["step_s"], f"{where}, step_s", "must be a number of seconds, 0 or more")
        return math.nan

    def _bounded(self, node: yaml.Node, where: str, least: int) -> int | None:
        value = self.whole(node, where)
        if value is not None and not least <= value <= 10**9:
            self.refuse(node, where, f"must be {least} or more" if value < least else "too many")
            return None
        return value
