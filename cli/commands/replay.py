"""``steptape replay``: prints the decisions of a policy over one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from ...replay.policies.learning_rates import LearningRatePoint, learning_rates
from ...replay.runs import replaying
from ...replay.runs.saves import Saves
from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError
from ...store.plural import counted
from ..lookup import events_named, policy_named
from ..options import JsonOption, PolicyArgument, SavesOption, SetOption, StoreOption
from ..output import print_json, print_table, say


def replay(
    policy: PolicyArgument,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A run, or a .jsonl file of events ('-' reads standard input).")
    ],
    store: StoreOption = None,
    settings: SetOption = None,
    saves: SavesOption = Saves.KEEP,
    has_rates: Annotated[
        bool, typer.Option("--lr", help="Print the learning rates that the policy would have set instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a policy decides over one recorded run.

    With --json, prints one decision, rule error or warning per line. Its event_index counts the events of rank 0 from
    0. It skips events that a resume rolled back, and the recorded decisions, errors and warnings of live rules. --saves
    changes only validity labels: a replay reads the recorded checkpoints.

    With --lr, prints for each update of the record the rate of the schedule, the scheduled rate with the policy's
    reductions, and the used one. The losses are those of the record, so all after the first change is censored.
    """
    loaded, events = policy_named(policy, settings), events_named(source, store)
    replayed = replaying.replay(loaded, events, saves=saves)
    if has_rates:
        _print_rates(learning_rates(replayed, events), as_json=as_json)
    elif as_json:
        for judged in replayed.outcomes:
            print_json(judged.to_json())
    else:
        _print_replay(replayed)


def _print_rates(points: Iterable[LearningRatePoint], *, as_json: bool) -> None:
    if as_json:
        for point in points:
            print_json(point.to_json())
    else:
        rows = [(each.step, each.base, each.scheduled, each.used, each.validity) for each in points]
        headings = ("step", "base", "scheduled", "used")
        print_table((*headings, "validity"), rows, numeric=headings)


def _print_replay(replayed: replaying.Replay) -> None:
    rows = [
        (
            judged.outcome.step,
            f"{judged.event}, {judged.outcome.value_lag} late" if judged.outcome.value_lag else judged.event,
            f"{judged.outcome.controller} {judged.outcome.member}".strip(),
            _said(judged.outcome),
            judged.validity,
            judged.to_json().get("values"),
        )
        for judged in replayed.outcomes
    ]
    print_table(("step", "event", "controller", "operations", "validity", "values"), rows, numeric=("step",))
    stop = replayed.stop
    end = "no stop" if stop is None else f"stop at step {stop.outcome.step} ({stop.validity})"
    say(f"{counted(replayed.event_count, 'event')}, {counted(len(replayed.decisions), 'decision')}, {end}")


def _said(outcome: Outcome) -> object:
    """Format an outcome for a cell: a decision's operations (in brackets in shadow mode), an error, or a word."""
    if isinstance(outcome, Decision):
        return outcome.operations if outcome.acts else f"shadow ({', '.join(outcome.operations)})"
    if isinstance(outcome, Cleared):
        return "cleared"
    return outcome.error if isinstance(outcome, RuleError) else "warning"
