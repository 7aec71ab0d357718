"""``steptape compare``: says whether a group of runs is better than another, and whether that is proven."""

from __future__ import annotations

from typing import Final

import typer

from ...replay.comparing.comparing import compare as compare_groups
from ...replay.comparing.group_comparison import (
    Axis,
    ComparisonSettings,
    GroupComparison,
    KeepVerdict,
    MinEffect,
    comparison_json,
    explanations,
    group_rows,
    headings,
    in_words,
    verdict_sentence,
)
from ..lookup import open_store_named
from ..options import CompareArguments
from ..output import print_json, print_table, say
from ..policy_options import objectives_of, renames_of
from ..streams import FINDINGS, NO_ANSWER

#: The value of --pairs for groups whose runs are no pairs.
_UNPAIRED: Final = "none"
_STATUS: Final = {KeepVerdict.KEEP: 0, KeepVerdict.DISCARD: FINDINGS, KeepVerdict.NOT_YET: NO_ANSWER}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def compare(asked: CompareArguments) -> None:
    """Say whether runs B are better than runs A: keep, discard or not yet."""
    axis, point = _place(asked.at)
    settings = ComparisonSettings(
        objectives=objectives_of(asked.objective),
        renames=tuple(renames_of(asked.renames).items()),
        axis=axis,
        point=point,
        alpha=asked.alpha,
        at_most_tries=asked.at_most_tries,
        at_most_runs=asked.at_most_runs,
        min_effect=_min_effect(asked.min_effect),
        paired=None if asked.pairs is None else asked.pairs != _UNPAIRED,
        seed_key=None if asked.pairs == _UNPAIRED else asked.pairs,
    )
    found = compare_groups(open_store_named(asked.store), asked.baseline, asked.candidate, settings)
    if asked.as_json:
        print_json(comparison_json(found))
    else:
        _print(found)
    raise typer.Exit(_STATUS[found.verdict])


def _print(found: GroupComparison) -> None:
    say(verdict_sentence(found))
    say(in_words(found))
    say()
    names = headings(found)
    print_table(names, group_rows(found), numeric=names[2:])
    say()
    for line in explanations(found):
        say(line)


def _place(text: str) -> tuple[Axis, float | None]:
    """Parse ``AXIS`` or ``AXIS=VALUE``; a time may have the unit s, m, h or d."""
    name, equals, value = text.partition("=")
    if name not in tuple(Axis):
        raise typer.BadParameter(f"--at takes step, tokens or time, with =VALUE or without; got {text!r}")
    axis = Axis(name)
    if not equals:
        return axis, None
    unit = _SECONDS.get(value[-1:], 0) if axis is Axis.TIME else 0
    try:
        point = float(value[:-1]) * unit if unit else float(value)
    except ValueError:
        point = -1.0
    if not 0 <= point < float("inf"):
        raise typer.BadParameter(f"--at {name}=VALUE takes a number, such as {name}=1000; got {value!r}")
    return axis, point


def _min_effect(text: str) -> MinEffect:
    """Parse a least effect: a number, or a percentage of the baseline's values."""
    is_share = text.endswith("%")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise typer.BadParameter(f"--min-effect takes a number or a percentage, such as 0.01 or 1%; got {text!r}")
    return MinEffect(relative=value / 100) if is_share else MinEffect(absolute=value)
