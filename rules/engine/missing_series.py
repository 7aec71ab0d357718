"""Builds the text of the warning about a series that a rule reads and that never appears."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from ..errors import phrase, suggestion
from ..language.families import MAX_MEMBERS
from ..language.references import SeriesKey
from ..policy_file.declarations import Controller

#: What separates the words of a metric's name.
_SEPARATOR: Final = re.compile(r"[/_. -]")

#: Evaluations of a controller after which a series that never appeared is worth a warning.
MISSING_SERIES_AFTER: Final = 100
#: Most names of metrics that are remembered for that warning.
REMEMBERED_NAMES: Final = 1_000


def missing_series(reader: Controller, key: SeriesKey, seen: Mapping[str, str]) -> str:
    """Return the text of the warning.

    Args:
        reader: A controller that reads the series.
        key: The series.
        seen: The metrics that did appear, each with the kind of event that carried it.
    """
    return _missing([reader], key, f"after {MISSING_SERIES_AFTER} evaluations", seen)


def never_recorded(readers: Sequence[Controller], key: SeriesKey, seen: Mapping[str, str]) -> str:
    """Return a line about a series that no event of a run has carried, and the controllers that read it."""
    names = ", ".join(repr(reader.name) for reader in readers)
    return f"controller{'s' * (len(readers) > 1)} {names}: {_missing(readers, key, 'in this run', seen)}"


def crowded_family(key: SeriesKey) -> str:
    """Return the text of the warning about a family with too many members."""
    of = f" of {key.kind} events" if key.kind else ""
    fix = "Those that appeared first are read. Write a pattern that matches fewer."
    return phrase(f"more than {MAX_MEMBERS:,} series{of} match this pattern", repr(key.name), fix)


def meant_series(readers: Sequence[Controller], key: SeriesKey, recorded: Mapping[str, str]) -> str:
    """Return a sentence that names the metric which controllers may mean, or else lists the metrics.

    A metric with the same last word, such as ``train/loss`` for ``loss``, is nearer than one with similar letters.
    Among several, one of an evaluation is meant where the controllers are triggered by evaluations alone.

    Args:
        readers: The controllers that read the series.
        key: The series, which was not recorded.
        recorded: The recorded metrics, each with the kind of event that carried it.
    """
    triggers = {key.kind} if key.kind else {trigger for reader in readers for trigger in reader.triggers}
    of_evaluation = triggers <= {"evaluate", "on_evaluate"}
    alike = [name for name in recorded if name != key.name and _last_word(name) == _last_word(key.name)]
    likely = [name for name in alike if (recorded[name] == "evaluate") == of_evaluation] or alike
    if likely:
        (nearest,) = get_close_matches(key.name, likely, n=1, cutoff=0.0)
        return f"Did you mean '{nearest}'?"
    return suggestion(key.name, recorded.keys() - {key.name})


def _last_word(name: str) -> str:
    return _SEPARATOR.split(name.casefold())[-1]


def _missing(readers: Sequence[Controller], key: SeriesKey, when: str, seen: Mapping[str, str]) -> str:
    carrier = f"no {key.kind} event" if key.kind else "no event"
    fix = meant_series(readers, key, seen) if seen else "No event has carried any metric."
    what = f"{carrier} has carried this series {when}"
    return phrase(what, repr(key.name), fix.replace("Known here:", "Seen so far:"))
