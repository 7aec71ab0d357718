"""A certificate's promise holds on runs that did not choose it, where the naive choice breaks it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from steptape import TelemetryError, open_run
from steptape.cli.app import app
from steptape.replay.choosing.certification_report import Certification, Direction, OrderOfTests
from steptape.replay.choosing.certifying import certify, choose
from steptape.replay.choosing.family_tests import FamilyLosses
from steptape.replay.runs.risk import Risk, risk_of
from steptape.rules.certificate import read_certificate
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

Floats = npt.NDArray[np.float64]

TEXT = """
params: {patience: 2}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: not (eval_loss < -lag(peak(-eval_loss), 1))
    patience: {patience_threshold: patience}
    operations: [hfcontrols.should_training_stop]
"""
POLICY = parse_policy(TEXT)
AXES = {"patience": [1, 2, 3, 4]}
RISK = risk_of("regret > 1%", "10%")

MakeRuns = Callable[..., list[Run]]


def worse(pause: int, last: float = 0.5) -> list[float]:
    """Return evaluations that improve, pause for so many, reach a last value, and improve no more."""
    return [1.2, 1.0, 0.9, 0.8, *[0.9] * pause, last, *[last + 0.1] * 6]


@pytest.fixture
def make_runs(store_record: Callable[..., Path]) -> MakeRuns:
    """A function that records a run for each list of evaluations; ``facts`` holds what else is known of each."""
    numbers = itertools.count()

    def make(curves: Sequence[Sequence[float]], facts: Sequence[dict[str, Any]] = ()) -> list[Run]:
        runs = []
        for index, curve in enumerate(curves):
            number = next(numbers)
            events = [
                Event("evaluate", step=step, metrics={"eval_loss": value, "number": float(number)}, time_ns=number + 1)
                for step, value in enumerate(curve, start=1)
            ]
            told = {"group": f"family {number}", "config": {"lr": 0.1}} | (facts[index] if facts else {})
            runs.append(open_run(store_record(events, run_id=f"run-{number}", name=f"run {number}", **told)))
        return runs

    return make


def certified(runs: Sequence[Run], risk: Risk = RISK, **options: Any) -> Certification:
    """Certify the early stopping of this file."""
    return certify(POLICY, AXES, runs, risk, **options)


def test_the_thriftiest_variant_that_keeps_the_limit_is_chosen(make_runs: MakeRuns) -> None:
    """One run of 40 loses by a patience of 2, and nine more by a patience of 1."""
    runs = make_runs([worse(3), *[worse(2)] * 9, *[worse(1)] * 30])
    found = certified(runs)

    assert found.params == {"patience": 2}
    assert (found.choice.means * 40).round().tolist() == [10.0, 1.0, 0.0, 0.0]
    assert found.choice.passed == (3, 2, 1)


def test_too_few_families_certify_nothing_and_say_how_many_would_do(make_runs: MakeRuns) -> None:
    """At 10 % and 90 % these are 22, none of which may lose."""
    few, enough = certified(make_runs([worse(1)] * 21)), certified(make_runs([worse(1)] * 22))

    assert few.params is None
    assert (few.fewest_families, few.families_needed) == (22, 22)
    assert enough.params == {"patience": 1}
    with pytest.raises(TelemetryError, match="no variant is certified"):
        few.certificate()


def test_losses_at_the_limit_need_no_number_of_families(make_runs: MakeRuns) -> None:
    """More runs like these would not help."""
    found = certified(make_runs([*[worse(9)] * 5, *[worse(1)] * 20]))

    assert found.params is None
    assert found.families_needed is None


def test_each_family_counts_as_one_whatever_its_runs(make_runs: MakeRuns) -> None:
    """A family of 30 runs that all lose weighs as much as one of a single run; nothing is drawn."""
    curves = [*[worse(1)] * 60, *[worse(9)] * 30]
    projects = [{"config": {"project": number}} for number in range(60)]
    found = certified(make_runs(curves, [*projects, *[{"config": {"project": 60}}] * 30]), family="project")

    assert len(found.families) == 61
    assert found.choice.means == pytest.approx([1 / 61] * 4)
    assert found.params == {"patience": 1}
    assert found.certificate().evidence.broken == 30


def test_the_answer_does_not_depend_on_the_order_of_the_runs(make_runs: MakeRuns) -> None:
    """Families are tested in the order of their digests."""
    facts = [{"config": {"project": number % 40}} for number in range(80)]
    runs = make_runs([worse(number % 7 // 6 * 9) for number in range(80)], facts)
    one, other = certified(runs, family="project"), certified(runs[::-1], family="project")

    assert one.choice.p_values.tolist() == other.choice.p_values.tolist()
    assert list(one.families) == list(other.families)


def test_a_run_in_which_a_variant_cannot_fire_loses_and_saves_nothing(make_runs: MakeRuns) -> None:
    """It is counted apart: nobody could take it for evidence of a good rule."""
    late = parse_policy(TEXT.replace("on_evaluate", "on_save"))
    found = certify(late, AXES, make_runs([worse(1)] * 30), RISK)

    assert found.choice.means.tolist() == [0.0] * 4
    assert found.choice.saved.tolist() == [0.0] * 4
    assert found.could_not_fire(0) == 30


def test_runs_without_evaluations_or_still_running_are_outside_of_the_population(make_runs: MakeRuns) -> None:
    """Each is named with its reason."""
    runs = make_runs([*[worse(1)] * 30, [0.5, 0.4], []])
    found = certified(runs)

    assert len(found.members) == 30
    assert {one.run_id for one in found.outside} == {"run-30", "run-31"}


def test_a_stop_in_a_run_that_might_have_continued_counts_as_broken(make_runs: MakeRuns) -> None:
    """Without a stop such a run is the same with the policy and without it."""
    facts = [{"plan": Plan(total_steps=100)}, *[{}] * 39]
    found = certified(make_runs([worse(1, last=0.9), *[worse(0)] * 39], facts))

    assert any(one.swept.outcomes.is_right_censored.all() for one in found.members)
    assert found.unknown(0) == 1
    assert found.choice.means[0] == pytest.approx(1 / 40)


def test_the_range_of_a_metric_bounds_the_regret_of_a_run_that_might_have_continued(make_runs: MakeRuns) -> None:
    """A stop at 0.8 has lost at most 0.1 if no loss is below 0.7; whether it lost more than 0.05 is unknown."""
    bounded = parse_policy(TEXT + "ranges: {eval_loss: [0.7, 10]}\n")
    runs = make_runs([worse(1, last=0.9), *[worse(0)] * 29], [{"plan": Plan(total_steps=100)}, *[{}] * 29])
    unknown = [
        certify(bounded, AXES, runs, risk_of(risk, "10%")).unknown(0) for risk in ("regret > 0.2", "regret > 0.05")
    ]
    lost = [
        certify(bounded, AXES, runs, risk_of(risk, "10%")).choice.means[0] for risk in ("regret > 0.2", "regret > 0.05")
    ]

    assert unknown == [0, 1]
    assert lost == pytest.approx([0.0, 1 / 30])


def test_a_best_value_of_zero_has_no_relative_regret(make_runs: MakeRuns) -> None:
    """A loss there counts as broken, and the absolute risk knows it; negative values are relative to their size."""
    runs = make_runs([worse(2, last=0.0), worse(2, last=-1.0), *[worse(0)] * 28])
    relative, absolute = certified(runs), certified(runs, risk_of("regret > 2", "10%"))

    assert (relative.undefined_regrets, relative.negative_bests) == (1, 1)
    assert relative.choice.means[0] == pytest.approx(2 / 30)
    assert absolute.choice.means[0] == 0.0


def test_families_that_share_a_log_are_one(make_runs: MakeRuns) -> None:
    """A log that lies in two families makes both dependent."""
    runs = make_runs([worse(1)] * 25)
    copy = runs[3].folder.parents[1] / "copies" / runs[3].folder.name
    shutil.copytree(runs[3].folder, copy)
    (copy / "run.json").write_text(json.dumps(json.loads((copy / "run.json").read_text()) | {"group": "family 4"}))

    assert len(certified(runs).families) == 25
    assert len(certified([*runs, open_run(copy)]).families) == 24


def test_a_mean_of_capped_regrets_is_bounded_by_bets(make_runs: MakeRuns) -> None:
    """A regret counts with the cap at most."""
    found = certified(make_runs([worse(3), *[worse(0)] * 99]), risk_of("mean regret", "1%", "10%"))

    assert found.choice.means[0] == pytest.approx(0.01)
    assert found.params == {"patience": 1}
    assert found.certificate().evidence.bound < 0.01


@pytest.mark.parametrize(
    ("risk", "at_most", "cap", "message"),
    [
        ("regrets", "10%", None, "not a risk"),
        ("regret", "10%", None, "not a risk"),
        ("mean regret > 1%", "10%", None, "not a risk"),
        ("regret > x", "10%", None, "must be a number"),
        ("regret > 1%", "100%", None, "above 0 and below 100%"),
        ("regret > 1%", "-1", None, "must be a number of at least 0"),
        ("regret > 1%", "10%", "5%", "only a mean regret has a cap"),
        ("mean regret", "1%", None, "no bound without a cap"),
        ("mean regret", "1%", "0.1", "differ in their unit"),
        ("mean regret", "5%", "5%", "below its cap"),
    ],
)
def test_a_malformed_risk_is_refused(risk: str, at_most: str, cap: str | None, message: str) -> None:
    """The error says what a risk is."""
    with pytest.raises(TelemetryError, match=message):
        risk_of(risk, at_most, cap)


def made_up_losses(runs: int, seed: int) -> tuple[Floats, Floats]:
    """Return losses and savings of 30 variants on made-up runs; variant k saves more and loses more with k."""
    random = np.random.default_rng(seed)
    hard, variants = random.beta(0.6, 2.5, size=runs), np.arange(30)
    losses = (hard[:, None] + 0.03 * variants > 1.0).astype(np.float64)
    return losses, np.clip(variants / 60 + 0.1 * random.normal(size=(runs, 30)), 0.0, 1.0)


@pytest.mark.parametrize("are_counts", [True, False])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_promise_is_broken_no_more_often_than_stated(is_ordered: bool, are_counts: bool) -> None:
    """200 draws of 60 runs from 2,000: the naive choice breaks the limit far more often. Bets or binomial tail."""
    all_losses, all_saved = made_up_losses(2000, 7)
    chains = (tuple(range(30)),) if is_ordered else tuple((index,) for index in range(30))
    order = OrderOfTests(chains, "k" if is_ordered else "", Direction.ASCENDING if is_ordered else None, "")
    random, true_losses = np.random.default_rng(3), all_losses.mean(axis=0)
    broken = naive_broken = 0
    for _ in range(200):
        drawn = random.integers(2000, size=60)
        losses, saved = all_losses[drawn], all_saved[drawn]
        chosen = choose(FamilyLosses(losses, are_counts), saved, order, RISK, 0.1).chosen
        naive = max(np.flatnonzero(losses.mean(axis=0) <= 0.1), key=lambda index: saved[:, index].mean())
        broken += chosen is not None and true_losses[chosen] > 0.1
        naive_broken += bool(true_losses[naive] > 0.1)

    assert broken <= 0.1 * 200
    assert naive_broken > 2 * broken


def test_of_variants_that_save_the_same_the_one_that_loses_least_is_chosen() -> None:
    """Then the one that is tested first."""
    losses = np.zeros((40, 3))
    losses[0, 1] = 1.0
    order = OrderOfTests(((2, 1, 0),), "k", Direction.DESCENDING, "")

    assert choose(FamilyLosses(losses, are_counts=True), np.full((40, 3), 0.5), order, RISK, 0.1).chosen == 2


def command(*arguments: str | Path) -> tuple[int, str]:
    """Call ``steptape certify``; return exit status and output."""
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)])
    return result.exit_code, result.output or str(result.exception)


@pytest.fixture
def store(make_runs: MakeRuns, tmp_path: Path) -> Path:
    """A store of 30 runs beside ``policy.yaml``."""
    (tmp_path / "policy.yaml").write_text(TEXT)
    return make_runs([worse(1)] * 30)[0].folder.parent


def test_the_command_certifies_and_writes_a_certificate(store: Path, tmp_path: Path) -> None:
    """It prints the promise in one sentence."""
    status, output = command(
        tmp_path / "policy.yaml", "--store", store, "--set", "patience=1..4", "--output", tmp_path / "c.json"
    )
    certificate = read_certificate(tmp_path / "c.json")

    assert status == 0
    assert "With 90% confidence, its regret exceeds 1% in at most 10% of runs like these." in output
    assert certificate.policy.params == {"patience": 1}
    assert certificate.population.families == 30
    assert certificate.population.config["lr"].least == 0.1


def test_the_command_ends_with_1_if_nothing_is_certified(store: Path, tmp_path: Path) -> None:
    """Its first line says how many more families would be needed; nothing is written."""
    status, output = command(
        tmp_path / "policy.yaml", *("--store", store, "--set", "patience=1,2"),
        *("--at-most", "5%", "--confidence", "95%", "--output", tmp_path / "c.json"),
    )  # fmt: skip

    assert status == 1
    assert output.startswith("Certified: none; about 29 more families would be needed.")
    assert not (tmp_path / "c.json").exists()


def test_the_command_prints_all_variants_as_json(store: Path, tmp_path: Path) -> None:
    """The certificate is part of it."""
    status, output = command(tmp_path / "policy.yaml", "--store", store, "--set", "patience=1,2", "--json")
    document = json.loads(output)

    assert status == 0
    assert document["certified"] == {"patience": 1}
    assert [one["passed"] for one in document["variants"]] == [True, True]
    assert document["certificate"]["population"]["families"] == 30


def test_a_sentence_is_certified_by_the_values_in_its_braces(store: Path, tmp_path: Path) -> None:
    """The certificate knows the sentence, and a check finds it unchanged."""
    file = tmp_path / "c.json"
    sentence = "stop if eval_loss has not improved for {2, 3} evaluations"
    status, _ = command(sentence, "--store", store, "--output", file)
    certificate = read_certificate(file)

    assert status == 0
    assert certificate.policy.source == sentence
    assert certificate.policy.params == {"for_evaluations": 2}
    assert command("--check", file, "--store", store)[0] == 0


def test_a_check_passes_until_the_policy_or_a_log_changes(store: Path, tmp_path: Path) -> None:
    """It then names what has changed, and ends with 1."""
    policy, file = tmp_path / "policy.yaml", tmp_path / "c.json"
    command(policy, "--store", store, "--set", "patience=1,2", "--output", file)
    before = command("--check", file, "--store", store)
    policy.write_text(TEXT.replace("eval_loss <", "eval_loss <="))
    changed = command("--check", file, "--store", store)
    policy.write_text(TEXT)
    for part in (store / "run-7").iterdir():
        part.unlink()
    (store / "run-7").rmdir()
    lacking = command("--check", file, "--store", store)

    assert before[0] == 0
    assert changed[0] == 1
    assert "its rules, metrics or operations have changed" in changed[1]
    assert lacking[0] == 1
    assert "the run run 7 (run-7): it is not here" in lacking[1]


def test_a_log_that_changed_is_named_by_a_check(store: Path, tmp_path: Path, store_record: Callable[..., Path]) -> None:
    """The digest of the log is part of the certificate."""
    file = tmp_path / "c.json"
    command(tmp_path / "policy.yaml", "--store", store, "--set", "patience=1,2", "--output", file)
    shutil.rmtree(store / "run-3")
    store_record([Event("evaluate", step=1, metrics={"eval_loss": 1.0})], run_id="run-3", name="run 3")

    assert "the run run 3 (run-3): " in command("--check", file, "--store", store)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the values to try"),
        (["--set", "patience=1,2", "--confidence", "100%"], "a confidence is above 0 and below 100%"),
        (["--set", "patience=1,2", "--risk", "loss > 1"], "not a risk"),
    ],
)
def test_wrong_usage_is_an_error(arguments: list[str], message: str, store: Path, tmp_path: Path) -> None:
    """Nothing is read."""
    _, output = command(tmp_path / "policy.yaml", "--store", store, *arguments)

    assert message in output


def test_a_backtest_says_which_runs_are_outside_of_a_certificate(
    store: Path, tmp_path: Path, store_record: Callable[..., Path]
) -> None:
    """Also as JSON; a certificate of other params is refused."""
    policy, file = tmp_path / "policy.yaml", tmp_path / "c.json"
    command(policy, "--store", store, "--set", "patience=1,2", "--output", file)
    events = [Event("evaluate", step=step, metrics={"eval_loss": 1.0 / step}) for step in range(1, 40)]
    store_record(events, run_id="longer", name="longer", config={"lr": 0.1}, group="other")
    arguments = ["backtest", str(policy), "--store", str(store), "--certificate", str(file)]
    text = CliRunner().invoke(app, [*arguments, "--set", "patience=1"]).output
    document = json.loads(CliRunner().invoke(app, [*arguments, "--set", "patience=1", "--json"]).output)
    refused = CliRunner().invoke(app, arguments)

    reason = "its length is 39 steps, the population has 12"
    assert "it covers 30 of 31 runs" in text
    assert f"longer (longer): {reason}" in text
    assert document["certificate"]["outside"]["longer"][0] == reason
    assert "it has 39 evaluations of eval_loss" in document["certificate"]["outside"]["longer"][1]
    assert document["certificate"]["outside"]["run-0"] == []
    assert "patience is 2, certified is 1" in str(refused.exception)


def test_a_backtest_judges_by_the_risk_that_is_asked_for(make_runs: MakeRuns, tmp_path: Path) -> None:
    """A certificate has its own, so none is taken beside it."""
    policy, file = tmp_path / "policy.yaml", tmp_path / "c.json"
    policy.write_text(TEXT)
    store = make_runs([worse(3, last=0.75)] * 30)[0].folder.parent
    command(policy, "--store", store, "--set", "patience=1,2", "--risk", "regret > 20%", "--output", file)
    arguments = ["backtest", str(policy), "--store", str(store), "--set", "patience=1"]
    strict, lenient = (CliRunner().invoke(app, [*arguments, *risk]).output for risk in ((), ("--risk", "regret > 20%")))
    surer = CliRunner().invoke(app, [*arguments, "--risk", "regret > 20%", "--at-most", "20%", "--confidence", "99.9%"])
    refused = [
        CliRunner().invoke(app, [*arguments, "--certificate", str(file), *option])
        for option in (("--risk", "regret > 20%"), ("--at-most", "20%"), ("--confidence", "95%"))
    ]

    assert strict.startswith("Do not arm it")
    assert lenient.startswith("Arm it")
    assert surer.output.startswith("Not enough runs")
    assert "To be 99.9% sure that at most 1 in 5 runs lose by it" in " ".join(surer.output.split())
    assert all("a certificate's own risk judges its rule" in " ".join(one.output.split()) for one in refused)
    assert {one.exit_code for one in refused} == {2}


def test_without_a_configuration_it_is_unknown_whether_a_certificate_covers_other_runs(
    make_runs: MakeRuns, tmp_path: Path
) -> None:
    """What was compared may still say no: the number of evaluations, and the range of their values."""
    policy, file = tmp_path / "policy.yaml", tmp_path / "c.json"
    bare: dict[str, object] = {"config": {}}
    policy.write_text(TEXT)
    store = make_runs([worse(1)] * 30, [bare] * 30)[0].folder.parent
    command(policy, "--store", store, "--set", "patience=1", "--output", file)
    (like,) = make_runs([[0.99 * value for value in worse(1)]], [bare])
    (unlike,) = make_runs([[900 * value for value in worse(1)]], [bare])
    arguments = ["backtest", str(policy), "--set", "patience=1", "--certificate", str(file)]

    def said(run: Run) -> str:
        return CliRunner().invoke(app, [*arguments, str(run.folder)]).output

    assert "no configuration was recorded, so whether this run is like those that it was chosen on is unknown" in said(
        like
    )
    assert "it covers 0 of 1 run" in said(unlike)
    assert "the median of its eval_loss is 540, the population has values of 0.5 to 1.2" in said(unlike)
