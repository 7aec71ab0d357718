"""Finds where variants ask for an evaluation that the run lacks, after which the record may not show their run.

Takes the firings of all variants; returns whether the record shows each variant's whole run. It does unless one of its
rules reads evaluations, and it asks for one before it stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.metrics import METRIC_CLASSES
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import SeriesKey
from ..columns.stream import Stream, Truths
from .structures import Structure
from .tally import Tally
from .variants import Variant


def is_shown(stream: Stream, tally: Tally, variants: Sequence[Variant]) -> Truths:
    """Return whether the record shows all of the run under each variant; shape (variants,)."""
    lacking = np.full(len(variants), len(stream))
    evaluated = stream.steps[stream.rows("evaluate")]
    for events, asking in tally.asking(tally.watches.evaluates):
        in_vain = events[~np.isin(stream.steps[events], evaluated)]
        if len(in_vain):
            lacking[asking] = in_vain[0]
    is_whole: Truths = (lacking == len(stream)) | (tally.stops < lacking)
    reads: dict[Structure, bool] = {}
    for number in np.flatnonzero(~is_whole).tolist():
        structure = variants[number].structure
        if structure not in reads:
            reads[structure] = _reads_evaluations(structure.policy, stream)
        is_whole[number] = not reads[structure]
    return is_whole


def reads_families(policy: Policy) -> bool:
    """Whether a rule reads a family of series, whose kinds of events only the event engine knows."""
    keys = chain.from_iterable(map(_keys, policy.controllers))
    return any(key.is_of_member for key in keys) or any(controller.each for controller in policy.controllers)


def _reads_evaluations(policy: Policy, stream: Stream) -> bool:
    """Whether a controller's conditions read what evaluations brought: their values, or metrics of them."""
    kinds = {
        declared.name: METRIC_CLASSES[declared.class_name](declared.arguments, stream.plan).reads
        for declared in policy.metrics
    }
    for state in policy.states:
        kinds[state.name] = frozenset(trigger.removeprefix("on_") for trigger in state.triggers)
    rules = [rule.bound for controller in policy.controllers for rule in controller.conditions]
    keys = {key for bound in rules for key in bound.series}
    return any("evaluate" in kinds[name] for bound in rules for name in bound.metrics) or any(
        "evaluate" in _kinds_of(key, policy, stream) for key in keys
    )


def _keys(controller: Controller) -> Iterator[SeriesKey]:
    return (key for rule in controller.conditions for key in rule.bound.series)


def _kinds_of(key: SeriesKey, policy: Policy, stream: Stream) -> Iterator[str]:
    """Yield the kinds of events that give a series its values."""
    if key.kind:
        yield key.kind
    driver = _driver(key, policy)
    at = stream.series(driver).at
    if len(at) and at[0] >= 0:
        yield stream.names[stream.codes[at[0]]]


def _driver(key: SeriesKey, policy: Policy) -> SeriesKey:
    """Return the series of the run from whose values a series comes."""
    derived = {
        found: each.driver
        for controller in policy.controllers
        for rule in controller.bound_rules
        for found, each in rule.derived.items()
    }
    admitted = {each.key: each.driver for each in policy.admitted}
    while key.is_derived:
        key = derived[key] if key in derived else admitted[key]
    return key
