"""``steptape replay``: prints the decisions of a rule file over one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...replay.policies.findings_on_runs import compared_with
from ...replay.policies.run_accounts import LearningRatePoint, expert_accounts, learning_rates
from ...replay.runs import replaying
from ...replay.runs.run_result import Replay
from ...rules.engine.decisions import Cleared, Decision, DerivedValues, Outcome, RuleError
from ...rules.policy_file.policy import Policy
from ...store.errors import counted
from ...store.events import Event
from ...store.run import Run
from ..lookup import events_named
from ..options import ReplayArguments
from ..output import print_json, print_table, say, shown_values
from ..policy_lookup import policy_named
from ..policy_options import axes_of, check_numbers
from ..streams import complain

#: The columns of an account: how it names each number, and the heading.
_ACCOUNT: Final = {
    "dispatches": "dispatches",
    "over_share": "over",
    "active_share": "active",
    "mean_ratio": "ratio",
    "mean_chunk_ratio": "chunks",
    "mean_expert_ratio": "experts",
    "mean_sticky_ratio": "sticky",
    "max_ratio": "worst",
    "chunk_moved": "planned",
    "moved": "moved",
    "transfers": "transfers",
    "transfer_bytes": "bytes",
    "excess_share": "excess",
}


def replay(asked: ReplayArguments) -> None:
    """Print what a rule file decides over one recorded run."""
    if asked.has_experts:
        _print_accounts(
            asked.policy, events_named(asked.source, asked.store), asked.settings or (), as_json=asked.as_json
        )
        return
    loaded, events = policy_named(asked.policy, asked.settings), events_named(asked.source, asked.store)
    if asked.has_derived:
        _print_derived(replaying.derived_values(loaded, events), as_json=asked.as_json)
        return
    replayed = replaying.replay(loaded, events)
    if asked.has_rates:
        _print_rates(learning_rates(replayed, events), as_json=asked.as_json)
    elif asked.as_json:
        for judged in replayed.outcomes:
            print_json(judged.to_json())
    else:
        _print_replay(replayed)
        if not replayed.outcomes and isinstance(events, Run):
            _say_why_silent(asked.policy, loaded, events)


def _print_accounts(policy: str, events: Run | Sequence[Event], settings: Sequence[str], *, as_json: bool) -> None:
    loaded, axes = policy_named(policy, None), axes_of(settings)
    check_numbers(axes, loaded.params)
    accounts = list(expert_accounts(loaded, events, axes))
    if as_json:
        for account in accounts:
            print_json(account.to_json())
    elif len(accounts) > 1:
        varied = [name for name, values in axes.items() if len(values) > 1]
        _print_shares(varied, [(*(each.params[name] for name in varied), each.whole) for each in accounts])
    else:
        (whole,) = accounts
        _print_shares(["layer"], [*whole.layers.items(), ("all", whole.whole)])


def _print_shares(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print accounts, each at the end of a row that begins with its labels."""
    shown = [key for key in _ACCOUNT if key != "transfer_bytes" or any(row[-1][key] for row in rows)]
    if names != ["layer"]:
        shown.remove("excess_share")
    headings = [_ACCOUNT[key] for key in shown]
    cells = [(*labels, *(_account_cell(key, account[key]) for key in shown)) for *labels, account in rows]
    print_table((*names, *headings), cells, numeric=headings)
    say("Loads only: counts show neither time, nor memory, nor what overlaps with communication.")


def _account_cell(key: str, value: float) -> str:
    if key.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:.3f}" if key.endswith("_ratio") or key == "max_ratio" else f"{value:,}"


def _print_rates(points: Iterable[LearningRatePoint], *, as_json: bool) -> None:
    if as_json:
        for point in points:
            print_json(point.to_json())
    else:
        rows = [(each.step, each.base, each.scheduled, each.used, each.validity) for each in points]
        headings = ("step", "base", "scheduled", "used")
        print_table((*headings, "validity"), rows, numeric=headings)


def _print_derived(derived: Sequence[DerivedValues], *, as_json: bool) -> None:
    if as_json:
        for each in derived:
            print_json(each.to_json())
        return
    names = list(dict.fromkeys(name for each in derived for name in each.names))
    rows = [(each.step, *map(each.by_name().get, names), ", ".join(each.classes.values())) for each in derived]
    print_table(("step", *names, "class"), rows, numeric=("step", *names))


def _print_replay(replayed: Replay) -> None:
    rows = [
        (
            judged.outcome.step,
            f"{judged.event}, {judged.outcome.value_lag} late" if judged.outcome.value_lag else judged.event,
            f"{judged.outcome.controller} {judged.outcome.member}".strip(),
            _said(judged.outcome),
            judged.validity,
            shown_values(judged.shown_values),
        )
        for judged in replayed.outcomes
    ]
    print_table(("step", "event", "controller", "operations", "validity", "values"), rows, numeric=("step",))
    stop, ending = replayed.stop, replayed.ending
    end = "no stop" if stop is None or ending is None else f"stop at step {ending.step} ({stop.validity})"
    say(f"{counted(replayed.event_count, 'event')}, {counted(len(replayed.decisions), 'decision')}, {end}")


def _say_why_silent(named: str, policy: Policy, run: Run) -> None:
    """Say on stderr why no rule could decide anything in a run; nothing if one could."""
    reach = compared_with(policy, [run]).reach
    if not reach.could_fire:
        more = f"'steptape check {named} --against {run.run_id}' says more"
        complain(f"no rule could fire: the run has {', '.join(reach.reasons)}. {more}")


def _said(outcome: Outcome) -> object:
    """Format an outcome for a cell: a decision's operations (in brackets in shadow mode), an error, or a word."""
    if isinstance(outcome, Decision):
        left_out = [f"no {operation}: {why}" for operation, why in outcome.not_ordered.items()]
        said = (*outcome.operations, *left_out)
        return said if outcome.acts else f"shadow ({', '.join(said)})"
    if isinstance(outcome, Cleared):
        return "cleared"
    return outcome.error if isinstance(outcome, RuleError) else "warning"
