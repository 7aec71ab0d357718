"""Finds the runs of a group by name, group, tag or configuration, and counts the groups that were tried before it.

Takes the ``run.json`` of a store's runs and the text that names a group, returns runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.run_info import RunInfo, flattened

#: Words that name the seed in a configuration.
_SEED_KEYS: Final = ("seed", "random_seed", "manual_seed", "random_state", "rng_seed")

#: The end of a name that numbers the repeats of one configuration, such as ``-seed3``. Other numbers tell tries apart.
_REPEAT: Final = re.compile(r"(?:^|[\W_]+)(?:seed|rep|s)[\W_]*\d+$", re.IGNORECASE)

#: Prefix of configuration keys, as a command line may write them.
_CONFIG: Final = "config."


@dataclass(frozen=True, slots=True)
class Selector:
    """What the runs of a group have in common.

    Attributes:
        key: ``name``, ``group``, ``tag``, or a key of the configuration, dotted where it is nested.
        value: The value; for a name it may hold ``*`` and ``?``.
    """

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    def matches(self, info: RunInfo) -> bool:
        """Whether a run belongs to the group."""
        if self.key == "name":
            return self.value == info.run_id or fnmatchcase(info.name, self.value)
        if self.key == "group":
            return info.group == self.value
        if self.key == "tag":
            return self.value in info.tags
        entries = flattened(info.config)
        return self.key in entries and _is_value(entries[self.key], self.value)

    def values_of(self, info: RunInfo) -> tuple[str, ...]:
        """Return the values by which a run would belong to a group of this kind. A name counts without its repeat."""
        if self.key == "name":
            return (_REPEAT.sub("", info.name) or info.name,)
        if self.key == "group":
            return (info.group,) if info.group else ()
        if self.key == "tag":
            return info.tags
        entries = flattened(info.config)
        return (_text(entries[self.key]),) if self.key in entries else ()


def selector_of(text: str, infos: Sequence[RunInfo]) -> Selector:
    """Parse what names a group: ``KEY=VALUE``, or a name, a pattern of names, a run's id, or a group.

    Args:
        text: The text. A plain one is a name if any run has it, else a group.
        infos: The runs of the store.

    Raises:
        TelemetryError: No run belongs to it. The error suggests what was meant.
    """
    key, equals, value = text.partition("=")
    plain = [Selector("name", text), Selector("group", text)]
    given = [Selector(key.removeprefix(_CONFIG), value)] if equals and key and value else []
    for selector in (*plain, *given):
        if any(map(selector.matches, infos)):
            return selector
    if given:
        selector = given[0]
        known = {found for info in infos for found in _known_values(selector, info)}
        if known or selector.key in ("name", "group", "tag"):
            raise TelemetryError(f"no run has this {selector.key}", got=value, fix=suggestion(value, known))
        keys = {"name", "group", "tag", *(name for info in infos for name in flattened(info.config))}
        raise TelemetryError("no run has this key of groups", got=selector.key, fix=suggestion(selector.key, keys))
    names = {info.name for info in infos} | {info.group for info in infos if info.group}
    raise TelemetryError("no run has this name or group", got=text, fix=suggestion(text, names))


def members(selector: Selector, infos: Iterable[RunInfo]) -> frozenset[str]:
    """Return the ids of the runs of a group."""
    return frozenset(info.run_id for info in infos if selector.matches(info))


def tries_before(candidate: Selector, baseline: frozenset[str], infos: Sequence[RunInfo]) -> list[frozenset[str]]:
    """Return the groups that were tried against a baseline before a candidate, each as the ids of its runs.

    A try is a group of the candidate's kind, without runs of either group. It began no earlier than the baseline, or
    than the candidate if that began first. What begins later changes nothing.

    Args:
        candidate: The group.
        baseline: Ids of the baseline's runs.
        infos: The runs of the store.
    """
    own = members(candidate, infos)
    runs: dict[str, set[str]] = {}
    for info in infos:
        for value in candidate.values_of(info):
            runs.setdefault(value, set()).add(info.run_id)
    began = {info.run_id: info.attempts[0].started_ns for info in infos}
    since = min(began[run] for run in baseline | own)
    first = min(began[run] for run in own)
    others = {frozenset(group) for group in runs.values() if not group & (baseline | own)}
    return [group for group in others if since <= min(began[run] for run in group) < first]


def seed_of(info: RunInfo, key: str | None = None) -> str | None:
    """Return the seed that a run's configuration names; None without one.

    Args:
        info: The run.
        key: The key of the seed; by default ``seed`` or a similar word, the least nested first.
    """
    entries = flattened(info.config)
    if key is not None:
        found = [key] if key in entries else []
    else:
        found = [name for name in entries if name.rpartition(".")[2].casefold() in _SEED_KEYS]
        found.sort(key=lambda name: (name.count("."), _SEED_KEYS.index(name.rpartition(".")[2].casefold()), name))
    return None if not found or entries[found[0]] is None else _text(entries[found[0]])


def _known_values(selector: Selector, info: RunInfo) -> tuple[str, ...]:
    return (info.name,) if selector.key == "name" else selector.values_of(info)


def _is_value(entry: Any, text: str) -> bool:
    """Whether an entry of a configuration is the value that a text writes: as JSON, as text, or as an equal number."""
    if _text(entry) == text or str(entry) == text:
        return True
    try:
        return isinstance(entry, (int, float)) and not isinstance(entry, bool) and float(text) == entry
    except ValueError:
        return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
