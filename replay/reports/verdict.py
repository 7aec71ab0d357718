"""Says in a few sentences what a policy would have saved and cost. These open each report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...store.plural import counted
from ..backtests.backtesting import Backtest
from ..intervals import FEWEST_FAMILIES
from ..runs.history import UPDATES
from ..runs.results import RunResult
from .aggregation import NOTABLE_REGRET, later_evaluations, part_of, regrets_of_stopped
from .amounts import duration, percent
from .family_sentences import all_of, families_text, family_warning, is_told_apart

UNKNOWN_COST: Final = "What the stops cost is unknown: no stopped run can be judged."

#: Maximum number of controllers that a sentence names.
_NAMED: Final = 4


def _any(_: RunResult) -> bool:
    return True


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
    is_apart = is_told_apart(total)
    warning = [text] if (text := _dependence(total)) else []
    outcomes = list(_apart(backtest, total) if is_apart else _together(backtest, total))
    if is_apart:
        return [" ".join((f"{could_fire(total)}.", *warning)), *outcomes, *_price(total), *_unknown(total)]
    return [*outcomes, *_price(total), *warning, *_unknown(total)]


def _dependence(total: Mapping[str, Any]) -> str:
    """Return how many cases the runs are; empty where an interval says it."""
    families = total["families"]
    if warning := family_warning(families, total["could_fire"]):
        return f"{warning} They are not independent: count them as one case."
    if total["could_fire"] < 2 or not total["stopped"] or families["count"] >= FEWEST_FAMILIES:
        return ""
    return f"These runs are {families_text(families)}. Runs of one are not independent: count each as one case."


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


def _together(backtest: Backtest, total: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the stops save and what they cost, over all runs."""
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
    if not total["stopped"]:
        yield f"{said}."
        return
    yield f"{said}{_by_controller(total)}{_savings(total)}"
    yield cost_sentence(backtest, total)


def _apart(backtest: Backtest, total: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the stops save and cost in the largest family, and in the other runs."""
    largest = total["families"]["largest"]

    def is_in(result: RunResult) -> bool:
        return (result.family.key, result.family.value) == (largest["key"], largest["value"])

    for where, is_chosen in (("In these", is_in), ("In the other", lambda result: not is_in(result))):
        part = part_of(backtest, is_chosen)
        runs = f"{part['runs']:,} runs" if part["runs"] > 1 else "run"
        said = f"{where} {runs} it would have stopped {part['stopped'] or 'none'}"
        if part["stopped"]:
            yield f"{said}{_savings(part)} {cost_sentence(backtest, part, is_chosen)}".rstrip()
        else:
            yield f"{said}."


def _by_controller(total: Mapping[str, Any]) -> str:
    """Say which controllers stop the runs, if there are several."""
    stopping = sorted((one for one in total["by_controller"] if one["stopped"]), key=lambda one: -one["stopped"])
    if len(total["by_controller"]) < 2 or not stopping:
        return ""
    if len(stopping) == 1:
        return f", all by {stopping[0]['controller']},"
    named = [f"{one['stopped']} by {one['controller']}" for one in stopping[:_NAMED]]
    return f" ({', '.join([*named, *_more(stopping)])})"


def _more(controllers: Sequence[Mapping[str, Any]]) -> list[str]:
    more = len(controllers) - _NAMED
    return [counted(more, "other")] if more > 0 else []


def _savings(part: Mapping[str, Any]) -> str:
    """Describe what stopping saves: of all steps, and of a stopped run's own, as one long run can outweigh many.

    Steps of several units have no sum.
    """
    least = "at least " if part["right_censored"] else ""
    by_unit, own = [one for one in part["steps_by_unit"] if one["steps"]], part["share_saved_of_stopped"]
    said, middle = "", ""
    if own["runs"] > 1 and percent(own["median"]) != percent(own["mean"]):
        middle = f", median {percent(own['median'])}"
    if len(by_unit) == 1:
        saved = percent(by_unit[0]["steps_saved"] / by_unit[0]["steps"])
        said = f" and saved {least}{saved} of {'their' if part['runs'] > 1 else 'its'} {steps_of(by_unit[0])}"
        if part["runs"] > 1 and own["runs"]:
            said += f"; a stopped run saves {percent(own['mean'])} of its own on average{middle}"
    elif own["runs"]:
        said = f" and saved {least}{percent(own['mean'])} of a stopped run's steps on average{middle}"
    if not part["seconds_saved"]:
        return f"{said}."
    return f"{said}. That is {least}{time_saved(part)}."


def time_saved(part: Mapping[str, Any]) -> str:
    """Return the time saved, of how much, and in how many of the runs there is a clock."""
    clocked = f" in the {counted(part['timed_runs'], 'run', ',')} with a clock"
    where = clocked if part["timed_runs"] < part.get("could_fire", part["runs"]) else ""
    return f"{duration(part['seconds_saved'])} of {duration(part['elapsed_s'])}{where}"


def cost_sentence(backtest: Backtest, part: Mapping[str, Any], is_chosen: Callable[[RunResult], bool] = _any) -> str:
    """Say what the stops cost. A run that the policy does not stop says nothing about its stops.

    Args:
        backtest: The backtest.
        part: The aggregate of some of its runs.
        is_chosen: Which runs these are.
    """
    regret = part["relative_regret_of_stopped"]
    if not regret["runs"]:
        return UNKNOWN_COST if any(result.objective for result in backtest.results) else ""
    runs, above = regret["runs"], regret["above_1_percent"]
    can = " that can be judged" if runs < part["stopped"] else ""
    better = f"have given a model more than {NOTABLE_REGRET:.0%} better"
    if runs == 1:
        said = f"In the stopped run{can}, training on would {'' if above else 'not '}{better}. Its regret"
        spread = ""
    else:
        left = f"by a median of {later_evaluations(backtest, is_chosen):g} later evaluations"
        said = f"In {above or 'none'} of {runs:,} stopped runs{can}, {left}, training on would {better}. Their regret"
        median = f"median {regret['median']:.2%}, " if runs > 2 else ""  # Of two values it is the mean.
        spread = f"mean {regret['mean']:.2%}, {median}worst "
    return f"{said}: {spread}{regret['max']:.2%} ({_worst(backtest, is_chosen)})." if regret["max"] else f"{said} is 0."


def _worst(backtest: Backtest, is_chosen: Callable[[RunResult], bool]) -> str:
    """Return the stopped run that lost most, with the values: near a loss of zero a tiny loss is many percent."""
    costs = zip(regrets_of_stopped(backtest), backtest.results, strict=True)
    known = [(cost, one) for cost, one in costs if cost is not None and is_chosen(one)]
    _, result = max(known, key=lambda pair: (pair[0], pair[1].name))
    assert result.objective is not None
    assert result.predicted is not None
    values = f"{result.predicted.best:.4g} instead of {result.recorded.best:.4g}"
    return f"{result.objective.metric} {values} in {result.name}"


def _price(total: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many checkpoints the policy adds: they take time and disk space."""
    added = -(total["checkpoints_saved"] or 0)
    if added > 0:
        recorded = total["checkpoints"]
        than = f" more than the {recorded:,} recorded" if recorded else "; none was recorded"
        yield f"Rules that save would have written {counted(added, 'checkpoint', ',')} over all these runs{than}."


def _unknown(total: Mapping[str, Any]) -> Iterator[str]:
    if total["not_known"]:
        yield (
            f"The outcome of {counted(total['not_known'], 'run', ',')} is unknown: the record does not show the "
            "training under the policy."
        )
    if total["excluded"]:
        yield f"{counted(total['excluded'], 'run', ',')} could not be judged."
