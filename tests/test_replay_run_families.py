"""Runs that are not independent form families, logs of one training count once, and rows compare the same runs."""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import call as steptape

from steptape import Policy, TelemetryError, backtest, open_run, open_store, sweep
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Baseline
from steptape.replay.reports.basis import family_rows
from steptape.replay.reports.diff import diff_lines, diff_policies
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.sentences import summary_lines, verdict
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.incidents import Incident, IncidentLabels
from steptape.replay.runs.run_families import Family, family_of
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run
from steptape.store.run_info import Attempt, RunInfo

POLICY = """
controllers:
  - {name: stop, triggers: [on_evaluate], rule: eval_loss > 2, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first evaluation loss above 2."""
    return parse_policy(POLICY)


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., Run]:
    """A function that makes runs with a training step and an evaluation per value."""

    def make(
        run_id: str,
        values: Sequence[float],
        *,
        metric: str = "eval_loss",
        loss: str = "loss",
        clock: bool = False,
        **info: Any,
    ) -> Run:
        events = []
        for step, value in enumerate(values, start=1):
            time_ns = step * 10**9 if clock else 0
            events.append(Event("step_end", step=step, metrics={loss: value * 2}, time_ns=time_ns))
            events.append(Event("evaluate", step=step, metrics={metric: value}, time_ns=time_ns))
        return open_run(store_record(events, run_id=run_id, sealed=True, **info))

    return make


def info(*, argv: Sequence[str] = ("train.py",), name: str = "first", **facts: Any) -> RunInfo:
    """Return what is known of a recorded run."""
    return RunInfo("r1", name, (Attempt(0, "completed", 1, environment={"argv": list(argv)}),), **facts)


def curve(number: int, length: int = 6) -> list[float]:
    """Return a falling curve, another for each number, that peaks above 2 for odd numbers."""
    values = [1 + 1 / step + number / 1000 for step in range(1, length + 1)]
    return [*values[:-2], 2.5, values[-1]] if number % 2 else values


@pytest.mark.parametrize(
    ("facts", "key", "family"),
    [
        ({"group": "night", "config": {"model": "a"}}, "model", Family("model", "a")),
        ({"group": "night", "config": {"optimizer": {"lr": 0.1}}}, "optimizer.lr", Family("optimizer.lr", "0.1")),
        ({"group": "night", "config": {"optimizer": {"lr": 0.1}}}, "lr", Family("lr", "0.1")),
        ({"tags": ("b", "a")}, "tags", Family("tags", "a, b")),
        ({"group": "night"}, "run", Family("run", "r1")),
        ({"group": "night", "source": {"folder": "logs/a"}}, "model", Family("group", "night")),
        ({"source": {"folder": "logs/nanogpt/run-3/tb", "path": "x"}}, None, Family("source folder", "logs/nanogpt")),
        ({"source": {"folder": "logs", "path": "logs/a.csv"}}, None, Family("source folder", "logs")),
        ({"source": {"folder": "runs/lr-0.1"}, "name": "lr-0.1"}, None, Family("source folder", "runs")),
        ({"source": {"folder": "runs/gpt/lr-0.1"}, "name": "gpt/lr-0.1"}, None, Family("source folder", "runs/gpt")),
        ({}, None, Family("configuration", "train.py")),
    ],
)
def test_the_family_of_a_run_is_the_first_fact_that_tells_it(
    facts: dict[str, Any], key: str | None, family: Family
) -> None:
    """They are the named key, the group, the folder of the source below the import root, and the configuration."""
    assert family_of(info(**facts), key) == family


