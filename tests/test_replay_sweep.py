"""A sweep over recorded runs reports each variant's backtest numbers, and leaves the rest to the event engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steptape import Recorder, TelemetryError, backtest, open_run, sweep
from steptape.cli.app import app
from steptape.replay.columns.variant_firings import batch_of, batches_of
from steptape.replay.columns.variants import variants_of
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.run_pool import RunPool, can_share_work
from steptape.replay.runs.event_stream import read_metrics
from steptape.replay.runs.judging import RunBackground
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.run_result import DEFAULT_SETTINGS, Excluded
from steptape.replay.sweeps.sweeping import RunSweeper, sweep_all
from steptape.replay.sweeps.variant_outcomes import sweep_stream
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.metrics import Metric, register_metric
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.metric_words import Mode
from steptape.store.plan import Plan
from steptape.store.run import Run

POLICY = """
params: {spike: 2.0, window: 3, tolerated: 0}
controllers:
  - name: high
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, window)
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
"""
OBJECTIVE = Objective("eval_loss", Mode.MIN)
AXES: dict[str, list[float]] = {"spike": [1.2, 1.5, 9.0], "window": [2, 3], "tolerated": [0, 1]}


@register_metric
class LossOfASweep(Metric):
    """The newest loss, as a metric registered only in this process."""

    kinds = frozenset({"step_end"})

    def compute(self, event: Event) -> float:
        """Return the event's loss."""
        return event.metrics["loss"]


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Two runs that spike; afterwards the evaluations improve in one and worsen in the other."""
    made = []
    for name, last in (("recovers", 0.5), ("does-not", 3.0)):
        with Recorder(tmp_path / "runs", name=name) as rec:
            for step, loss in enumerate((2.0, 1.5, 1.0, float("nan"), 1.0, 1.0, 4.0, 4.0, 1.0, 0.5), 1):
                rec.step(loss=loss)
                if step in (1, 2, 3, 5, 10):
                    rec.evaluate(eval_loss={5: 1.0, 10: last}.get(step, 2.0))
        made.append(open_run(rec.folder))
    return made


def test_every_variant_comes_to_what_its_own_backtest_finds(runs: list[Run]) -> None:
    """Runs are read from the store as columns."""
    swept = sweep(parse_policy(POLICY), AXES, runs)
    singles = [backtest(variant.policy(), runs) for variant in swept.variants]

    assert len(swept.variants) == 12
    assert swept.engine_reasons == {}
    assert swept.totals["steps_saved"].tolist() == [sum(r.steps_saved or 0 for r in one.results) for one in singles]
    assert swept.totals["stopped"].tolist() == [sum(r.stop is not None for r in one.results) for one in singles]


@pytest.mark.parametrize(
    "rule", ["series(metric) > 1.9", "recent > 1.9", "series(metric) > loss or loss > 3.9", "mood == 'bad'"]
)
def test_variants_that_name_other_metrics_read_those(rule: str, runs: list[Run]) -> None:
    """The name is in the rule itself, in a definition or in a state; the text of the rule is the same for each."""
    policy = parse_policy(f"""
params: {{metric: lr}}
define: {{recent: series(metric)}}
states:
  mood: [{{bad: series(metric) > 1.9}}, {{good: step > 0}}]
controllers:
  - name: high
    triggers: [on_step_end]
    rule: {rule}
    operations: [hfcontrols.should_training_stop]
