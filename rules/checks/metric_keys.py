"""Finds what rules read by keys of controller metrics: keys that are never there, and metrics of evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..errors import suggestion
from ..language.metric_keys import keys_read
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy

#: Keys of evaluations that are no metric of theirs.
_PLACES: Final = frozenset({"steps", "epoch"})


class UnknownKey(NamedTuple):
    """A key that the value of a metric never has.

    Attributes:
        controller: The controller that reads it.
        offset: The place in its rule.
        what: What is wrong, and how to mend it.
    """

    controller: Controller
    offset: int
    what: str


def unknown_keys(policy: Policy) -> Iterator[UnknownKey]:
    """Yield the keys that rules read of metrics whose keys are fixed, and that are none of these."""
    known: dict[str, frozenset[str] | None] = {}
    for declaration in policy.metrics:
        keys = declaration.metric_class.keys
        others = known.get(declaration.name, frozenset())
        known[declaration.name] = None if keys is None or others is None else keys | others
    for controller in policy.controllers:
        for read in keys_read(controller.rule.bound):
            keys = known.get(read.metric)
            if keys is not None and read.path[0] not in keys:
                fix = suggestion(read.path[0], keys)
                yield UnknownKey(controller, read.offset, f"'{read.metric}' has no key '{read.path[0]}'. {fix}")


def evaluations_read(policy: Policy) -> set[str]:
    """Return the metrics of evaluations that rules read by keys of controller metrics."""
    classes = {declaration.name: declaration.class_name for declaration in policy.metrics}
    found: set[str] = set()
    for controller in policy.controllers if classes else ():
        for read in keys_read(controller.rule.bound):
            match classes.get(read.metric, ""), *read.path:
                case ("HistoryBasedMetric", "metrics", name) | ("EvalMetrics", name):
                    found.add(name)
    return found - _PLACES