def test_seeds_paths_and_a_parameter_sweep_are_one_family_of_a_program() -> None:
    """Another model is another family, and so is another program."""
    config = {"model": "resnet", "seed": 1, "out_dir": "a", "data": "/mnt/a", "optim": {"lr": 0.1, "betas": [0.9]}}
    again = {"model": "resnet", "seed": 2, "out_dir": "b", "data": "/mnt/b", "optim": {"lr": "1e-3", "betas": [0.8]}}

    family = family_of(info(config=config))

    assert family.key == "configuration"
    assert family == family_of(info(config=again))
    assert family == family_of(info(config=config | {"clip": None}))
    assert family != family_of(info(config=config | {"model": "vit"}))
    assert family != family_of(info(config=config | {"layers": [{"kind": "conv"}]}))
    assert family != family_of(info(config=config, argv=("tune.py",)))


@pytest.mark.parametrize(
    "own",
    [
        lambda n: {"name": f"gpt-small-{n}"},
        lambda n: {"wandb": {"log_name": f"GPT-small-{n}"}, "resume_from": f"gpt-small-{n}.pt"},
        lambda n: {"exp_name": f"try {'abcdefgh'[n]}", "id": f"x{'abcdefgh'[n]}", "desc": "again" * n},
        lambda n: {"experiment": f"small_seed{n}", "labels": ["small", f"run {n}"]},
        lambda n: {"begun": f"2026-11-2{n} 14:03:0{n}.1{n}+01:00", "version": f"Nov2{n}_14-03-0{n}_vm"},
        lambda n: {"begun": f"small-2026112{n}T14030{n}", "launch": f"1795385{n}44", "code": f"3f{n}9a7bc"},
        lambda n: {"optim": {"schedule": f"<train.Cosine object at 0x7f3a{n}c2b10>"}},
        lambda n: {"sweep": f"9b2d1c4{n}-1f0e-4c3b-9d2a-5e6f7a8b9c0{n}"},
    ],
)
def test_a_name_a_date_an_id_or_an_address_in_the_configuration_makes_no_family(
    own: Callable[[int], dict[str, Any]],
) -> None:
    """Eight seeds of one model are one family whatever key says which run is meant; another model is another."""
    seeds = [{"model": {"name": "resnet50"}, "seed": number} | own(number) for number in range(1, 8)]

    families = {family_of(info(name=f"gpt-small-{config['seed']}", config=config)) for config in seeds}

    assert len(families) == 1
    other = {"model": {"name": "resnet101"}, "seed": 1} | own(1)
    assert family_of(info(name="gpt-small-1", config=other)) not in families


def test_a_run_named_by_a_word_keeps_that_word_in_its_configuration() -> None:
    """A run named ``small`` shares the family of a second run of the small model."""
    first, second = (info(name=name, config={"size": "small"}) for name in ("small", "small-b"))

    assert family_of(first) == family_of(second)


def test_an_import_keeps_the_folder_below_its_root(tmp_path: Path, policy: Policy) -> None:
    """Two projects with runs of their own are two families, also when the import names the root in another way."""
    for place in ("gpt/run-1/metrics.csv", "gpt/run-2/metrics.csv", "vit/a.csv"):
        path = tmp_path / "logs" / place
        path.parent.mkdir(parents=True)
        path.write_text("step,loss,val_loss\n1,2,2\n2,1,1\n")
    root = Path(os.path.relpath(tmp_path / "logs"))
    sources = find_sources([root], all_readers()).sources
    list(import_sources(tmp_path / "runs", sources, ReadOptions()))

    runs = list(open_store(tmp_path / "runs"))

    assert sorted((run.info.source or {})["folder"] for run in runs) == ["logs/gpt/run-1", "logs/gpt/run-2", "logs/vit"]
    assert {str(result.family.value) for result in backtest(policy, runs).results} == {"logs/gpt", "logs/vit"}


@pytest.fixture
def unequal(record: Callable[..., Run]) -> list[Run]:
    """Twelve runs of one group, which the policy stops, and nine of groups of their own, which it does not."""
    return [
        *(record(f"same-{number:02}", curve(2 * number + 1), group="one") for number in range(12)),
        *(record(f"own-{number}", curve(30 + 2 * number), group=f"g{number}") for number in range(9)),
    ]