""")
    swept = sweep(policy, {"metric": ["eval_loss", "loss", "gone"]}, runs)
    singles = [backtest(variant.policy(), runs) for variant in swept.variants]

    assert swept.totals["decisions"].tolist() == [sum(len(r.decisions) for r in one.results) for one in singles]


def test_checkpoints_and_what_can_be_deployed_are_those_of_each_backtest(tmp_path: Path) -> None:
    """This holds for the run's own checkpoints and for those that the rules request."""
    with Recorder(tmp_path / "runs") as rec:
        for step in range(1, 13):
            rec.step(loss=9.0 if step % 5 == 0 else 1.0)
            rec.evaluate(eval_loss=2.0 / step)
            if step % 3 == 0:
                rec.save(f"checkpoint-{step}", size_bytes=100 + step)
    run = open_run(rec.folder)
    for operations in ("[hfcontrols.should_training_stop]", "[hfcontrols.should_save]", "[hfcontrols.should_log]"):
        policy = parse_policy(POLICY.replace("[hfcontrols.should_training_stop]", operations))
        swept = sweep(policy, AXES, [run])
        results = [backtest(variant.policy(), [run]).results[0] for variant in swept.variants]
        predicted = [result.predicted for result in results if result.predicted is not None]

        assert swept.totals["checkpoints"].tolist() == [outlay.checkpoints for outlay in predicted]
        assert swept.totals["checkpoint_bytes"].tolist() == [outlay.checkpoint_bytes for outlay in predicted]
        assert swept.runs[0].outcomes.deployable_regret.tolist() == pytest.approx(
            [nan if (r := one.deployable_regret) is None else r for one in results], nan_ok=True, abs=0
        )


def test_the_order_of_the_runs_changes_no_bit_of_a_total(tmp_path: Path) -> None:
    """Imported runs are ordered by id, which differs from place to place."""
    runs = []
    for number in range(9):
        with Recorder(tmp_path / "runs") as rec:
            for step in range(1, 13):
                rec.step(loss=9.0 if step == 4 else 1.0)
                rec.evaluate(eval_loss=(number + 1) ** 1.5 / (step + number / 7))
        runs.append(open_run(rec.folder))
    policy = parse_policy(POLICY)

    totals, turned = (sweep(policy, AXES, order).totals for order in (runs, runs[::-1]))
    report, turned_report = (
        report_json(summarize(backtest(policy, order)))["aggregate"] for order in (runs, runs[::-1])
    )

    assert repr({name: found.tolist() for name, found in totals.items()}) == repr(
        {name: found.tolist() for name, found in turned.items()}
    )
    assert report == turned_report


def test_a_stop_keeps_fewer_checkpoints_and_deploys_a_worse_value(tmp_path: Path) -> None:
    """Both count up to the stop; regret is relative to the best recorded value with a checkpoint."""
    with Recorder(tmp_path / "runs") as rec:
        for step, loss in enumerate((1.0, 1.0, 9.0, 1.0, 1.0), 1):
            rec.step(loss=loss)
            rec.evaluate(eval_loss=8.0 / step)
            if step in (2, 4):
                rec.save(f"checkpoint-{step}", size_bytes=50)
    swept = sweep(parse_policy(POLICY), {"spike": [1.5, 99.0]}, [open_run(rec.folder)])

    assert swept.totals["checkpoints"].tolist() == [1, 2]
    assert swept.totals["checkpoint_bytes"].tolist() == [50, 100]
    assert swept.totals["mean_deployable_regret"].tolist() == [1.0, 0.0]


def test_several_processes_find_what_one_does(runs: list[Run]) -> None:
    """Results keep the order of the runs."""
    policy = parse_policy(POLICY)
    alone = map(RunSweeper([(policy, AXES)], (OBJECTIVE,)), runs)
    with RunPool(2) as pool:
        shared = list(pool.mapped(RunSweeper([(policy, AXES)], (OBJECTIVE,)), runs))

    for one, other in zip(alone, shared, strict=True):
        assert not isinstance(one, Excluded)
        assert not isinstance(other, Excluded)
        assert one.swept[0].run_id == other.swept[0].run_id
        assert repr(vars(one.swept[0].outcomes)) == repr(vars(other.swept[0].outcomes))


def test_policies_that_share_one_pass_find_what_each_finds_alone(runs: list[Run]) -> None:
    """Outcomes, totals and what could not fire, run by run."""
    other = parse_policy(POLICY.replace("spike * mean(loss, window)", "spike * mean(loss, window) or eval_loss > 99"))
    varied = [(parse_policy(POLICY), AXES), (other, {"spike": [2.0, 9.0]})]
    shared, facts = sweep_all(varied, runs, declared=[OBJECTIVE], settings=DEFAULT_SETTINGS, readers=RunPool())
    alone = [sweep(policy, axes, runs, objective=OBJECTIVE) for policy, axes in varied]

    assert facts == {}
    for one, own in zip(shared, alone, strict=True):
        assert one.frame().equals(own.frame())
        assert [repr(vars(run.outcomes)) for run in one.runs] == [repr(vars(run.outcomes)) for run in own.runs]
        assert [(run.unable, run.could_fire) for run in one.runs] == [(run.unable, run.could_fire) for run in own.runs]


