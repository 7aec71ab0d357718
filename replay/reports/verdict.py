"""Says in a few sentences how many runs a policy stops, what that cuts off and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..intervals import FEWEST_FAMILIES
from ..runs.families import SOURCE_FOLDER
from ..runs.history import UPDATES
from ..runs.objective import saving_controllers
from ..runs.results import RunResult
from .aggregation import part_of
from .amounts import hours, percent
from .family_sentences import all_of, family_warning, is_told_apart
from .ledger import FATES, Fate, Ledger, ledger_of
from .stop_costs import NOTABLE_REGRET

#: What training on would do in a run whose stop costs much.
_BETTER: Final = f"have given a model more than {NOTABLE_REGRET:.0%} better"

#: Maximum number of controllers that a sentence names.
_NAMED: Final = 4


def verdict(backtest: Backtest, total: Mapping[str, Any]) -> list[str]:
    """Return the verdict, a paragraph each: where the policy could fire, what it saves, what that costs.

    If one family has more than half of the runs, it gets a paragraph and the others another. Sums over both would
    describe neither.

    Args:
        backtest: The backtest.
        total: Its aggregate.
    """
    if not total["runs"]:
        return ["No run could be judged."]
    warning, added = [text] if (text := _dependence(total)) else [], _price(backtest, total)
    ledger = ledger_of(backtest)
    if is_told_apart(total):
        return [f"{could_fire(total)}.", *warning, *_apart(backtest, total, ledger), *added, *_unknown(total)]
    return [*_together(total, ledger), *added, *warning, *_unknown(total)]


def _dependence(total: Mapping[str, Any]) -> str:
    """Return how many cases the runs are, and how to choose others; empty where an interval says it."""
    families = total["families"]
    if warning := family_warning(families, total["could_fire"]):
        return f"{warning} They are not independent: count them as one case. --family KEY tells families otherwise."
    if total["could_fire"] < 2 or not total["stopped"] or families["count"] >= FEWEST_FAMILIES:
        return ""
    by, when = " and ".join(families["keys"]), "For others"
    if SOURCE_FOLDER in families["keys"]:
        when = "Where a folder holds several projects, or a project several folders"
    return (
        f"By {by} these runs are {families['count']} families: count each as one case, as its runs are not "
        f"independent. {when}: --family KEY."
    )


def could_fire(total: Mapping[str, Any]) -> str:
    """Say in how many runs the policy could fire, and each controller where they differ in that."""
    able = total["could_fire"]
    of = all_of(total["runs"]) if able == total["runs"] > 1 else f"{able or 'none'} of {total['runs']:,}"
    said = f"The policy could fire in {of} {'run' if total['runs'] == 1 else 'runs'}"
    if not _is_limited(total) or not able:
        return said
    ordered = sorted(total["by_controller"], key=lambda one: -one["could_fire"])
    return f"{said}: {', '.join([*map(_where, ordered[:_NAMED]), *_more(ordered)])}"


def _where(one: Mapping[str, Any]) -> str:
    """Say in how many runs a controller could fire, and in how many of them only early."""
    said = f"{one['controller']} in {one['could_fire'] or 'none'}"
    if not one["series_end_early"]:
        return said
    return f"{said} ({one['series_end_early']} of them only in the first {percent(one['series_end_by'])})"


def steps_of(total: Mapping[str, Any]) -> str:
    """Return the noun for steps of a unit, as in ``steps_by_unit``."""
    if total["unit"] == UPDATES:
        return "step" if total["steps"] == 1 else "steps"
    return str(total["unit"])


def bounds_sentence(total: Mapping[str, Any]) -> str:
    """Return what ≥ marks; empty where every run ran as long as planned."""
    count = total["right_censored"]
    if count == 1:
        return "1 run is unfinished or ended early itself; for it the numbers are lower bounds (≥)."
    which = f"{count:,} runs are unfinished or ended early themselves"
    return f"{which}; for these the numbers are lower bounds (≥)." if count else ""


def _is_limited(total: Mapping[str, Any]) -> bool:
    """Whether a controller that decides could fire in fewer runs than the policy, or in some only early."""
    return any(one["could_fire"] < total["could_fire"] or one["series_end_early"] for one in total["by_controller"])


def _together(total: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Yield how many runs the policy stops, what the stops save and what they cost, over all runs."""
    is_part = total["could_fire"] < total["runs"]
    if not total["could_fire"]:
        yield f"{could_fire(total)}."
        return
    stopped = "each" if total["stopped"] == total["could_fire"] > 1 else total["stopped"] or "none"
    if is_part or _is_limited(total):
        yield f"{could_fire(total)}."
        said = f"It would have stopped {stopped} of {'these' if is_part else 'them'}"
    else:
        the = "the " if stopped == "each" else ""
        said = f"The policy would have stopped {stopped} of {the}{counted(total['runs'], 'run', ',')}"
    first, *others = [f"{said}{_by_controller(total)}.", *_stop_sentences(total, ledger)]
    yield f"{first} {others[0]}" if others else first
    yield from others[1:]