def test_intervals_draw_families_and_the_report_names_key_and_number(policy: Policy, unequal: list[Run]) -> None:
    """A family with more than half of the runs is warned of, and ``family`` names another key."""
    report = backtest(policy, unequal)
    alone = backtest(policy, unequal, family="run")

    found, single = (
        report_json(summarize(report))["aggregate"]["share_saved"],
        report_json(summarize(alone))["aggregate"]["share_saved"],
    )
    said = " ".join(summary_lines(summarize(report)))
    assert (found["runs"], found["families"], single["families"]) == (21, 10, 21)
    assert found["high"] - found["low"] > single["high"] - single["low"]
    assert "Intervals draw 10 families (by group)." in said
    assert "12 of 21 runs are one family (group 'one')" in said
    assert "Intervals draw 21 families (by run)." in " ".join(summary_lines(summarize(alone)))
    assert report_json(summarize(report))["runs"][0]["family"] == {"key": "group", "value": "one"}
    assert "Intervals draw 10 families (by group)." in report_page(summarize(report))


def test_fewer_than_eight_families_have_no_interval_however_many_runs(policy: Policy, unequal: list[Run]) -> None:
    """The report says why."""
    report = backtest(policy, unequal[:12])

    assert report_json(summarize(report))["aggregate"]["share_saved"]["low"] is None
    assert "These runs are 1 family (by group); fewer than 8 have no interval." in summary_lines(summarize(report))


def test_a_key_of_families_that_no_run_has_is_refused(policy: Policy, record: Callable[..., Run]) -> None:
    """The error names a key that is near. A run without a key that others have keeps its own family."""
    runs = [record("a", curve(0), config={"dataset": "c4"}), record("b", curve(1), group="g")]
    with pytest.raises(TelemetryError, match=r"no run has this key of families; got 'datset'. Did you mean 'dataset'"):
        backtest(policy, runs, family="datset")

    families = [result.family for result in backtest(policy, runs, family="dataset").results]

    assert families == [Family("dataset", "c4"), Family("group", "g")]


def repeating(record: Callable[..., Run], count: int = 30) -> list[Run]:
    """Return two logs of one training, the second at 32 bits and under other names, and another training."""
    values = [2 / step + 0.1 for step in range(1, count + 1)]
    single = list(struct.unpack(f"{count}f", struct.pack(f"{count}f", *values)))
    return [
        record("csv", values, clock=True),
        record("tb", single, metric="val_loss"),
        record("other", [value + 1e-3 for value in values]),
    ]


def test_several_logs_of_one_training_count_once(policy: Policy, record: Callable[..., Run]) -> None:
    """The report says which; the one with evaluations of the objective counts, in any order of the runs."""
    runs = repeating(record)

    report, turned = backtest(policy, runs), backtest(policy, runs[::-1])

    assert [result.run_id for result in report.results] == ["csv", "other"]
    assert {result.run_id for result in turned.results} == {"csv", "other"}
    assert [run.run_id for run in report.repeated] == ["tb"]
    assert report_json(summarize(report))["repeated"] == [
        {"run_id": "tb", "name": "tb", "reason": "it repeats the series of csv (csv)"}
    ]
    said = "1 training was logged twice and counts once, such as tb (tb): it repeats the series of csv (csv)."
    assert said in summary_lines(summarize(report))
    assert "counted once" in report_page(summarize(report))


def test_a_log_with_a_clock_of_training_counts_before_a_longer_one_without(store_record: Callable[..., Path]) -> None:
    """Seconds saved are known of it only."""
    runs = []
    for name, step_ns, more in (("timed", 10**9, []), ("longer", 0, [Event("log", step=30)])):
        events = [
            Event("evaluate", step=step, metrics={"eval_loss": 2 / step}, elapsed_ns=step * step_ns)
            for step in range(1, 31)
        ]
        runs.append(open_run(store_record([*events, *more], run_id=name)))
    at = parse_policy(POLICY.replace("> 2", "> at").replace("controllers", "params: {at: 2}\ncontrollers", 1))

    assert [run.run_id for run in backtest(at, runs).results] == ["timed"]
    assert [run.run_id for run in sweep(at, {"at": [1, 2]}, runs).runs] == ["timed"]


