"""Reads a keep file: the rules that say which checkpoints and which runs stay.

Takes a YAML file; returns its rules, or raises every problem of the file with line and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeAlias

from ..replay.runs.objective import Objective, declared_objective
from ..rules.errors import PolicyError, suggestion
from ..rules.policy_file.document import Document, Place, read_text
from ..rules.policy_file.fields import FieldReader, Node
from ..store.errors import TelemetryError

#: The rules for runs; checkpoints have two more.
_FOR_RUNS: Final = ("best", "last", "pinned", "younger_than")
_FOR_CHECKPOINTS: Final = (*_FOR_RUNS, "before_spike", "powers_of")
_SPIKE_KEYS: Final = ("metric", "factor", "steps")
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)([dhm])")
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True, slots=True)
class Spike:
    """A spike: consecutive values of a metric that are not finite, or above a multiple of their recent mean.

    Attributes:
        metric: The metric.
        factor: The multiple.
        steps: How many consecutive values make a spike.
    """

    metric: str = "loss"
    factor: float = 2.0
    steps: int = 1


#: A number of things or a base, an age, a spike, or the listed names; None for ``pinned`` without a list.
_Value: TypeAlias = int | timedelta | Spike | frozenset[str] | None


@dataclass(frozen=True, slots=True)
class KeepRule:
    """One rule: what it keeps, stays.

    Attributes:
        name: ``best``, ``last``, ``pinned``, ``younger_than``, ``before_spike`` or ``powers_of``.
        value: Its argument.
        text: The rule as reports show it.
    """

    name: str
    value: _Value
    text: str

    @property
    def count(self) -> int:
        """The argument of ``best``, ``last`` and ``powers_of``."""
        assert isinstance(self.value, int)
        return self.value

    @property
    def age(self) -> timedelta:
        """The argument of ``younger_than``."""
        assert isinstance(self.value, timedelta)
        return self.value

    @property
    def spike(self) -> Spike:
        """The argument of ``before_spike``."""
        assert isinstance(self.value, Spike)
        return self.value

    @property
    def listed(self) -> frozenset[str]:
        """The names and paths of the list that ``pinned`` names; empty without one."""
        return self.value if isinstance(self.value, frozenset) else frozenset()


@dataclass(frozen=True, slots=True)
class KeepFile:
    """The rules of a keep file.

    Attributes:
        checkpoints, runs: The rules for each; None if the file has no such section, and all of them stay.
        objective: The metric that judges every run; None to judge each run by its own.
    """

    checkpoints: tuple[KeepRule, ...] | None
    runs: tuple[KeepRule, ...] | None
    objective: Objective | None = None

    @property
    def spikes(self) -> tuple[Spike, ...]:
        """The spikes that rules name."""
        return tuple(rule.spike for rule in self.checkpoints or () if rule.name == "before_spike")


def read_keep_file(path: Path) -> KeepFile:
    """Read a keep file.

    Raises:
        PolicyError: The file cannot be read, or is invalid. The error holds every problem, with line and column.
    """
    reader = _KeepReader(Document(read_text(path), str(path)), path.parent)
    keep = reader.keep_file()
    if reader.problems:
        raise PolicyError(reader.problems)
    return keep


class _KeepReader(FieldReader):
    """Reads the keep file of one document.

    Args:
        document: The document.
        folder: The folder that lists of pinned things are relative to.
    """

    def __init__(self, document: Document, folder: Path) -> None:
        super().__init__(document)
        self._folder = folder

    def keep_file(self) -> KeepFile:
        """Return the rules of the document; problems are collected."""
        root = self.document.root
        if root is None:
            what = "the file is empty. Write 'checkpoints:' with a list 'keep:'"
            raise PolicyError([self.document.problem(Place(1, 1), what)])
        fields = self.fields(root, "", ("checkpoints", "runs", "objective"))
        if not fields.keys() & {"checkpoints", "runs"} and not self.problems:
            self.refuse(root, "", "neither 'checkpoints' nor 'runs' is here", shows=False)
        checkpoints, runs = (
            self._section(fields[name], name, known) if name in fields else None
            for name, known in (("checkpoints", _FOR_CHECKPOINTS), ("runs", _FOR_RUNS))
        )
        return KeepFile(checkpoints, runs, self._objective(fields["objective"]) if "objective" in fields else None)

    def _objective(self, node: Node) -> Objective | None:
        text = self.text(node, "objective")
        try:
            return None if text is None else declared_objective(text)
        except TelemetryError as error:
            self.refuse(node, "objective", error.what, f"{error.fix}.")
            return None

    def _section(self, node: Node, where: str, known: tuple[str, ...]) -> tuple[KeepRule, ...]:
        fields = self.fields(node, where, ("keep",), ("keep",))
        if "keep" not in fields:
            return ()
        entries = self.items(fields["keep"], f"{where}, keep")
        if not entries:
            what = "no rule: everything would go"
            self.refuse(fields["keep"], f"{where}, keep", what, f"Leave out '{where}' to keep all.", shows=False)
        rules = [self._rule(entry, f"{where}, keep", known) for entry in entries]
        return tuple(rule for rule in rules if rule is not None)

    def _rule(self, node: Node, where: str, known: tuple[str, ...]) -> KeepRule | None:
        """Return the rule of one entry: ``NAME: ARGUMENT``, or the word ``pinned``."""
        if self.keys_of(node):
            fields = self.fields(node, where, known)
        else:
            word = self.text(node, where)
            if word is not None and word != "pinned":
                self.refuse(node, where, "not a rule", f"Write 'NAME: ARGUMENT'. {suggestion(word, known)}")
            return KeepRule("pinned", None, "pinned") if word == "pinned" else None
        if len(fields) > 1:
            self.refuse(node, where, "one rule an entry", "Begin each rule with '- '.")
        for name, argument in fields.items():
            value = self._value(name, argument, f"{where}, {name}")
            shown = f"{value.metric} x{value.factor:g}" if isinstance(value, Spike) else argument.value
            return None if value is None else KeepRule(name, value, f"{name}: {shown}")
        return None

    def _value(self, name: str, node: Node, where: str) -> _Value:
        if name == "before_spike":
            return self._spike(node, where)
        if name == "younger_than":
            return self._age(node, where)
        if name == "pinned":
            return self._listed(node, where)
        return self._whole(node, where, 2 if name == "powers_of" else 1)

    def _whole(self, node: Node, where: str, least: int) -> int | None:
        value = self._scalar(node)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.refuse(node, where, f"must be a whole number from {least}")
        return None

    def _age(self, node: Node, where: str) -> timedelta | None:
        match = _AGE.fullmatch(str(node.value))
        try:
            if match is not None:
                return timedelta(**{_UNITS[match[2]]: float(match[1])})
        except OverflowError:
            pass
        self.refuse(node, where, "an age is a number with the unit d, h or m, such as 30d")
        return None

    def _listed(self, node: Node, where: str) -> frozenset[str] | None:
        name = self.text(node, where)
        if name is None:
            return None
        try:
            lines = (self._folder / name).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            self.refuse(node, where, f"the list cannot be read ({reason})")
            return None
        return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))

    def _spike(self, node: Node, where: str) -> Spike | None:
        known = len(self.problems)
        fields = self.fields(node, where, _SPIKE_KEYS)
        metric = self.text(fields["metric"], f"{where}, metric") if "metric" in fields else None
        factor = self._factor(fields["factor"], f"{where}, factor") if "factor" in fields else 2.0
        steps = self._whole(fields["steps"], f"{where}, steps", 1) if "steps" in fields else 1
        if len(self.problems) > known:
            return None
        return Spike(metric or "loss", factor or 2.0, steps or 1)

    def _factor(self, node: Node, where: str) -> float | None:
        value = self._scalar(node)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 < value < 1e300:
            return float(value)
        self.refuse(node, where, "must be a number above 1")
        return None