def _apart(backtest: Backtest, total: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Yield the same for the largest family, and for the other runs."""
    largest = total["families"]["largest"]

    def is_in(result: RunResult) -> bool:
        return (result.family.key, result.family.value) == (largest["key"], largest["value"])

    for where, is_chosen in (("In these", is_in), ("In the other", lambda result: not is_in(result))):
        part = part_of(backtest, is_chosen)
        own = ledger.of_runs({result.run_id for result in backtest.results if is_chosen(result)})
        said = f"{where} {part['runs']:,} runs it would have stopped {part['stopped'] or 'none'}."
        if part["runs"] == 1:
            said = f"It would {'' if part['stopped'] else 'not '}have stopped the other run."
        yield " ".join([said, *_stop_sentences(part, own)])


def _by_controller(total: Mapping[str, Any]) -> str:
    """Say which controllers stop the runs, if there are several."""
    stopping = sorted((one for one in total["by_controller"] if one["stopped"]), key=lambda one: -one["stopped"])
    if len(total["by_controller"]) < 2 or not stopping:
        return ""
    if len(stopping) == 1:
        return f", {'all ' if total['stopped'] > 1 else ''}by {stopping[0]['controller']}"
    named = [f"{one['stopped']} by {one['controller']}" for one in stopping[:_NAMED]]
    return f" ({', '.join([*named, *_more(stopping)])})"


def _more(controllers: Sequence[Mapping[str, Any]]) -> list[str]:
    more = len(controllers) - _NAMED
    return [counted(more, "other")] if more > 0 else []


def _stop_sentences(part: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Yield what the stops save and what that costs, those first that are known to cost little.

    Args:
        part: The aggregate of a backtest or of some of its runs.
        ledger: The ledger of these runs.
    """
    is_first = True
    for kind, found in part["stops_by_cost"].items():
        if found["stopped"]:
            which = "this run" if part["stopped"] == 1 else f"{_count(found['stopped'], part['stopped'])} of them"
            yield f"{_COSTS[kind](found, which, is_first)}.{_amount(FATES[kind], found, ledger, is_first)}"
            is_first = False


def _count(count: int, of: int) -> str:
    return all_of(count) if count == of else f"{count:,}"


def _little(found: Mapping[str, Any], which: str, _: bool) -> str:
    worst = found["worst"]["regret"]
    regret = f"regret up to {worst:.2%}" if worst else "regret 0"
    return f"{_judged(found, which)} would not {_BETTER} ({regret})"


def _much(found: Mapping[str, Any], which: str, is_first: bool) -> str:
    """Say what stops cost, and name the worst with its values: near a loss of zero a tiny loss is many percent."""
    would, worst, count = f"{_judged(found, which)} would {_BETTER}", found["worst"], found["stopped"]
    regret = "regret" if count == 1 else f"median regret {found['regret']:.2%}, worst" if count > 2 else "worst regret"
    values = f"{worst['metric']} {worst['best']:.4g} instead of {worst['instead_of']:.4g} in {worst['name']}"
    return f"{would if is_first else f'In {which} it would'}: {regret} {worst['regret']:.2%} ({values})"


def _judged(found: Mapping[str, Any], which: str) -> str:
    """Say in which runs, and by how much of the record, a stop is judged."""
    median = "" if found["stopped"] == 1 else "a median of "
    by = counted(found["later_evaluations"], "later evaluation", "g")
    of = f" of {found['metrics'][0]}" if len(found["metrics"]) == 1 else ""
    return f"In {which}, by {median}{by}{of}, training on"


def _unjudged(found: Mapping[str, Any], which: str, is_first: bool) -> str:
    reasons = found["reasons"]
    why = ", ".join(reason if len(reasons) == 1 else f"{count:,} {reason}" for reason, count in reasons.items())
    unknown = "What the stops cost is unknown: no stopped run can be judged"
    return f"{unknown if is_first else f'{which} cannot be judged'} ({why})"


def _at_last_step(found: Mapping[str, Any], which: str, _: bool) -> str:
    come = "comes at the run's" if found["stopped"] == 1 else "come at their runs'"
    return f"{which[0].upper()}{which[1:]} {come} last step, which saves nothing"


#: Sentences about the stops of a kind: their numbers, the words for them, and whether they come first.
_COSTS: Final[Mapping[str, Callable[[Mapping[str, Any], str, bool], str]]] = MappingProxyType(
    {
        "at_most_1_percent": _little,
        "above_1_percent": _much,
        "not_judged": _unjudged,
        "at_last_step": _at_last_step,
    }
)


def _amount(fate: Fate, found: Mapping[str, Any], ledger: Ledger, is_first: bool) -> str:
    """Say what the stops of a kind save, lose or cut off, in the amounts of the bars."""
    amount, is_one = ledger.total(fate), found["stopped"] == 1
    if not amount:
        return ""
    said = ledger.share_text(amount, is_first=is_first)
    if fate is Fate.LOST:
        return f" {'Its' if is_one else 'Their'} compute up to the stop is lost: {said}."
    verb = "save" if fate is Fate.SAVED else "cut off"
    who = f"This {verb.replace('save', 'saves').replace('cut', 'cuts')}" if is_one else f"These {verb}"
    return f" {who} {'at least ' if found['right_censored'] else ''}{said}."


def time_saved(part: Mapping[str, Any]) -> str:
    """Return the time cut off, of how much, and in how many of the runs there is a clock."""
    clocked = f" in the {counted(part['timed_runs'], 'run', ',')} with a clock"
    where = clocked if part["timed_runs"] < part.get("could_fire", part["runs"]) else ""
    return f"{hours(part['seconds_saved'])} of {hours(part['elapsed_s'])}{where}"


def _price(backtest: Backtest, total: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many checkpoints the policy adds, and by which rules: they take time and disk space."""
    added = -(total["checkpoints_saved"] or 0)
    if added > 0:
        named = [backtest.policy.controllers[index].name for index in saving_controllers(backtest.policy)]
        who = " and ".join(named) if len(named) < _NAMED else "Rules that save"
        recorded = total["checkpoints"]
        than = f" more than the {recorded:,} recorded" if recorded else "; the logs record none of the loop's own"
        yield f"{who} would have written {counted(added, 'checkpoint', ',')}{than}."


def _unknown(total: Mapping[str, Any]) -> Iterator[str]:
    if total["not_known"]:
        yield (
            f"The outcome of {counted(total['not_known'], 'run', ',')} is unknown: the record does not show the "
            "training under the policy."
        )
    if total["excluded"]:
        yield f"{counted(total['excluded'], 'run', ',')} could not be judged."