def test_a_sweep_counts_the_runs_that_a_backtest_counts(record: Callable[..., Run]) -> None:
    """It leaves out the same logs, whatever their order and the params, and knows the families of the others."""
    at = parse_policy(POLICY.replace("> 2", "> at").replace("controllers", "params: {at: 2}\ncontrollers", 1))
    runs = [*repeating(record), record("grouped", curve(0), group="one")]

    for given in (runs, runs[::-1]):
        report, found = backtest(at, given), sweep(at, {"at": [1, 2]}, given)
        assert [run.run_id for run in found.runs] == [result.run_id for result in report.results]
        assert [run.family for run in found.runs] == [result.family for result in report.results]
        assert found.repeated == report.repeated
        assert found.totals["steps"].tolist() == [66.0, 66.0]
    named = sweep(at, {"at": [1, 2]}, runs, family="run")
    assert [run.family for run in named.runs] == [Family("run", run_id) for run_id in ("csv", "other", "grouped")]
    with pytest.raises(TelemetryError, match=r"no run has this key of families; got 'gruop'. Did you mean 'group'"):
        sweep(at, {"at": [1, 2]}, runs, family="gruop")


def test_the_logs_of_two_tools_of_one_training_count_once(tmp_path: Path, policy: Policy) -> None:
    """MLflow's counts, because it has a clock. Another seed's log lies in the same folder."""
    folder = tmp_path / "logs" / "mlruns" / "1" / "abc"
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\nrun_name: tracked\nstart_time: 1000\n")
    values = [2 / step + 0.1 for step in range(1, 41)]
    lines = [f"{1000 + step} {value!r} {step}\n" for step, value in enumerate(values, start=1)]
    (folder / "metrics" / "val_loss").write_text("".join(lines))
    for name, shift in (("csv", 0.0), ("seed-2", 1e-3)):
        rows = [f"{step},{value * 2 + shift!r},{value + shift!r}\n" for step, value in enumerate(values, start=1)]
        (tmp_path / "logs" / f"{name}.csv").write_text("step,train_loss,valid/loss\n" + "".join(rows))
    sources = find_sources([tmp_path / "logs"], all_readers()).sources
    list(import_sources(tmp_path / "runs", sources, ReadOptions()))

    report = backtest(policy, open_store(tmp_path / "runs"))

    assert sorted(result.name for result in report.results) == ["1/tracked", "seed-2"]
    assert [run.name for run in report.repeated] == ["csv"]


def test_what_becomes_of_a_repeated_run_is_said(policy: Policy, record: Callable[..., Run]) -> None:
    """A diff lists it, and a backtest says that its labels are lost: the other log of the training has none."""
    runs = [record(run_id, curve(1, 30), clock=run_id == "kept") for run_id in ("kept", "twin")]
    report = backtest(policy, runs, labels=IncidentLabels({"twin": [Incident(2, 4)]}))
    said = "the labels of twin (twin), which repeats it, are not used. To use them, label this run"

    assert [result.notes for result in report.results] == [(said,)]
    assert f"kept: {said}." in summary_lines(summarize(report))
    assert any("1 training was logged twice" in line for line in diff_lines(diff_policies(policy, policy, runs)))


def test_short_series_and_schedules_make_no_repetition(policy: Policy, record: Callable[..., Run]) -> None:
    """Few values agree by chance, and every run of a sweep may have the same warm-up."""
    short = [record("a", curve(0)), record("b", curve(0))]
    schedules = [record(run_id, [1 / step for step in range(1, 60)], metric="lr", loss="epoch") for run_id in "cd"]

    assert len(backtest(policy, [*short, *schedules]).results) == 4


