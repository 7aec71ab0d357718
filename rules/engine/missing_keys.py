"""Warns of keys of a controller metric that rules read and that no value of it has had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...store.events import Event
from ..errors import phrase, suggestion
from ..language.metric_keys import keys_read
from ..late_events import lag_of
from ..policy_file.policy import Policy
from .decisions import RuleWarning

#: Values of a metric after which a key that none of them had is worth a warning.
MISSING_KEY_AFTER: Final = 100


class ExpectedKeys:
    """The keys of one metric that rules read, until a value has had them.

    Args:
        metric: The name of the metric.
        reads: Each key, after those that lead to it, with the controller that reads it.
    """

    def __init__(self, metric: str, reads: Mapping[tuple[str, ...], str]) -> None:
        self._metric = metric
        self._reads = reads
        self.renew()

    def renew(self) -> None:
        """Expect all keys anew."""
        self.unseen = dict(self._reads)
        self._values = 0

    def take(self, value: Mapping[str, Any], event: Event) -> list[RuleWarning]:
        """Look for the keys in the metric's next value; warn, once, of those that never came."""
        self._values += 1
        self.unseen = {path: controller for path, controller in self.unseen.items() if _lacks(value, path)}
        if self._values < MISSING_KEY_AFTER:
            return []
        missing, self.unseen = self.unseen, {}
        place = (f"on_{event.kind}", event.attempt, event.rank, event.seq, event.step, event.epoch)
        return [
            RuleWarning(controller, *place, warning=self._warning(value, path), value_lag=lag_of(event))
            for path, controller in missing.items()
        ]

    def _warning(self, value: Mapping[str, Any], path: tuple[str, ...]) -> str:
        depth = next(depth for depth in range(len(path)) if _lacks(value, path[: depth + 1]))
        holder = value
        for key in path[:depth]:
            holder = holder[key]
        what = f"no value of controller metric '{self._metric}' has had this key after {self._values} values"
        fix = suggestion(path[depth], [key for key in holder if isinstance(key, str)])
        return phrase(what, repr(".".join(path)), fix.replace("Known here:", "It has:"))


def _lacks(value: Any, path: tuple[str, ...]) -> bool:
    """Whether a value, or a mapping in it, lacks the next key of a path. Other values may have any."""
    for key in path:
        if not isinstance(value, Mapping):
            return False
        if key not in value:
            return True
        value = value[key]
    return False


def expected_keys(policy: Policy) -> dict[str, ExpectedKeys]:
    """Return the keys that rules read of each metric."""
    reads: dict[str, dict[tuple[str, ...], str]] = {metric.name: {} for metric in policy.metrics}
    for controller in policy.controllers:
        for read in (read for rule in controller.bound_rules for read in keys_read(rule)):
            if read.metric in reads:
                reads[read.metric].setdefault(read.path, controller.name)
    return {name: ExpectedKeys(name, paths) for name, paths in reads.items()}
