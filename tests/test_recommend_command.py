"""``steptape recommend`` names a rule that keeps its promise, writes what arms it, or says why there is none."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from early_stoppings import decided

from steptape import Recorder, backtest, load_policy, open_run, open_store
from steptape.replay.choosing.certification_report import certification_lines
from steptape.replay.choosing.certifying import certify
from steptape.replay.choosing.halving import PLANS, halving_of
from steptape.replay.choosing.recommending import FORMS, Recommendation, recommend
from steptape.replay.reports.recommendation import RuleAdvice, advice_lines, advise, answer_sentences
from steptape.replay.runs.objective import Objective, Origin
from steptape.replay.runs.risk import DEFAULT_RISK, risk_of
from steptape.rules.certificate import read_certificate
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.metric_words import Mode
from steptape.store.plan import Plan
from steptape.store.run import Run

MakeRuns = Callable[..., list[Run]]

DAY_NS = 86_400 * 10**9


def flat(number: int, evaluations: int = 30) -> list[float]:
    """Return a curve that falls for five evaluations and then rises slowly: a stop is right."""
    start = 1 + number * 1e-5
    return [start * (2 - i / 5 if i < 5 else 1.2 + 0.0005 * i) for i in range(evaluations)]


def late(number: int) -> list[float]:
    """Return the same curve whose last evaluation is a fifth better: a stop is wrong."""
    return [*flat(number)[:-1], 0.8 * flat(number)[5]]


@pytest.fixture
def make_runs(store_record: Callable[..., Path]) -> MakeRuns:
    """A function that records a run of its own project for each curve; ``facts`` holds what else is known of each."""
    numbers = itertools.count()

    def make(
        curves: Sequence[Sequence[float]],
        metric: str = "eval_loss",
        loss: str = "loss",
        facts: Sequence[dict[str, Any]] = (),
    ) -> list[Run]:
        runs = []
        for index, curve in enumerate(curves):
            number = next(numbers)
            events = []
            for step, value in enumerate(curve, start=1):
                # The training loss tells runs apart: equal series are one training.
                events.append(Event("step_end", step=step, metrics={loss: 1 + number + 0.01 / step}))
                events.append(Event("evaluate", step=step, metrics={metric: value}, time_ns=number * 1000 + step))
            told = {"config": {"project": f"p{number}"}} | (facts[index] if facts else {})
            runs.append(open_run(store_record(events, run_id=f"run-{number}", name=f"run {number}", **told)))
        return runs

    return make


def said(advice: RuleAdvice) -> str:
    """Return the sentences of an advice."""
    return "\n".join(line for line in advice_lines(advice) if isinstance(line, str))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.only_one
def test_the_two_lines_that_it_prints_arm_the_certified_rule_and_stop_a_loop_where_the_backtest_said(
    make_runs: MakeRuns, store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the chosen params as its own, and the digest of the certificate."""
    make_runs([flat(number) for number in range(40)])
    found = call("recommend", "--store", store_path, "-o", "recommended.yaml", "--family", "project", folder=tmp_path)
    monkeypatch.chdir(tmp_path)
    policy, certificate = load_policy("recommended.yaml"), read_certificate("recommended.json")

    assert found.returncode == 0, found.stderr
    assert "rec = Recorder(..., rules='recommended.yaml', certificate='recommended.json')" in found.stdout
    assert "control = rec.evaluate({'eval_loss': ...})" in found.stdout
    assert (policy.digest, dict(policy.params)) == (certificate.policy.digest, dict(certificate.policy.params))
    assert certificate.policy.source == "recommended.yaml"

    steps: list[int] = []
    for rules, certified in ((None, None), ("recommended.yaml", "recommended.json")):
        armed: dict[str, Any] = {} if rules is None else {"rules": rules, "certificate": certified, "strict": True}
        with Recorder("live", config={"project": "new"}, total_steps=30, quiet=True, **armed) as rec:
            for step, value in enumerate(flat(99), start=1):
                rec.step(loss=0.1 / step)
                control = rec.evaluate({"eval_loss": value})
                if control.should_save:
                    rec.save(f"{step}.pt")
                if control.should_stop:
                    break
        steps.append(step)
    whole, stopped = (open_store("live").run(entry.summary.run_id) for entry in open_store("live").entries()[0])
    (predicted,) = backtest(policy, [whole]).results
    assert predicted.stop is not None
    assert steps == [30, predicted.stop.outcome.step]
    assert stopped.rows("SELECT count(*) AS saves FROM saves")[0]["saves"] == 1