def test_rows_of_the_baseline_table_are_over_the_same_runs(policy: Policy, record: Callable[..., Run]) -> None:
    """A run without evaluations has no oracle, and one without a clock no ASHA: no row counts either."""
    runs = [
        *(record(f"clock-{number}", curve(number), clock=True) for number in range(4)),
        record("plain", curve(5)),
        record("bare", curve(6), metric="eval_other", clock=True),
    ]
    rows = report_json(
        summarize(backtest(policy, runs, baselines=[BASELINES[name] for name in ("oracle", "random", "asha")]))
    )["comparison"]

    own, oracle = rows[0], rows[1]
    assert {row["runs"] for row in rows} == {4}
    assert {row["share_saved"]["runs"] for row in rows} == {row["relative_regret"]["runs"] for row in rows} == {4}
    assert oracle["policy_less_this"]["share_saved"]["mean"] == pytest.approx(
        own["share_saved"]["mean"] - oracle["share_saved"]["mean"]
    )
    assert len({row["title"] for row in rows}) == 4


def test_how_many_runs_every_row_scores_is_said(record: Callable[..., Run]) -> None:
    """The terminal and the page count them."""
    runs = [record("a", curve(1)), record("b", curve(2)), record("bare", curve(3), metric="eval_other")]
    policy = parse_policy("""
controllers:
  - {name: stop, triggers: [on_evaluate], rule: step > 2, operations: [hfcontrols.should_training_stop]}
""")
    report = backtest(policy, runs, baselines=[BASELINES["oracle"]])
    said = "All rows are over the same runs: those that every row scores, 2 of 3; for regret 2."

    assert said in summary_lines(summarize(report))
    assert said in report_page(summarize(report))


def test_a_baseline_that_scores_few_runs_leaves_the_other_rows_alone(
    policy: Policy, record: Callable[..., Run]
) -> None:
    """ASHA needs clocks: one run of five has one, and the table is over all five."""
    runs = [record(f"run-{number}", curve(number), clock=number == 0) for number in range(5)]
    report = backtest(policy, runs, baselines=[BASELINES[name] for name in ("oracle", "asha")])
    own, oracle, asha = report_json(summarize(report))["comparison"]

    assert own["runs"] == oracle["runs"] == 5
    assert asha["reason"].startswith("scored on 1 of 5 runs; the others have no clock times")
    assert f"ASHA (Ray Tune): {asha['reason']}." in summary_lines(summarize(report))


def test_a_baseline_that_stops_before_any_evaluation_leaves_the_regret_of_the_others(
    store_record: Callable[..., Path], policy: Policy, tmp_path: Path
) -> None:
    """Its own row has none, with the reason, and the other rows keep theirs."""
    early = tmp_path / "early.yaml"
    early.write_text(POLICY.replace("on_evaluate", "on_step_end").replace("eval_loss > 2", "step < 2"))
    first = Event("step_end", step=1, metrics={"loss": 1.0})
    runs = []
    for number in range(5):
        later = [(Event("step_end", step=step), value) for step, value in enumerate(curve(number), start=2)]
        pairs = [(event, Event("evaluate", step=event.step, metrics={"eval_loss": value})) for event, value in later]
        runs.append(open_run(store_record([first, *itertools.chain(*pairs)], run_id=f"run-{number}")))
    baselines = [Baseline("early", "stops early", early), BASELINES["oracle"]]
    report = backtest(policy, runs, baselines=baselines)
    own, hasty, oracle = report_json(summarize(report))["comparison"]

    assert (own["relative_regret"]["runs"], oracle["relative_regret"]["runs"]) == (5, 5)
    assert (hasty["relative_regret"]["mean"], hasty["share_saved"]["runs"]) == (None, 5)
    said = "No regret for stops early: it is known in fewer than half of these runs"
    assert any(said in line for line in summary_lines(summarize(report)))
    assert said in report_page(summarize(report))