@pytest.mark.skipif(not can_share_work(), reason="processes cannot share work here: there is no /dev/shm")
def test_a_registered_metric_is_known_here_and_refused_by_name_in_processes_of_their_own(runs: list[Run]) -> None:
    """The policy's own error is raised instead of a broken process."""
    text = POLICY.replace("loss > spike * mean(loss, window)", "last > spike")
    policy = parse_policy("controller_metrics: [{name: last, class: LossOfASweep}]\n" + text)
    axes = {"spike": [2.0, 9.0]}

    assert sweep(policy, axes, runs, processes=2).totals["stopped"].tolist() == [2, 0]
    with pytest.raises(PolicyError, match="LossOfASweep"), RunPool(2) as pool:
        list(pool.mapped(RunSweeper([(policy, axes)]), runs))


def test_the_first_value_of_a_series_counts(runs: list[Run]) -> None:
    """A window before it holds none."""
    policy = parse_policy(POLICY.replace("loss > spike * mean(loss, window)", "count(loss, 3) > spike"))

    (swept,) = sweep(policy, {"spike": [0, 1, 2], "tolerated": [0]}, runs[:1]).runs

    assert swept.outcomes.stop_step.tolist() == [1, 2, 3]


def test_variants_that_are_laid_out_in_lots_come_to_the_same(runs: list[Run]) -> None:
    """A sweep of many thousands is processed in lots of some thousands."""
    variants = variants_of(parse_policy(POLICY), AXES)
    stream = read_metrics(runs[0].snapshot(), {"loss", "eval_loss"})
    whole, lots = (
        sweep_stream(batches, stream, RunBackground(), OBJECTIVE).outcomes.of_each()
        for batches in (batches_of(variants), [batch_of(variants[:5]), batch_of(variants[5:])])
    )

    assert lots.stop_step.tolist() == whole.stop_step.tolist()
    assert lots.decisions.tolist() == whole.decisions.tolist()


def test_the_front_holds_what_no_other_variant_beats_in_both(runs: list[Run]) -> None:
    """The variant that saves most comes first, the one without regret last."""
    swept = sweep(parse_policy(POLICY), AXES, runs)
    front = [(swept.totals["steps_saved"][index], swept.totals["mean_regret"][index]) for index in swept.front]

    assert front == [(6.0, 0.5), (0.0, 0.0)]


def test_a_run_that_might_have_gone_on_counts_in_no_regret(runs: list[Run], tmp_path: Path) -> None:
    """Its own regret is a lower bound, as in a backtest."""
    with Recorder(tmp_path / "runs", name="short", total_steps=20) as rec:
        for step, loss in enumerate((1.0, 1.0, 9.0, 1.0), 1):
            rec.step(loss=loss)
            rec.evaluate(eval_loss=10.0 / step)
    alone, beside = (sweep(parse_policy(POLICY), AXES, chosen) for chosen in (runs, [*runs, open_run(rec.folder)]))

    assert beside.runs[-1].outcomes.is_right_censored.all()
    assert (beside.runs[-1].outcomes.regret > 0).any()
    assert beside.totals["mean_regret"].tolist() == alone.totals["mean_regret"].tolist()
    assert beside.totals["worst_regret"].tolist() == alone.totals["worst_regret"].tolist()


