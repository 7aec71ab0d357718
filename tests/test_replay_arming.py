"""A backtest answers whether to arm a policy, with the reason and what is lacking, or says that it cannot judge."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from steptape import Policy, backtest, open_run
from steptape.replay.choosing.certifying import certify
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.result import Arm, Arming, Fate, HowChosen
from steptape.replay.reports.sentences import verdict
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import bar_lines, screenful, table_rows, terminal_report
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.risk import DEFAULT_RISK, risk_of
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


def answer(policy: Policy, runs: Sequence[Run], choice: HowChosen | None = None) -> Arming:
    """Return the answer of a backtest."""
    return summarize(backtest(policy, runs), choice or HowChosen()).arming


def test_a_policy_that_loses_more_than_it_saves_is_not_armed(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """A stop at hour 2 of a run that became better loses two hours, and one that costs nothing saves three."""
    report = backtest(policy, record([CHEAP, DEAR, DEAR, DEAR]))
    ledger, found = summarize(report).ledger, summarize(report).arming

    assert (ledger.unit, ledger.spent, ledger.total(Fate.SAVED), ledger.total(Fate.LOST)) == ("h", 20, 3, 6)
    assert found.arm is Arm.NO
    assert found.because.startswith("It loses more than it saves on these 4 runs: 6.0 h against 3.0 h. It stopped 4 of")


def test_a_policy_that_saves_more_but_loses_too_often_is_not_armed(
    policy: Policy, record: Callable[..., list[Run]]
) -> None:
    """Of ten families four lose, which has a probability of 1.3% if one in ten does."""
    found = answer(policy, record([CHEAP] * 6 + [DEAR] * 4))

    assert (found.arm, found.families, found.lost) == (Arm.NO, 10, 0.4)
    assert found.because.startswith(
        "It loses too often on these 10 runs. It stopped 10 of 10 runs. In 4 of them training"
    )


def test_a_policy_that_could_not_fire_is_not_judged(record: Callable[..., list[Run]]) -> None:
    """The reason names what the runs never logged, and the page shows neither bars nor curves that say nothing."""
    report = backtest(parse_policy(TEXT.replace("eval_loss", "grad_norm")), record([CHEAP, DEAR]))
    found, page = summarize(report).arming, report_page(summarize(report))

    assert (found.arm, report_json(summarize(report))["arming"]["arm"]) == (Arm.CANNOT_JUDGE, "cannot_judge")
    assert found.because.startswith("These 2 runs never logged grad_norm, which its rules read, so it could not fire")
    assert "Do not leave it armed" in found.because
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
    """A small amount has no smaller unit beside it, and no sentence repeats the numbers of the bars."""
    report = backtest(policy, record([CHEAP, WHOLE], hours=0.1))
    amounts = [bar.amount for bar in summarize(report).ledger.bars()]

    assert amounts == ["1.0 h", "0.3 h (30%)", "0 h (0%)"]
    assert " h " not in " ".join(verdict(summarize(report)))


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
        "It stopped 22 of 22 runs. In none of them would training on have given a model more than 1% better. "
        "With 90% confidence, at most 1 in 10 runs like these lose by it. "
    )
    assert few.because.endswith(
        "To be 90% sure that at most 1 in 10 runs lose by it, it takes about 22 runs without a loss; these are 21."
    )


def test_runs_of_one_family_count_as_one_case(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """Thirty seeds are no evidence about other configurations."""
    found = answer(policy, record([CHEAP] * 30, group="seeds"))

    assert (found.arm, found.families, found.more) == (Arm.NOT_ENOUGH, 1, 22)
    assert "It stopped 1 family: too few to say what a stop costs." in found.because
    assert "it takes about 23 families without a loss; these are 1 family (by group)." in found.because


def test_a_stop_of_unknown_cost_counts_as_a_loss_against_arming(
    policy: Policy, record: Callable[..., list[Run]]
) -> None:
    """With fewer than five evaluations nobody knows what the stop costs."""
    found = answer(policy, record([CHEAP] * 22 + [[1.0, 2.5, 3.0]]))

    assert (found.arm, found.lost, found.unknown) == (Arm.NOT_ENOUGH, 0.0, 1 / 23)
    assert "have given a model more than 1% better, and what 1 cost is unknown." in found.because
    assert found.because.endswith("A stop of unknown cost counts as a loss.")


@pytest.mark.parametrize(("curves", "arm"), [([], Arm.NOT_ENOUGH), ([WHOLE], Arm.NOTHING)])
def test_runs_that_never_test_the_policy_say_nothing_of_it(
    policy: Policy, record: Callable[..., list[Run]], curves: list[list[float]], arm: Arm
) -> None:
    """There is no run, or none in which it fires."""
    assert answer(policy, record(curves)).arm is arm


# --- what a verdict must not hide -------------------------------------------------------------------------------------

PATIENCE = """
params: {patience: 3}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: not (METRIC)
    patience: {patience_threshold: patience}
    operations: [OPERATION]
