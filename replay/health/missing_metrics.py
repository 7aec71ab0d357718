"""Finds the metrics that a controller needs and a run lacks, with the reasons that probes recorded.

Probes say what they cannot observe in annotations with the attribute ``absent``: reasons by name or pattern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from ...rules.language.families import STAR, have_common_names, is_pattern, matches
from ...rules.language.references import ALSO_CALLED
from ...rules.policy_file.declarations import Controller
from ..runs.event_stream import EventStream

#: The attribute of an annotation that holds reasons by name or pattern.
ABSENT: Final = "absent"

#: The reason where no probe gives one.
NOT_RECORDED: Final = "not recorded"

_PLACE: Final = re.compile(r"\{\w+\}")


class MissingMetrics:
    """The metrics that a run lacks.

    Args:
        stream: The run.
        constants: Names of the constants that the loop declared, which are series of one value.
    """

    def __init__(self, stream: EventStream, constants: Collection[str] = ()) -> None:
        self._stream = stream
        self._names = frozenset(stream.facts.metrics) | frozenset(constants)
        self._constants = frozenset(constants)
        self._reasons = dict(_reasons(stream))

    def of(self, controller: Controller) -> dict[str, str]:
        """Return why metrics that a controller needs have no value, by name or pattern."""
        return {name: self._reason(name) for name in needs(controller) if not self._has(name)}

    def _has(self, name: str) -> bool:
        if is_pattern(name):
            return any(matches(own, name) and self._has_value(own) for own in self._names)
        return any(own in self._names and self._has_value(own) for own in (name, ALSO_CALLED.get(name, name)))

    def _has_value(self, name: str) -> bool:
        """Whether a metric counts as recorded. One that is absent by its probe may hold NaN in place of values."""
        if name in self._constants or not any(have_common_names(name, each) for each in self._reasons):
            return True
        return any(not math.isnan(value) for value in self._stream.numbers(name).values.tolist())

    def _reason(self, name: str) -> str:
        found = (reason for each, reason in self._reasons.items() if have_common_names(name, each))
        return next(found, NOT_RECORDED)


def needs(controller: Controller) -> list[str]:
    """Return the metrics and patterns that a controller needs: those it requires, else those that its rule reads."""
    required = [key.name for key in controller.requires]
    if required:
        return required
    of_each = [] if controller.each is None else [controller.each.name]
    read = [key.name for key in controller.rule.bound.series if not key.is_derived]
    return list(dict.fromkeys((*of_each, *read)))


def _reasons(stream: EventStream) -> Iterator[tuple[str, str]]:
    """Yield reasons by pattern, the newest last. A place such as ``{block}`` means the same as a star."""
    for _, event in stream.of_kind("annotation"):
        given = event.attrs.get(ABSENT)
        if isinstance(given, Mapping):
            for name, reason in given.items():
                yield _PLACE.sub(STAR, str(name)), str(reason)