@pytest.mark.parametrize("trigger", ["step_end", "init_end"])
@pytest.mark.parametrize(("ending", "is_censored"), [("unknown", False), ("stated", True)])
def test_an_imported_run_might_have_gone_on_where_its_backtest_says_so(
    ending: str, is_censored: bool, trigger: str, store_record: Callable[..., Path]
) -> None:
    """A log that lacks the last of its plan is complete if nothing says how it ended, also to the event engine."""
    events = [Event("step_end", step=step, metrics={"loss": 1.0}) for step in (1, 2, 3)]
    told: dict[str, Any] = {"plan": Plan(total_steps=4), "source": {"kind": "table", "ending": ending}}
    run = open_run(store_record(events, **told))
    policy = parse_policy(POLICY.replace("on_step_end", f"on_{trigger}"))

    (swept,), (judged,) = sweep(policy, {"spike": [1.2]}, [run]).runs, backtest(policy, [run]).results

    assert bool(judged.right_censored) == is_censored
    assert swept.outcomes.is_right_censored.tolist() == [is_censored]


def test_a_run_with_few_evaluations_counts_in_no_regret_of_a_sweep(runs: list[Run], tmp_path: Path) -> None:
    """Its savings count, as in a backtest."""
    with Recorder(tmp_path / "runs", name="few") as rec:
        for step, loss in enumerate((1.0, 1.0, 1.0, 9.0, 1.0), 1):
            rec.step(loss=loss)
            if step != 3:
                rec.evaluate(eval_loss=10.0 / step)
    alone, beside = (sweep(parse_policy(POLICY), AXES, chosen) for chosen in (runs, [*runs, open_run(rec.folder)]))

    assert (beside.totals["steps_saved"] > alone.totals["steps_saved"]).any()
    assert beside.runs[-1].outcomes.regret.max() > 0
    assert beside.totals["mean_regret"].tolist() == alone.totals["mean_regret"].tolist()


def test_frames_have_a_row_a_variant_and_a_row_a_variant_and_run(runs: list[Run]) -> None:
    """One frame has settings, totals and the front; the other has each outcome."""
    swept = sweep(parse_policy(POLICY), AXES, runs)

    assert swept.frame().height == 12
    assert {"spike", "window", "tolerated", "steps_saved", "mean_regret", "on_front"} <= set(swept.frame().columns)
    assert swept.runs_frame().height == 24


def test_what_has_no_columnar_form_is_left_to_the_event_engine_and_said(runs: list[Run]) -> None:
    """What it asks about goes with it; the numbers stay those of a backtest."""
    rule = 'updates_skipped >= 0 and times_fired("high") > 0'
    text = POLICY + f"  - {{name: again, triggers: [on_step_end], rule: '{rule}', operations: []}}\n"
    swept = sweep(parse_policy(text), {"spike": [1.2, 9.0]}, runs)
    singles = [backtest(variant.policy(), runs) for variant in swept.variants]

    assert swept.engine_reasons["again"] == "it reads the fact 'updates_skipped'"
    assert "high" in swept.engine_reasons
    assert swept.totals["decisions"].tolist() == [sum(len(r.decisions) for r in one.results) for one in singles]


@pytest.mark.parametrize(
    ("fact", "reasons"),
    [
        *((fact, {}) for fact in ("step", "epoch", "progress", "max_steps", "elapsed_s", "world_size", "samples_seen")),
        ("updates_skipped", {"c": "it reads the fact 'updates_skipped'"}),
    ],
)
def test_facts_about_the_run_have_columns_but_those_of_attributes(
    fact: str, reasons: dict[str, str], runs: list[Run]
) -> None:
    """The event engine is a hundred times slower: what can be decided by columns is."""
    text = (
        f"params: {{at: 1}}\ncontrollers: [{{name: c, triggers: [on_step_end], rule: {fact} > at, operations: []}}]\n"
    )
    swept = sweep(parse_policy(text), {"at": [0.5, 4.0]}, runs)
    singles = [backtest(variant.policy(), runs) for variant in swept.variants]

    assert swept.engine_reasons == reasons
    assert swept.totals["decisions"].tolist() == [sum(len(r.decisions) for r in one.results) for one in singles]