def test_a_candidate_is_written_in_shadow_mode_without_a_certificate_and_stops_nothing(
    make_runs: MakeRuns, store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve families promise nothing. The number that is lacking is printed, and the exit status is 1."""
    make_runs([flat(number) for number in range(12)])
    found = call("recommend", "--store", store_path, "-o", "next.yaml", "--family", "project", folder=tmp_path)
    monkeypatch.chdir(tmp_path)

    assert found.returncode == 1
    assert (
        "Too few runs to promise anything: they are 12 families (by project), and a certificate takes at least 30."
        in found.stdout
    )
    assert "next.yaml has it in shadow mode" in found.stdout
    assert not Path("next.json").exists()
    with Recorder("live", rules="next.yaml", total_steps=30, quiet=True) as rec:
        stops = [rec.evaluate({"eval_loss": value}).should_stop for value in flat(99)]
    (entry,) = open_store("live").entries()[0]
    decisions = open_store("live").run(entry.summary.run_id).decisions().to_pylist()
    assert not any(stops)
    assert decisions
    assert {one["mode"] for one in decisions} == {"shadow"}


def test_logs_of_other_tools_are_read_and_their_metrics_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``val/loss`` is no name of the rule language, so the rule reads ``"val/loss"``."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    logs = tmp_path / "logs"
    for number in range(40):
        (logs / f"run{number}").mkdir(parents=True)
        rows = [f"{step},{1 / step},{value}" for step, value in enumerate(flat(number), start=1)]
        (logs / f"run{number}" / "metrics.csv").write_text("\n".join(["step,train/loss,val/loss", *rows]) + "\n")
    found = call("recommend", logs, "--family", "run", "--json", "-o", tmp_path / "r.yaml")
    told = json.loads(found.stdout)

    assert found.returncode == 0, found.stderr
    assert told["recommended"]
    assert told["objective"]["metric"] == "val/loss"
    assert 'lag(trough("val/loss"), 1)' in told["rule"]["text"]
    assert told["rule"]["text"] == (tmp_path / "r.yaml").read_text()
    assert told["certificate"] == json.loads((tmp_path / "r.json").read_text())
    assert told["share_saved"] > 0.5


def test_a_question_leaves_out_earlier_runs_and_those_without_a_start(make_runs: MakeRuns, store_path: Path) -> None:
    """They are counted on stderr."""
    runs = make_runs([flat(number) for number in range(12)])
    ages = [None, *[90] * 4, *[3] * 7]
    for run, age in zip(runs, ages, strict=True):
        file = run.folder / "run.json"
        document = json.loads(file.read_text())
        document["attempts"][0]["started_ns"] = 0 if age is None else time.time_ns() - age * DAY_NS
        file.write_text(json.dumps(document))
    found = call("recommend", "--store", store_path, "--where", "started:30d", "--family", "project", "--json")

    assert json.loads(found.stdout)["runs"] == 7
    assert "note: 5 runs left out by --where started:30d\n" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["LOGS", "--store", "STORE"], "name LOGS, or give --store STORE; not both"),
        (["--store", "STORE", "-o", "r.json"], "the certificate would replace the rule file"),
        (["--store", "STORE", "--where", "started:soon"], "where:9: 'started' takes a date, a time or an age"),
        (["--store", "STORE"], "there is no run to learn from"),
        (["LOGS"], "it holds no files"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(
    arguments: list[str], message: str, store_path: Path, tmp_path: Path
) -> None:
    """An empty folder and an empty store are among it."""
    (tmp_path / "LOGS").mkdir()
    named = [str(store_path) if one == "STORE" else str(tmp_path / one) if one == "LOGS" else one for one in arguments]
    found = call("recommend", *named, folder=tmp_path)

    assert found.returncode == 2
    assert message in found.stderr


# --- what it says of odd histories -----------------------------------------------------------------------------------


def test_each_run_is_read_once_for_all_forms_and_those_of_the_report_once_more(make_runs: MakeRuns) -> None:
    """Where there is no rule there is no report."""
    read: list[object] = []
    losing = advise(
        make_runs([(late if n % 2 else flat)(n) for n in range(40)]), family="project", on_progress=read.append
    )
    armed = advise(make_runs([flat(n) for n in range(96)]), family="project", on_progress=read.append)

    assert losing.report is None
    assert len(armed.found.reported) == 32
    assert len(read) == 40 + 96 + 32


def test_the_metric_that_most_runs_evaluated_judges_whatever_the_names_of_other_values(make_runs: MakeRuns) -> None:
    """``eval_loss`` is a value of each update here, and comes before ``eval_accuracy`` by its name."""
    runs = make_runs(
        [[1 - 0.1 * value for value in flat(number)] for number in range(40)], "eval_accuracy", "eval_loss"
    )
    advice = advise(runs, family="project")

    assert advice.is_recommended
    assert advice.found.objective == Objective("eval_accuracy", Mode.MAX, Origin.GUESSED)
    assert len(advice.found.members) == 40


def test_runs_of_one_family_promise_nothing(make_runs: MakeRuns) -> None:
    """Forty seeds of one configuration are one case; the other keys are named."""
    facts = [{"config": {"model": "a", "lr": number % 5}} for number in range(40)]
    advice = advise(make_runs([flat(number) for number in range(40)], facts=facts))

    assert not advice.is_recommended
    assert "they are 1 family (by configuration), and a certificate takes at least" in said(advice)
    assert "By other keys there would be: " in said(advice)


@pytest.mark.parametrize("is_risk_given", [False, True])
def test_a_metric_whose_evaluations_are_noise_arms_nothing(make_runs: MakeRuns, is_risk_given: bool) -> None:
    """A patience rule would keep the risk, since the tolerance is larger than most differences. The answer says why."""
    rng = random.Random(3)
    runs = make_runs([[2 + rng.gauss(0, 0.04) for _ in range(30)] for _ in range(40)])
    risk = replace(DEFAULT_RISK, over=0.05)
    advice = advise(runs, family="project", risk=risk, is_risk_given=is_risk_given)

    assert any(one.choice.passed for one in advice.found.tried)
    assert not advice.is_recommended
    assert advice.rule_text == ""
    assert next(answer_sentences(advice)) == (
        "Nothing to arm: eval_loss does not show what training does. In these 40 runs its evaluations come in an order "
        "as good as random, so a stop would lose nothing by it, and that says nothing of the training. --objective "
        "names another metric."
    )


def test_a_history_in_which_some_runs_are_noise_is_judged_by_its_risk(make_runs: MakeRuns) -> None:
    """Half of the runs learn, so the metric shows what training does."""
    rng = random.Random(3)
    curves = [flat(n) if n % 2 else [1 + rng.gauss(0, 0.002) for _ in range(30)] for n in range(40)]

    assert advise(make_runs(curves), family="project").is_recommended


def test_a_metric_that_never_changes_in_any_run_arms_nothing(make_runs: MakeRuns) -> None:
    """An accuracy of 0 throughout is one, too: nothing is divided by it, and no noise can be stated."""
    constant = advise(make_runs([[0.25] * 20] * 40), family="project")
    zero = advise(make_runs([[0.0] * 20] * 40, "eval_accuracy"), family="project")

    assert [constant.is_recommended, zero.is_recommended] == [False, False]
    assert "In these 40 runs it never changes, so a stop would lose nothing by it" in said(constant)
    assert "In all 40 runs eval_loss never changes: no stop loses anything there." in said(constant)
    assert "How noisy eval_accuracy is, no run says." in said(zero)


def test_runs_that_stay_at_zero_among_others_lose_nothing(make_runs: MakeRuns) -> None:
    """Failed runs are what stops are for."""
    curves = [[0.0] * 30 if n % 2 else [3 - value for value in flat(n)] for n in range(40)]
    advice = advise(make_runs(curves, "eval_accuracy"), family="project")

    assert advice.is_recommended
    assert advice.report is not None
    assert advice.report.arming.lost == 0


def test_runs_without_an_evaluation_are_refused_with_the_way_to_name_one(make_runs: MakeRuns, store_path: Path) -> None:
    """Runs of NaN alone and of fewer than five evaluations cannot be judged, too."""
    make_runs([[], [], [0.3, 0.2], [float("nan")] * 9])
    found = call("recommend", "--store", store_path)

    assert found.returncode == 2
    assert "no run can be judged: it recorded no step and no metric (2); it has fewer than 5 " in (found.stderr)
    assert "--evaluation COLUMN" in found.stderr


def test_metrics_whose_names_do_not_say_which_way_is_better_are_listed(make_runs: MakeRuns, store_path: Path) -> None:
    """With the option that says it, ready to be copied."""
    make_runs([flat(number) for number in range(2)], "dev odd score")
    found = call("recommend", "--store", store_path)

    assert "They evaluated dev odd score (2 runs): say which way is better" in found.stderr
    assert "as in --objective 'dev odd score':min" in found.stderr


def test_names_of_one_meaning_are_one_metric(make_runs: MakeRuns, store_path: Path, tmp_path: Path) -> None:
    """Runs of several tools call it otherwise; the answer says what was read as what, and rests on all of them."""
    for first, metric in ((0, "xent/dev"), (14, "dev xent"), (27, "dev_xent")):
        make_runs([flat(number) for number in range(first, first + 13)], metric)
    make_runs([flat(50)], "xent/dev")
    found = call("recommend", "--store", store_path, "-o", "r.yaml", "--family", "project", folder=tmp_path)
    again = call(
        "backtest", "r.yaml", "--store", store_path, "--family", "project", "--rename", "auto", folder=tmp_path
    )

    assert found.returncode == 0, found.stderr
    assert "dev xent (13 runs), dev_xent (13 runs) are read as xent/dev, the nearest name of each run." in found.stdout
    assert "\n40 runs count." in found.stdout
    assert again.stdout.startswith("Arm it (")


def test_a_backtest_of_a_recommended_rule_is_judged_by_the_certificate_beside_it(
    make_runs: MakeRuns, store_path: Path, tmp_path: Path
) -> None:
    """So that it does not contradict what it was recommended for; a risk that the user gives is another question."""
    make_runs([late(number) if number < 4 else flat(number) for number in range(90)])
    judging = ("--store", store_path, "--family", "project")
    call("recommend", *judging, "-o", "r.yaml", "--risk", "regret > 30%", folder=tmp_path)
    found = call("backtest", "r.yaml", *judging, folder=tmp_path)
    asked = call("backtest", "r.yaml", *judging, "--risk", "regret > 1%", folder=tmp_path)

    assert "note: r.json is its certificate, and its risk judges the stops; --risk sets another" in found.stderr
    assert "exceeds 30% in at most 10% of runs like these" in found.stdout
    assert "Certified" not in asked.stdout


def test_a_value_that_is_not_a_number_changes_nothing(make_runs: MakeRuns) -> None:
    """It is no evaluation, neither for the noise nor for the best."""
    broken = [[*flat(number)[:9], float("nan"), *flat(number)[9:]] for number in range(40)]
    advice = advise(make_runs(broken), family="project")

    assert advice.is_recommended
    assert advice.found.noise is not None


def test_runs_that_do_not_count_are_told_with_their_reasons(make_runs: MakeRuns, tmp_path: Path) -> None:
    """Running runs, those of few evaluations, and those that another metric judges; the commonest metric judges."""
    runs = make_runs([flat(number) for number in range(10)])
    runs += make_runs([[0.5, 0.4]] * 3)
    runs += make_runs([[1 - 0.1 * value for value in flat(8)]] * 4, "eval_accuracy")
    with Recorder(tmp_path / "live", name="running", quiet=True) as rec:
        rec.evaluate(eval_loss=1.0)
        advice = advise([*runs, *open_store(tmp_path / "live")], family="project")

    assert advice.found.objective == Objective("eval_loss", Mode.MIN, advice.found.objective.origin)
    assert dict(advice.found.others) == {
        "it is judged by eval_accuracy": 4,
        "it has fewer than 5 evaluations of eval_loss": 3,
        "it is still running": 1,
    }
    assert "8 other runs do not count: it is judged by eval_accuracy (4); " in said(advice)


def test_unfinished_runs_promise_nothing(make_runs: MakeRuns) -> None:
    """What follows a stop is unknown in each."""
    facts = [{"plan": Plan(total_steps=1000), "status": "crashed", "config": {"project": n}} for n in range(40)]
    advice = advise(make_runs([flat(number) for number in range(40)], facts=facts))

    assert not advice.is_recommended
    assert "All 40 runs did not run to their end" in said(advice)


def test_noise_sets_the_regret_that_counts_and_a_trend_is_no_noise(make_runs: MakeRuns) -> None:
    """A steady fall of 3 % an evaluation has none; noise of 20 % around a level hides a regret of 1 %."""
    rng = random.Random(3)
    falling = make_runs([[2 - 0.06 * step + number * 1e-5 for step in range(20)] for number in range(12)])
    noisy = make_runs([[5 + rng.gauss(0, 1) for _ in range(60)] for _ in range(12)])

    assert recommend(falling, family="project").risk.over == 0.01
    assert recommend(noisy, family="project").risk.over == 0.1
    assert "that hides a regret of 10%, which a stop may cost. " in said(advise(noisy, family="project"))
    assert recommend(noisy, family="project", is_risk_given=True).risk is DEFAULT_RISK


def test_losing_rules_are_not_recommended(make_runs: MakeRuns) -> None:
    """If every other family gains a fifth at its end, nothing that stops before is safe."""
    advice = advise(make_runs([(late if n % 2 else flat)(n) for n in range(40)]), family="project")

    assert not advice.is_recommended
    assert advice.rule_text == ""
    assert "Nothing safe saves more than 2% of a run's steps here: no rule that was tried is safe." in said(advice)


def test_families_that_choose_are_not_those_that_are_reported_on(make_runs: MakeRuns) -> None:
    """Of 96 families 32 are held out; the certificate names none of them."""
    advice = advise(make_runs([flat(number) for number in range(96)]), family="project")
    reported = {run.run_id for run in advice.found.reported}

    assert advice.found.are_held_out
    assert advice.certificate is not None
    assert len(reported) == 32
    assert reported.isdisjoint(one.run_id for one in advice.certificate.population.runs)
    assert "On 32 families that did not choose it, it would save " in said(advice)


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_patience_counts_evaluations_as_early_stopping_does(patience: int) -> None:
    """The n-th in a row without a gain stops, as the sentence of the rule file says."""
    params = {"min_gain": 0.01, "patience": patience}
    rule = FORMS[0].policy(Objective("eval_loss", Mode.MIN), "loss", params)

    assert decided(rule, [2.0, 1.0] + [1.0] * 9, "patience")[:1] == [2 + patience]


@pytest.mark.parametrize(
    "metric", ["eval_loss", "val/loss", "min_gain", "step", "a: #b", 'say "loss"', "eval/mAP@[50:95]"]
)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_form_over_a_metric_of_any_name_is_a_rule_file(metric: str, mode: Mode) -> None:
    """The params are in it once, and reading it gives the policy of these params."""
    for form in FORMS:
        params = {name: values[-1] for name, values in form.axes.items()}
        text = form.text(Objective(metric, mode), "train/loss", params)
        policy = parse_policy(text)
        keys = [key for one in policy.controllers for rule in one.bound_rules for key in rule.series]

        assert dict(policy.params) == params
        assert {key.name for key in keys if not key.is_derived} == {"train/loss" if form.name == "spike" else metric}
        assert policy.digest == form.policy(Objective(metric, mode), "train/loss", params).digest
        assert parse_policy(form.text(Objective(metric, mode), "train/loss", is_shadow=True)).controllers[0].is_shadow


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1e8, 1e30])
def test_no_answer_has_an_exponent_whatever_the_magnitude_of_the_metric(scale: float, make_runs: MakeRuns) -> None:
    """Absolute regrets of a recommendation and of a certificate, and the values of params, are written in digits."""
    runs = make_runs([[scale * value for value in flat(number)] for number in range(40)])
    risk = risk_of(f"regret > {scale / 100}", "10%")
    advice = advise(runs, family="project", risk=risk, is_risk_given=True)
    axes = {"min_gain": (scale / 1e6, scale / 1e5), "patience": (2, 3)}
    policy = parse_policy(FORMS[0].text(advice.found.objective, "loss").replace("* abs(", "+ 0 * abs("))
    certified = certify(policy, axes, runs, risk, family="project")
    tables = [*advice_lines(advice), *certification_lines(certified, certified.certificate(), "c.json")]

    assert certified.params is not None
    assert not re.search(r"\de[-+]\d", "\n".join(map(str, tables)))


def test_halving_keeps_or_loses_the_best_model_of_a_search(make_runs: MakeRuns) -> None:
    """In 22 searches of four runs the best is ahead at every point; in three others it is the last until late."""
    curves = [[2 + rank / 10 - step / 100 for step in range(16)] for rank in range(4)]
    late_curves = [*curves[:-1], [*curves[-1][:12], 0.5, 0.5, 0.5, 0.5]]

    def searched(search: list[list[float]], count: int) -> Recommendation:
        own = [[value + number / 1e5 for value in curve] for number in range(count) for curve in search]
        facts = [{"config": {"project": f"s{number}"}} for number in range(count) for _ in search]
        return recommend(make_runs(own, facts=facts), with_search=True, family="project")

    kept, late_ones = searched(curves, 22).halving, searched(late_curves, 3)
    assert kept is not None
    assert kept.best is not None
    assert (kept.families, kept.best.points, kept.best.lost) == (22, PLANS[-1], 0)
    assert kept.best.saved == pytest.approx((2 * 15 / 16 + 7 / 8) / 4)
    assert late_ones.halving is not None
    assert late_ones.halving.best is None
    assert "too few searches to judge, 3 families of four runs or more; it takes at least 22." in said(
        RuleAdvice(late_ones, None, None)
    )
    assert [plan.lost for plan in late_ones.halving.plans] == [3] * len(PLANS)
    assert halving_of({}, late_ones.objective, DEFAULT_RISK, 0.9).plans == ()
