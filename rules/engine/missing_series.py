"""Builds the text of the warning about a series that a rule reads and that never appears."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..errors import phrase, suggestion
from ..language.references import SeriesKey

#: Evaluations of a controller after which a series that never appeared is worth a warning.
MISSING_SERIES_AFTER: Final = 100
#: Most names of metrics that are remembered for that warning.
REMEMBERED_NAMES: Final = 1_000


def missing_series(key: SeriesKey, names_seen: Iterable[str]) -> str:
    """Return the text of the warning.

    Args:
        key: The series.
        names_seen: The metrics that did appear.
    """
    return _missing(key, f"after {MISSING_SERIES_AFTER} evaluations", names_seen)


def never_recorded(key: SeriesKey, controllers: Sequence[str], names_seen: Iterable[str]) -> str:
    """Return a line about a series that no event of a run has carried, and the controllers that read it."""
    readers = ("controller " if len(controllers) == 1 else "controllers ") + ", ".join(map(repr, controllers))
    return f"{readers}: {_missing(key, 'in this run', names_seen)}"


def _missing(key: SeriesKey, when: str, names_seen: Iterable[str]) -> str:
    carrier = f"no {key.kind} event" if key.kind else "no event"
    seen = [*names_seen]
    fix = suggestion(key.name, seen) if seen else "No event has carried any metric."
    what = f"{carrier} has carried this series {when}"
    return phrase(what, repr(key.name), fix.replace("Known here:", "Seen so far:"))