def test_a_run_under_live_rules_is_judged_by_the_event_engine(tmp_path: Path) -> None:
    """Its own decisions are observed, not predicted."""
    with Recorder(tmp_path / "runs", rules=parse_policy(POLICY)) as rec:
        for loss in (1.0, 1.0, 1.0, 9.0, 1.0, 1.0):
            rec.step(loss=loss)
    run = open_run(rec.folder)
    swept = sweep(parse_policy(POLICY), {"spike": [1.5, 2.0]}, [run])

    assert swept.engine_reasons == {run.run_id: "it was recorded with live rules"}
    assert swept.totals["steps_saved"].tolist() == [
        (backtest(variant.policy(), [run]).results[0].steps_saved or 0.0) for variant in swept.variants
    ]


@pytest.mark.parametrize("axes", [{"spikes": [1.0]}, {"spike": [True]}, {"window": [0, 1]}])
def test_values_that_a_policy_does_not_take_are_refused(axes: dict[str, list[float]], runs: list[Run]) -> None:
    """The cases are an unknown param, another type, and a value out of range."""
    with pytest.raises(PolicyError):
        sweep(parse_policy(POLICY), axes, runs)


def test_a_sweep_has_a_greatest_size() -> None:
    """The error comes before anything is read."""
    with pytest.raises(TelemetryError, match="at most 100,000 variants"):
        sweep(parse_policy(POLICY), {"spike": [1.0] * 1_000, "window": [2] * 1_000}, [])


@pytest.mark.usefixtures("runs")
def test_the_command_prints_the_front_and_how_many_variants_were_tried(tmp_path: Path) -> None:
    """The number of variants tried is shown next to any winner."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    arguments = ["sweep", str(policy), "--store", str(tmp_path / "runs"), "--set", "spike={1.2..1.8..0.3, 9.0}"]
    result = CliRunner().invoke(app, [*arguments, "--set", "tolerated=0,1"])

    assert result.exit_code == 0
    assert "8 variants replayed over 2 runs; best trade-offs in-sample: 2; --json lists all 8." in result.output


@pytest.mark.usefixtures("runs")
def test_the_command_prints_every_variant_as_json(tmp_path: Path) -> None:
    """Each variant is one line, with the number of variants."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    arguments = ["sweep", str(policy), "--store", str(tmp_path / "runs"), "--set", "window=2,3", "--json"]
    rows = [json.loads(line) for line in CliRunner().invoke(app, arguments).output.splitlines()]

    assert [row["window"] for row in rows] == [2, 3]
    assert {row["variants"] for row in rows} == {2}


@pytest.mark.parametrize("setting", ["spike", "spike=", "spike=5..1", "spike=1..", "spike=0..1..nan", "spike=1:2:1"])
def test_the_command_refuses_values_that_are_none(setting: str, tmp_path: Path) -> None:
    """Usage errors have exit status 2."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    result = CliRunner().invoke(app, ["sweep", str(policy), "--store", str(tmp_path), "--set", setting])

    assert result.exit_code == 2


@pytest.fixture
def bits(tmp_path: Path) -> list[str]:
    """The arguments of a sweep over runs that evaluate ``val_bpb`` alone, with the metric set to that."""
    for name in ("a", "b"):
        with Recorder(tmp_path / "runs", name=name) as rec:
            for step in range(1, 9):
                rec.step(loss=1.0)
                rec.evaluate(val_bpb=1.0 + abs(step - 4))
    store = ["--store", str(tmp_path / "runs")]
    return ["sweep", "early_stopping", *store, "--set", "metric=val_bpb", "--set", "patience=2,3"]


def test_what_runs_lack_is_said_of_the_metric_that_is_set(bits: list[str]) -> None:
    """The file's own ``eval_loss`` is read by no variant."""
    output = CliRunner().invoke(app, bits).output

    assert "2 variants replayed over 2 runs" in output
    assert "lack" not in output


def test_automatic_renames_are_those_of_the_metric_that_is_set(bits: list[str]) -> None:
    """Otherwise ``val_bpb`` would be renamed away from the variants that read it."""
    result = CliRunner().invoke(app, [*bits, "--rename", "auto"])

    assert "--rename auto: no metric that the rules read and runs lack has a near name" in result.stderr
