"""``steptape replay``: prints the decisions of a policy over one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from ...replay.policies.expert_accounts import expert_accounts
from ...replay.policies.learning_rates import LearningRatePoint, learning_rates
from ...replay.runs import replaying
from ...replay.runs.saves import Saves
from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError
from ...store.events import Event
from ...store.plural import counted
from ...store.run import Run
from ..lookup import events_named
from ..options import JsonOption, StoreOption
from ..output import print_json, print_table, say, shown_values
from ..param_values import axes_of, check_numbers
from ..policy_lookup import policy_named
from ..policy_options import PolicyArgument, SavesOption, SetOption

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
    has_experts: Annotated[
        bool, typer.Option("--experts", help="Print what LLEP would have made of the experts' tokens instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a policy decides over one recorded run.

    With --json, prints one decision, rule error or warning per line. Its event_index counts the events of rank 0 from
    0. It skips events that a resume rolled back, and the recorded decisions, errors and warnings of live rules. --saves
    changes only validity labels: a replay reads the recorded checkpoints.

    With --lr, prints for each update of the record the rate of the schedule, the scheduled rate with the policy's
    reductions, and the used one. The losses are those of the record, so all after the first change is censored.

    With --experts, prints what LLEP would have made of the recorded tokens of experts, by the policy's metric of class
    LlepPlan: for each layer, or for each combination of params if --set gives several values, as in threshold=1,1.3,2.
    over and active are shares of the dispatches: with a load ratio of at least the threshold, and with a plan in use.
    ratio, chunks, experts and sticky are mean load ratios: in place, after a plan in chunks, after that plan with whole
    experts, and under the plan in use. worst is the greatest in place; excess the layer's share of all tokens above the
    mean load. planned and moved are tokens sent elsewhere by a plan for each dispatch, and by the plan in use.
    """
    if has_experts:
        _print_accounts(policy, events_named(source, store), settings or (), as_json=as_json)
        return
    loaded, events = policy_named(policy, settings), events_named(source, store)
    replayed = replaying.replay(loaded, events, saves=saves)
    if has_rates:
        _print_rates(learning_rates(replayed, events), as_json=as_json)
    elif as_json:
        for judged in replayed.outcomes:
            print_json(judged.to_json())
    else:
        _print_replay(replayed)


def _print_accounts(policy: str, events: Run | Sequence[Event], settings: Sequence[str], *, as_json: bool) -> None:
    loaded, axes = policy_named(policy, None), axes_of(settings)
    check_numbers(axes, loaded.params)
    accounts = list(expert_accounts(loaded, events, axes))
    if as_json:
        for account in accounts:
            print_json(account)
    elif len(accounts) > 1:
        varied = [name for name, values in axes.items() if len(values) > 1]
        _print_shares(varied, [(*(each["params"][name] for name in varied), each) for each in accounts])
    else:
        (whole,) = accounts
        _print_shares(["layer"], [*whole["layers"].items(), ("all", whole)])


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


def _print_replay(replayed: replaying.Replay) -> None:
    rows = [
        (
            judged.outcome.step,
            f"{judged.event}, {judged.outcome.value_lag} late" if judged.outcome.value_lag else judged.event,
            f"{judged.outcome.controller} {judged.outcome.member}".strip(),
            _said(judged.outcome),
            judged.validity,
            shown_values(judged.to_json().get("values") or {}),
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
