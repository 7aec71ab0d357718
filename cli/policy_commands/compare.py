"""``steptape compare``: says whether a group of runs is better than another, and whether that is proven."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ...replay.comparing.comparing import ALPHA, ComparisonSettings, GroupComparison, KeepVerdict, MinEffect
from ...replay.comparing.comparing import compare as compare_groups
from ...replay.comparing.readings import Axis
from ...replay.comparing.sentences import HEADINGS, explanations, group_rows, verdict_sentence
from ...store.store import open_store
from ..exit_status import FINDINGS, NO_ANSWER
from ..options import JsonOption, store_path
from ..output import print_json, print_table, say
from ..policy_options import ModeOption, ObjectiveOption, RenameOption, objectives_of, renames_of

_GROUP: Final = "a name, a pattern such as 'lr3*', a group, or KEY=VALUE of name, group, tag or the configuration"
_STATUS: Final = {KeepVerdict.KEEP: 0, KeepVerdict.DISCARD: FINDINGS, KeepVerdict.NOT_YET: NO_ANSWER}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def compare(
    baseline: Annotated[str, typer.Argument(metavar="A", help=f"The runs to beat: {_GROUP}.")],
    candidate: Annotated[str, typer.Argument(metavar="B", help="The runs that may be better, named alike.")],
    store: Annotated[
        Path,
        typer.Option("--store", parser=store_path, metavar="STORE", envvar="STEPTAPE_STORE", help="Folder of runs."),
    ] = Path("runs"),
    objective: ObjectiveOption = None,
    mode: ModeOption = None,
    renames: RenameOption = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="step|tokens|time[=VALUE]",
            help="Where runs are compared: by default at the last step that every finished run evaluated.",
        ),
    ] = "step",
    alpha: Annotated[
        float, typer.Option(metavar="P", help="Largest probability of keeping a candidate that is no better.")
    ] = ALPHA,
    min_effect: Annotated[
        str, typer.Option(metavar="D|P%", help="By how much B must be better: in the metric's units, or in percent.")
    ] = "0",
    at_most_tries: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of candidates that you will ever try against A.")
    ] = None,
    at_most_runs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of B after which it is discarded unless it is kept.")
    ] = None,
    paired: Annotated[
        bool | None,
        typer.Option(
            "--paired/--unpaired",
            help="Whether runs of one seed are pairs; by default if one group has all seeds of the other.",
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of the configuration that holds the seed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether runs B are better than runs A: keep, discard or not yet.

    The runs of a group are repeats of one configuration, such as with other seeds. You may look after each run and stop
    when you like. Exit status 0 for keep, 1 for discard, 3 for not yet.
    """
    axis, point = _place(at)
    settings = ComparisonSettings(
        objectives=objectives_of(objective, mode),
        renames=tuple(renames_of(renames).items()),
        axis=axis,
        point=point,
        alpha=alpha,
        at_most_tries=at_most_tries,
        at_most_runs=at_most_runs,
        min_effect=_min_effect(min_effect),
        paired=paired,
        seed_key=seed,
    )
    found = compare_groups(open_store(store), baseline, candidate, settings)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    raise typer.Exit(_STATUS[found.verdict])


def _print(found: GroupComparison) -> None:
    say(verdict_sentence(found))
    say()
    headings = (*HEADINGS[:-1], f"{HEADINGS[-1]} {found.objective.metric}")
    print_table(headings, group_rows(found), numeric=headings[2:])
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
