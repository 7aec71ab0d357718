"""A backtest answers whether to arm a policy, with the reason and what is lacking, or says that it cannot judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from markupsafe import escape

from steptape import Policy, backtest, open_run
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.result import Arm, Arming, Fate
from steptape.replay.reports.sentences import verdict
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import bar_lines, screenful
from steptape.replay.runs.objective import declared_objective
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

CHEAP = [1.0, 2.5, 3.0, 3.5, 4.0]
DEAR = [1.9, 2.5, 0.5, 0.4, 0.3]
WHOLE = [1.0, 0.9, 0.8, 0.7, 0.6]
HOUR_NS = 3_600_000_000_000

TEXT = """
params: {high: 2}
controllers:
  - {name: stop, triggers: [on_evaluate], rule: eval_loss > high, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first evaluation above 2."""
    return parse_policy(TEXT)


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., list[Run]]:
    """A function that records a run for each curve, an hour a step, each a group of its own unless one is named."""

    def make(curves: Sequence[Sequence[float]], *, group: str | None = None, hours: float = 1.0) -> list[Run]:
        runs = []
        for number, curve in enumerate(curves):
            events = []
            for step, value in enumerate(curve, start=1):
                elapsed_ns = int(step * hours * HOUR_NS)
                # No two runs may hold the same series: these would count once.
                events.append(Event("step_end", step, metrics={"loss": value + number / 1e4}, elapsed_ns=elapsed_ns))
                events.append(Event("evaluate", step, metrics={"eval_loss": value}, elapsed_ns=elapsed_ns))
            name = f"{group or 'alone'}-{number}"
            runs.append(open_run(store_record(events, run_id=name, group=group or name, sealed=True)))
        return runs

    return make


def answer(policy: Policy, runs: Sequence[Run]) -> Arming:
    """Return the answer of a backtest."""
    return summarize(backtest(policy, runs)).arming


def test_a_policy_that_loses_more_than_it_saves_is_not_armed(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """A stop at hour 2 of a run that became better loses two hours, and one that costs nothing saves three."""
    report = backtest(policy, record([CHEAP, DEAR, DEAR, DEAR]))
    ledger, found = summarize(report).ledger, summarize(report).arming

    assert (ledger.unit, ledger.spent, ledger.total(Fate.SAVED), ledger.total(Fate.LOST)) == ("h", 20, 3, 6)
    assert found.arm is Arm.NO
    assert found.because.startswith("It loses more than it saves on these 4 runs: 6.0 h against 3.0 h. In 3 of the 4")


def test_a_policy_that_saves_more_but_loses_too_often_is_not_armed(
    policy: Policy, record: Callable[..., list[Run]]
) -> None:
    """Of ten families four lose, which has a probability of 1.3% if one in ten does."""
    found = answer(policy, record([CHEAP] * 6 + [DEAR] * 4))

    assert (found.arm, found.families, found.lost) == (Arm.NO, 10, 4)
    assert found.because.startswith("It loses too often on these 10 runs. In 4 of the 10 runs that it stops, training")


def test_a_policy_that_could_not_fire_is_not_judged(record: Callable[..., list[Run]]) -> None:
    """The reason names what the runs never logged, and the page shows neither bars nor curves that say nothing."""
    report = backtest(parse_policy(TEXT.replace("eval_loss", "grad_norm")), record([CHEAP, DEAR]))
    found, page = summarize(report).arming, report_page(summarize(report))

    assert (found.arm, report_json(summarize(report))["arming"]["arm"]) == (Arm.CANNOT_JUDGE, "cannot_judge")
    assert found.because.startswith("These 2 runs never logged grad_norm, which its rules read, so it could not fire")
    assert "2 of 2 runs have no 'grad_norm'." in found.because
    assert '<div class="answer cannot_judge"><b>Cannot judge (high = 2)</b>' in page
    assert not any(part in page for part in ('class="bars"', "Every run, by what it loses", "<svg"))


def test_the_headline_and_the_text_have_the_params_that_were_judged(record: Callable[..., list[Run]]) -> None:
    """The file says 2; the answer is about 3, and everything else in the file stays as it is written."""
    text = f"# high: the limit\n{TEXT}"
    report = backtest(parse_policy(text, params={"high": 3}), record([CHEAP, DEAR]))
    page = report_page(summarize(report))

    assert summarize(report).arming.headline.endswith("(high = 3)")
    assert escape(text.replace("high: 2", "high: 3")) in page


def test_all_amounts_of_a_ledger_have_the_unit_of_what_was_spent(
    policy: Policy, record: Callable[..., list[Run]]
) -> None:
    """A small amount has no smaller unit beside it, and text and bar have the same number."""
    report = backtest(policy, record([CHEAP, WHOLE], hours=0.1))
    amounts = [bar.amount for bar in summarize(report).ledger.bars()]

    assert amounts == ["1.0 h", "0.3 h (30%)", "0 h (0%)"]
    assert "These save" not in " ".join(verdict(summarize(report)))
    assert "This saves 0.3 of 1.0 h (30%)." in " ".join(verdict(summarize(report)))


def test_a_guessed_metric_is_said_next_to_the_answer(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """With the metric declared nothing is said."""
    runs, declared = record([CHEAP, DEAR]), declared_objective("eval_loss", "min")
    guessed, known = (
        report_page(summarize(backtest(policy, runs))),
        report_page(summarize(backtest(policy, runs, objective=declared))),
    )

    assert guessed.index("is a guess: eval_loss (lower is better)") < guessed.index('class="bars"')
    assert "is a guess" not in known


@pytest.mark.parametrize(("runs", "arm", "more"), [(21, Arm.NOT_ENOUGH, 1), (22, Arm.YES, None)])
def test_twenty_two_families_without_a_loss_suffice(
    policy: Policy, record: Callable[..., list[Run]], runs: int, arm: Arm, more: int | None
) -> None:
    """0.9 to the power of 22 is below 10%."""
    found = answer(policy, record([CHEAP, WHOLE] * (runs // 2) + [CHEAP] * (runs % 2)))

    assert (found.arm, found.families, found.lost, found.more) == (arm, runs, 0, more)


def test_the_answer_is_sure_of_what_few_runs_lose(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """The stated share is that of runs that lose, also after a sentence that says that none lost."""
    runs = record([CHEAP] * 22)
    enough, few = answer(policy, runs), answer(policy, runs[1:])

    assert enough.because.startswith(
        "In none of the 22 runs that it stops, training on gave a model more than 1% better. "
        "With 90% confidence, at most 1 in 10 runs like these lose by it. "
    )
    assert few.because.endswith(
        "1 more run that loses nothing by it would show, with 90% confidence, that at most 1 in 10 runs lose by it."
    )


def test_runs_of_one_family_count_as_one_case(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """Thirty seeds are no evidence about other configurations."""
    found = answer(policy, record([CHEAP] * 30, group="seeds"))

    assert (found.arm, found.families, found.more) == (Arm.NOT_ENOUGH, 1, 21)
    assert "21 more families" in found.because


def test_a_stop_of_unknown_cost_counts_as_a_loss_against_arming(
    policy: Policy, record: Callable[..., list[Run]]
) -> None:
    """With fewer than five evaluations nobody knows what the stop costs."""
    found = answer(policy, record([CHEAP] * 22 + [[1.0, 2.5, 3.0]]))

    assert (found.arm, found.lost, found.unknown, found.more) == (Arm.NOT_ENOUGH, 0, 1, 15)


@pytest.mark.parametrize("curves", [[], [WHOLE]])
def test_runs_that_never_test_the_policy_are_not_enough(
    policy: Policy, record: Callable[..., list[Run]], curves: list[list[float]]
) -> None:
    """There is no run, or none in which it fires."""
    assert answer(policy, record(curves)).arm is Arm.NOT_ENOUGH


def test_a_policy_that_orders_no_stop_can_be_armed(record: Callable[..., list[Run]]) -> None:
    """No run can lose by a checkpoint."""
    saves = parse_policy(TEXT.replace("should_training_stop", "should_save"))

    assert answer(saves, record([CHEAP])).arm is Arm.YES


def test_json_page_and_terminal_give_the_same_answer(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """The page has it above everything else."""
    report = dataclasses.replace(backtest(policy, record([CHEAP, DEAR, DEAR, DEAR])), cost_per_hour=2.5)
    found, told, page = summarize(report).arming, report_json(summarize(report)), report_page(summarize(report))

    assert (told["arming"]["arm"], told["arming"]["because"]) == ("no", found.because)
    assert told["ledger"] == {"unit": "h", "spent": 20.0, "saved": 3.0, "lost": 6.0, "unknown": 0.0}
    assert '<div class="answer no"><b>Do not arm it (high = 2)</b>' in page
    assert page.index('class="answer no"') < page.index('class="bars"') < page.index("Every run")
    assert [line.split()[-1] for line in bar_lines(summarize(report).ledger)][:3] == ["50.00", "7.50", "15.00"]


def test_runs_are_sorted_by_what_they_lose(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """A long run that is lost comes before a short one with more regret."""
    runs = record([CHEAP, DEAR], group="short") + record([[1.9, 2.5, 1.0, 0.9, 0.8], WHOLE], group="long", hours=5)

    names = [result.name for result in summarize(backtest(policy, runs)).ranked]

    assert names == ["long-0", "short-1", "short-0", "long-1"]


def test_sentences_beyond_a_screen_are_counted() -> None:
    """A sentence takes as many lines as it has hundreds of characters."""
    shown = list(screenful(["x" * 150, "y", "", "z", "w"], printed=36))

    assert shown == ["x" * 150, "y", "2 more sentences: --html FILE writes a report with all of them."]