"""


def patient(
    better: str = "eval_loss < lag(trough(eval_loss), 1)", operation: str = "hfcontrols.should_training_stop"
) -> Policy:
    """Return a policy that acts after three evaluations that are no better."""
    return parse_policy(PATIENCE.replace("METRIC", better).replace("OPERATION", operation))


def flat(k: int) -> list[float]:
    """Return five evaluations down, then slowly up: a stop is right."""
    return [(2 - i / 5 if i < 5 else 1.2 + 0.0005 * i) * (1 + k * 1e-6) for i in range(20)]


def late(k: int, gain: float = 0.2) -> list[float]:
    """Return the same, but the last four evaluations are better by the gain: a stop is wrong."""
    return flat(k)[:16] + [1.2 * (1 - gain) * (1 + k * 1e-6)] * 4


@pytest.fixture
def trained(store_record: Callable[..., Path]) -> Callable[..., list[Run]]:
    """A function that records a run for each curve, ten steps between evaluations; it may save after some of them."""
    numbers = itertools.count()

    def make(
        curves: Sequence[Sequence[float]],
        groups: Sequence[str] = (),
        *,
        metric: str = "eval_loss",
        saved: Sequence[int] = (),
        configs: Sequence[dict[str, Any]] = (),
    ) -> list[Run]:
        runs = []
        for index, curve in enumerate(curves):
            number, events = next(numbers), []
            for at, value in enumerate(curve, start=1):
                events.append(Event("step_end", 10 * at, metrics={"lr": 0.1, "number": float(number)}))
                events.append(Event("evaluate", 10 * at, metrics={metric: value}))
                if at in saved:
                    events.append(Event("save", 10 * at, attrs={"path": f"{at}.pt"}))
            group = groups[index] if groups else f"g{number}"
            config = configs[index] if configs else {}
            folder = store_record(events, run_id=f"run-{number}", group=group, config=config, sealed=True)
            runs.append(open_run(folder))
        return runs

    return make


def test_the_verdict_and_the_certificate_judge_by_one_definition(trained: Callable[..., list[Run]]) -> None:
    """Of 30 families of 9 runs four have a lost run: 1.5 % of the runs, which both allow."""
    curves = [late(k) if k in (0, 50, 120, 200) else flat(k) for k in range(270)]
    runs = trained(curves, [f"f{k // 9}" for k in range(270)])
    found = certify(patient(), {"patience": [1, 2, 3]}, runs, DEFAULT_RISK)
    plain, certified = answer(patient(), runs), HowChosen(certificate=found.certificate())

    assert found.params is not None
    policy = parse_policy(patient().text, params=found.params)
    assert plain.arm is Arm.YES
    assert plain.lost == pytest.approx(4 / 270)
    assert answer(policy, runs, certified).arm is Arm.YES
    assert "(each of the 30 families counts as one)" in plain.because
    assert found.choice.means[2] == pytest.approx(plain.lost)


def test_a_certificate_that_the_runs_contradict_is_refused_by_its_own_risk(trained: Callable[..., list[Run]]) -> None:
    """Half of the new runs lose, where the certificate allows one in ten."""
    found = certify(patient(), {"patience": [3]}, trained([flat(k) for k in range(30)]), DEFAULT_RISK)
    runs = trained([late(100 + k, 0.02) if k % 2 else flat(100 + k) for k in range(30)])
    answered = answer(patient(), runs, HowChosen(certificate=found.certificate()))

    assert answered.arm is Arm.NO
    assert "These runs contradict its certificate." in answered.because


def test_a_stop_before_anything_was_saved_is_not_armed(trained: Callable[..., list[Run]]) -> None:
    """Loops that save at their end alone lose every stopped run, in all numbers. A save with the stop mends it."""
    runs = trained([flat(k) for k in range(30)], saved=[20])
    report = summarize(backtest(patient(), runs))
    bare, ledger = report.arming, report.ledger
    saving = parse_policy(
        patient().text.replace(
            "[hfcontrols.should_training_stop]", "[hfcontrols.should_save, hfcontrols.should_training_stop]"
        )
    )

    assert bare.arm is Arm.NO
    assert bare.because.startswith("In 30 of 30 stopped runs the loop had written no checkpoint")
    assert (bare.lost, ledger.runs(Fate.LOST), ledger.total(Fate.SAVED)) == (1, 30, 0)
    assert {row[4] for row in table_rows(report)} == {"90 steps"}
    assert report_json(report)["ledger"]["lost"] == ledger.total(Fate.LOST) == 30 * 90
    assert answer(saving, runs).arm is Arm.YES


def test_few_stops_say_nothing_of_what_a_stop_costs(trained: Callable[..., list[Run]]) -> None:
    """One stop in 30 runs arms nothing; six do, with a warning."""
    falling = [[2 - 0.05 * i + k * 1e-6 for i in range(20)] for k in range(40)]
    one = answer(patient(), trained([*falling[:29], flat(99)]))
    six = answer(patient(), trained([*falling[:34], *[flat(100 + k) for k in range(6)]]))

    assert (one.arm, one.stopped) == (Arm.NOT_ENOUGH, 1)
    assert "It stopped 1 run: too few to say what a stop costs." in one.because
    assert (six.arm, six.stopped) == (Arm.YES, 6)
    assert "But it stopped only 6 runs: too few to say what a stop costs." in six.because


def test_the_loss_of_the_best_model_of_all_is_told(trained: Callable[..., list[Run]]) -> None:
    """One of 40 runs reaches 0.12 after a plateau, and is stopped there."""
    runs = trained([*[flat(k) for k in range(39)], late(1, gain=0.9)])
    searched = trained(
        [flat(200), late(201, 0.5), flat(202), *[flat(210 + k) for k in range(37)]], ["s"] * 3 + ["t"] * 37
    )

    assert "The best model of all 40 runs is lost." in answer(patient(), runs).because
    assert "The best model of 1 of 2 families is lost." in answer(patient(), searched).because


def test_runs_that_stay_at_zero_lose_nothing_by_a_stop(trained: Callable[..., list[Run]]) -> None:
    """An absolute regret of 0 is a relative one of 0."""
    runs = trained([[0.0] * 20] * 30, metric="eval_accuracy")
    found = answer(patient("eval_accuracy > lag(peak(eval_accuracy), 1)"), runs)

    assert (found.arm, found.lost, found.unknown) == (Arm.YES, 0.0, 0.0)


def test_a_rule_that_changes_the_learning_rate_cannot_be_judged(trained: Callable[..., list[Run]]) -> None:
    """No number of past runs shows what follows: the answer says how to find out."""
    found = answer(patient(operation='"lr.scale(0.5, over=5)"'), trained([flat(k) for k in range(30)]))

    assert found.arm is Arm.CANNOT_JUDGE
    assert found.because.startswith("It changes the learning rate in 30 of these 30 runs, and no record shows what")
    assert found.because.endswith("then: steptape compare WITHOUT WITH.")
    assert (found.more, found.grounds) == (None, ())


@pytest.mark.parametrize(("changed", "of"), [(30, "30 of 30 runs"), (2, "2 of 30 runs")])
@pytest.mark.parametrize(
    ("operation", "does"),
    [
        ("lr.scale(0.5, over=5)", "changes the learning rate"),
        ("rollback.to(last)", "goes back to a checkpoint"),
        ("epochs.set(3)", "changes the number of epochs"),
    ],
)
def test_a_report_on_a_rule_that_only_changes_the_training_says_nothing_of_stops(
    operation: str, does: str, changed: int, of: str, trained: Callable[..., list[Run]]
) -> None:
    """It says in which runs it does what, from when on, and how to find out what that does."""
    falling = [[2 - 0.05 * i + k * 1e-6 for i in range(20)] for k in range(30 - changed)]
    report = summarize(
        backtest(patient(operation=f'"{operation}"'), trained([flat(k) for k in range(changed)] + falling))
    )
    lines = [line for line in terminal_report(report) if isinstance(line, str)]

    assert report.arming.because.startswith(f"It {does} in {of.replace('of', 'of these')}, and no record shows what")
    assert f"It {does} in {of}, first after 45% of the run (median). The logs show these" in " ".join(lines)
    assert not any("stop" in line or "saved" in line for line in lines)


def test_a_stop_that_follows_a_change_of_the_training_is_not_counted(trained: Callable[..., list[Run]]) -> None:
    """No record shows it: without the change the run might have been stopped, or not."""
    steering = patient(operation='"lr.scale(0.5, over=5)"').text
    stop = patient().text.replace("patience: 3", "patience: 6").partition("controllers:")[2]
    both = parse_policy(f"{steering}{stop.replace('no_better', 'halt').replace('patience}', '6}')}")
    report = summarize(backtest(both, trained([flat(k) for k in range(30)])))

    assert any(one.stop for one in report.backtest.results)
    assert (report.totals.stopped, report.ledger.runs(Fate.UNKNOWN)) == (0, 30)
    assert not any("would have stopped" in text for text in verdict(report))


def test_families_of_several_keys_are_counted_by_key(trained: Callable[..., list[Run]]) -> None:
    """In the answer and in the sentence on how they were formed."""
    runs = trained(
        [flat(k) for k in range(8)],
        [*"gggggghh"],
        configs=[{"data": f"set {k // 2}"} if k < 6 else {} for k in range(8)],
    )
    found = answer(patient(), runs)

    assert "these are 4 families (3 by configuration, 1 by group)." in found.because
    assert found.grounds[0].startswith("These runs are 4 families (3 by configuration, 1 by group). By other keys")


def test_arming_on_logs_without_checkpoints_depends_on_what_the_loop_keeps(trained: Callable[..., list[Run]]) -> None:
    """Whether a stopped run leaves weights is unknown there, unless the rule orders a save."""
    runs = trained([flat(k) for k in range(30)])

    assert answer(patient(), runs).because.endswith(
        "and if the loop keeps the weights when it is stopped: no log records a checkpoint."
    )
    assert (
        "no log records a checkpoint"
        not in answer(patient(), trained([flat(40 + k) for k in range(30)], saved=[3])).because
    )


def test_another_risk_gives_another_answer(trained: Callable[..., list[Run]]) -> None:
    """Where a stop may lose 5 %, noise of 2 % is none."""
    runs = trained([late(k, 0.02) if k % 2 else flat(k) for k in range(40)])
    strict = answer(patient(), runs)
    report = backtest(patient(), runs, risk=risk_of("regret > 5%", "20%"), confidence=0.95)
    lenient = summarize(report).arming

    assert strict.arm is Arm.NO
    assert lenient.arm is Arm.YES
    assert (
        "have given a model more than 5% better. With 95% confidence, at most 1 in 5 runs like these" in lenient.because
    )


def test_families_are_told_by_configuration_before_a_project_and_other_choices_are_counted(
    trained: Callable[..., list[Run]],
) -> None:
    """Thirty learning rates on ten data sets in one project are ten families; a chosen key is an assumption."""
    configs = [{"lr": 0.001 * (k + 1), "data": f"set {k % 10}", "seed": k} for k in range(30)]
    runs = trained([flat(k) for k in range(30)], ["project"] * 30, configs=configs)
    found = answer(patient(), runs)
    chosen = summarize(backtest(patient(), runs, family="lr")).arming

    assert (found.arm, found.families) == (Arm.NOT_ENOUGH, 10)
    assert found.grounds[0] == (
        "These runs are 10 families (by configuration). By other keys there would be: group 1, run 30, lr 30 "
        "(--family KEY)."
    )
    assert (chosen.arm, chosen.families) == (Arm.YES, 30)
    assert "as you chose; whether these are independent of each other, no log says" in chosen.grounds[0]


def test_a_policy_that_orders_no_stop_can_be_armed(record: Callable[..., list[Run]]) -> None:
    """No run can lose by a checkpoint."""
    saves = parse_policy(TEXT.replace("should_training_stop", "should_save"))

    assert answer(saves, record([CHEAP])).arm is Arm.YES


def test_rules_in_shadow_are_not_judged(record: Callable[..., list[Run]]) -> None:
    """They order nothing: a yes would be read as one for what they would order."""
    shadow = answer(parse_policy(TEXT.replace("rule:", "mode: shadow, rule:")), record([[3.0, 3.0]]))

    assert (shadow.arm, shadow.because) == (
        Arm.NOTHING,
        "Its rules are in shadow: they order nothing. Leave out 'mode: shadow' to judge them.",
    )


def test_json_page_and_terminal_give_the_same_answer(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """The page has it above everything else."""
    report = dataclasses.replace(backtest(policy, record([CHEAP, DEAR, DEAR, DEAR])), cost_per_hour=2.5)
    found, told, page = summarize(report).arming, report_json(summarize(report)), report_page(summarize(report))

    assert (told["arming"]["arm"], told["arming"]["because"]) == ("no", found.because)
    assert told["ledger"] == {"unit": "h", "spent": 20.0, "saved": 3.0, "lost": 6.0, "unknown": 0.0}
    assert '<div class="answer no"><b>Do not arm it (high = 2)</b>' in page
    assert page.index('class="answer no"') < page.index('class="bars"') < page.index("Every run")
    assert [line.split()[-1] for line in bar_lines(summarize(report).ledger, DEFAULT_RISK)][:3] == [
        "50.00",
        "7.50",
        "15.00",
    ]


def test_runs_are_sorted_by_what_they_lose(policy: Policy, record: Callable[..., list[Run]]) -> None:
    """A long run that is lost comes before a short one with more regret."""
    runs = record([CHEAP, DEAR], group="short") + record([[1.9, 2.5, 1.0, 0.9, 0.8], WHOLE], group="long", hours=5)

    names = [result.name for result in summarize(backtest(policy, runs)).ranked]

    assert names == ["long-0", "short-1", "short-0", "long-1"]


def test_sentences_beyond_a_screen_are_counted() -> None:
    """A sentence takes as many lines as it has hundreds of characters."""
    shown = list(screenful(["x" * 150, "y", "", "z", "w"], printed=36))

    assert shown == ["x" * 150, "y", "2 more sentences: --html FILE writes a report with all of them."]