def test_the_table_of_families_begins_with_two(policy: Policy, record: Callable[..., Run]) -> None:
    """One family is the total."""
    runs = [record(f"{group}-{n}", [1.0, 2.5, 3.0, n], group=group) for group in ("one", "two") for n in range(2)]

    assert [row[:3] for row in family_rows(summarize(backtest(policy, runs)).totals)] == [
        ("one", "2", "2"),
        ("two", "2", "2"),
    ]
    assert family_rows(summarize(backtest(policy, runs[:2])).totals) == []


def test_the_verdict_has_the_runs_outside_a_large_family(policy: Policy, record: Callable[..., Run]) -> None:
    """Stops that are free in the family cost the others dearly, and the means hide it."""
    free, costly = [1.0, 2.5, 3.0, 3.5, 4.0], [1.9, 2.5, 0.5, 0.4, 0.3]
    runs = [record(f"one-{n}", [value + n / 100 for value in free], group="one") for n in range(8)]
    runs += [record(f"other-{n}", [value + n / 100 for value in costly], group=f"g{n}") for n in range(2)]
    report = backtest(policy, runs)
    total = report_json(summarize(report))["aggregate"]

    assert verdict(summarize(report)) == [
        "The rules could fire in all 10 runs.",
        "8 of 10 runs are one family (group 'one'). They are not independent: count them as one case. "
        "--family KEY tells families otherwise.",
        "In these 8 runs they would have stopped 8. In all 8 of them, by a median of 3 later evaluations of eval_loss, "
        "training on would not have given a model more than 1% better (regret 0). These save 24 of 40 steps (60%).",
        "In the other 2 runs they would have stopped 2. In both of them, by a median of 3 later evaluations "
        "of eval_loss, training on would have given a model more than 1% better: "
        "worst regret 533.33% (eval_loss 1.9 instead of 0.3 in other-0). "
        "Their compute up to the stop is lost: 4 of 10 steps (40%).",
    ]
    assert [(part["value"], part["runs"]) for part in total["by_family"]] == [("one", 8), ("g0", 1), ("g1", 1)]
    page = report_page(summarize(report))
    assert "<td>one</td><td>8</td><td>8</td><td>60%</td>" in page


def test_the_verdict_tells_savings_that_cost_nothing_from_those_that_cost_or_cannot_be_judged(
    policy: Policy, record: Callable[..., Run]
) -> None:
    """What all stops save is no gain, and a stop at a run's last step stops nothing."""
    values = {
        "cheap": [1.0, 2.5, 3.0, 3.5, 4.0],
        "dear": [1.9, 2.5, 0.5, 0.4, 0.3],
        "few": [1.0, 3.0, 1.0],
        "last": [1.0, 1.1, 1.2, 1.3, 2.5],
    }
    runs = [record(name, series, group=name) for name, series in values.items()]
    runs.append(record("failed", values["cheap"], group="failed", status="failed"))
    report = backtest(policy, runs)
    total = report_json(summarize(report))["aggregate"]
    stops = total["stops_by_cost"]

    assert verdict(summarize(report)) == [
        "The rules would have stopped each of the 5 runs. In 1 of them, by 3 later evaluations of eval_loss, training "
        "on would not have given a model more than 1% better (regret 0).",
        "In 1 of them it would: regret 533.33% (eval_loss 1.9 instead of 0.3 in dear).",
        "2 of them cannot be judged (1 unfinished or ended early, 1 with fewer than 5 evaluations).",
        "In 1 of them it comes at the run's last step, which saves nothing.",
        "These runs are 5 families (by group): count each as one case, as its runs are not independent. "
        "For others: --family KEY.",
    ]
    assert sum(kind["share_saved"] for kind in stops.values()) == pytest.approx(total["share_saved"]["mean"])


def test_runs_that_are_not_stopped_are_no_evidence_that_stops_are_free(
    policy: Policy, record: Callable[..., Run]
) -> None:
    """The stopped run has too few evaluations; the others' regret of 0 % says nothing about it."""
    runs = [
        record("stopped", [1.0, 3.0, 0.5]),
        *(record(f"let-be-{n}", [1 / (step + n) for step in range(1, 7)]) for n in range(3)),
    ]
    report = backtest(policy, runs)
    unknown = "What the stops cost is unknown: no stopped run can be judged"

    assert unknown in " ".join(verdict(summarize(report)))
    assert any(unknown in line for line in summary_lines(summarize(report)))
    assert "mean regret" not in report_page(summarize(report))


def test_a_run_with_few_evaluations_counts_in_no_mean_of_regret(policy: Policy, record: Callable[..., Run]) -> None:
    """It is listed with the reason. A regret of 0 % of a run with one evaluation would be a tautology."""
    runs = [record("one", [1.0]), record("four", [1.0, 2.5, 0.5, 0.4]), record("five", [1.0, 2.5, 0.5, 0.4, 0.5])]
    report = backtest(policy, runs, baselines=[BASELINES["oracle"]])

    total = report_json(summarize(report))["aggregate"]
    assert (total["share_saved"]["runs"], total["relative_regret"]["runs"]) == (3, 1)
    assert total["relative_regret"]["mean"] == pytest.approx(0.6 / 0.4)
    assert [row["relative_regret"]["runs"] for row in report_json(summarize(report))["comparison"]] == [1, 1]
    assert [(run.run_id, run.reason) for run in summarize(report).without_regret] == [
        (run_id, "it has fewer than 5 evaluations of eval_loss, so its best says little") for run_id in ("one", "four")
    ]
    assert "Left out of regret: 2 runs with fewer than 5 evaluations (four, one)." in summary_lines(summarize(report))


def test_medians_trimmed_means_and_absolute_regret_stand_beside_the_mean(
    policy: Policy, record: Callable[..., Run]
) -> None:
    """One run with a loss near zero moves the mean of relative regret by hundreds of percent, and nothing else."""
    runs = [record(f"run-{number:02}", [1.0, 1.0, 2.5, 1.0, 0.8 - number / 1000]) for number in range(19)]
    runs.append(record("tiny", [1.0, 1.0, 2.5, 1.0, 0.002]))

    total = report_json(summarize(backtest(policy, runs, family="run")))["aggregate"]

    regret, absolute = total["relative_regret"], total["absolute_regret"]["eval_loss"]
    kept = sorted(1 / (0.8 - number / 1000) - 1 for number in range(19))
    assert regret["mean"] > 20
    assert regret["median"] == pytest.approx((kept[9] + kept[10]) / 2)
    assert regret["trimmed_mean"] == pytest.approx(math.fsum([*kept[2:18]]) / 16)
    assert (absolute["runs"], absolute["max"]) == (20, pytest.approx(0.998))
    assert absolute["mean"] < 0.3


def test_the_command_takes_the_key_of_families(record: Callable[..., Run], store_path: Path, tmp_path: Path) -> None:
    """So do ``diff``, whose intervals draw them too, and ``sweep``, which has no intervals and names the families."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    at = POLICY.replace("> 2", "> at").replace("controllers", "params: {at: 2}\ncontrollers", 1)
    (tmp_path / "params.yaml").write_text(at)
    (tmp_path / "later.yaml").write_text(POLICY.replace("> 2", "> 3"))
    for number in range(9):
        record(f"run-{number}", curve(number), config={"task": f"t{number}"})

    def call(command: str, *arguments: str) -> Any:
        result = steptape(command, *arguments, "--store", store_path, "--json", folder=tmp_path)
        assert result.stdout, result.stderr
        return json.loads(result.stdout.partition("\n{")[0])

    found = call("backtest", "policy.yaml", "--family", "task")["aggregate"]
    changed = call("diff", "policy.yaml", "later.yaml", "--family", "task")["aggregate"]
    swept = call("sweep", "params.yaml", "--family", "task", "--set", "at=1,2")

    assert (found["families"]["keys"], found["share_saved"]["families"]) == ({"task": 9}, 9)
    assert changed["families"]["keys"] == swept["families"]["keys"] == {"task": 9}
    assert changed["regret"]["low"] is not None
