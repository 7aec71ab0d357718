"""Logs of one training are found by equal values at equal steps; different seeds, schedules and forks are not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.backtesting import backtest
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.event_stream import read_metrics
from steptape.replay.runs.same_training import same_trainings, sketch_of, sketched
from steptape.replay.sweeps.sweeping import sweep
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run
from steptape.store.store import open_run, open_store

POLICY: Final = """
params: {least: 2}
controllers:
  - name: stop
    triggers: [on_evaluate]
    rule: eval_loss > least
    operations: [hfcontrols.should_training_stop]
"""

#: Records the values of metrics at steps, those of evaluations with a name that begins with ``eval``.
Record = Callable[..., Run]


def curve(seed: int, count: int = 40, noise: float = 0.01) -> list[float]:
    """Return the losses of a training: a common trend, and noise of its own."""
    draw = random.Random(seed)
    return [1 + 2 * step**-0.3 + draw.gauss(0, noise) for step in range(1, count + 1)]


def singles(values: Sequence[float]) -> list[float]:
    """Return values as TensorBoard stores them."""
    return [float(np.float32(value)) for value in values]


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Record:
    """Return the function that records a run of values at every so many steps."""

    def run(run_id: str, every: int = 10, **metrics: Sequence[float]) -> Run:
        events = [
            Event("evaluate" if name.startswith("eval") else "step_end", step=every * n, metrics={name: value})
            for name, values in metrics.items()
            for n, value in enumerate(values, start=1)
        ]
        return open_run(store_record(sorted(events, key=lambda event: event.step), run_id=run_id))

    return run


def groups(runs: Sequence[Run]) -> set[frozenset[str]]:
    """Return the ids of the runs that are logs of one training."""
    sketches = []
    for run in runs:
        snapshot = run.snapshot()
        names = sketched(snapshot.columns.by_metric)
        sketches.append(sketch_of(read_metrics(snapshot, names), names))
    return {frozenset(runs[n].run_id for n in group) for group in same_trainings(sketches, range(len(runs)))}


@pytest.mark.parametrize(
    ("of_other", "every"),
    [
        (lambda values: values[1::2], 20),  # Every second evaluation.
        (lambda values: singles(values)[1::2], 20),
        (lambda values: [round(value, 3) for value in values], 10),  # The text of a console.
        (lambda values: [float(f"{value:.4g}") for value in values], 10),
        (lambda values: [round(value, 4) for value in values][1::2], 20),
        (lambda values: values[:25], 10),  # The log of a training that was still at work.
    ],
)
def test_a_log_that_agrees_at_every_step_it_has_is_of_the_same_training(
    record: Record, of_other: Callable[[list[float]], list[float]], every: int
) -> None:
    """Its names differ, and other seeds are near."""
    whole = record("whole", eval_loss=curve(0), loss=curve(100))
    other = record("other", every, eval_nll=of_other(curve(0)))
    seeds = [record(f"seed-{seed}", eval_loss=curve(seed)) for seed in range(1, 8)]

    assert groups([whole, other, *seeds]) == {frozenset(("whole", "other"))}
    assert groups([*seeds[::-1], other, whole]) == {frozenset(("whole", "other"))}


def test_a_log_of_training_values_alone_is_found_among_many_steps(record: Record) -> None:
    """A text log has each hundredth of 20,000 steps, and four decimals."""
    values = curve(0, 20_000)
    whole = record("whole", 1, loss=singles(values), eval_loss=[])
    text = record("text", 100, train_loss=[round(value, 4) for value in values[99::100]])
    seed = record("seed", 1, loss=curve(1, 20_000))

    assert groups([whole, text, seed]) == {frozenset(("whole", "text"))}


@pytest.mark.parametrize("decimals", [2, 3, 4, 9])
@pytest.mark.parametrize("count", [8, 20, 60])
def test_seeds_are_apart_whatever_digits_they_show(record: Record, decimals: int, count: int) -> None:
    """They share a trend, from which each is off by 0.1 %: two decimals show nothing but the trend."""
    runs = [
        record(f"s{seed}", eval_loss=[round(value, decimals) for value in curve(seed, count, 0.001)])
        for seed in range(12)
    ]
    runs += [record(f"full-{seed}", eval_loss=curve(seed, count, 0.001)) for seed in range(20, 32)]

    assert groups(runs) == set()


@pytest.mark.parametrize("samples", [8, 100])
def test_equal_counts_over_few_samples_prove_nothing(record: Record, samples: int) -> None:
    """An accuracy over 8 samples has nine values, and seeds that learn alike often have the same."""
    rising = [samples // 2, *(samples // 2 + n * samples // 40 for n in range(20))]
    runs = [record(name, eval_accuracy=[count / samples for count in rising]) for name in "ab"]

    assert groups(runs) == set()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epoch", [n / 4 for n in range(1, 60)]),
        ("lr", [0.001 * math.cos(n / 40) for n in range(60)]),
        ("eval_loss", [1.25] * 60),
        ("eval_loss", [2 - n / 60 for n in range(60)]),
        ("eval_loss", curve(0, 7)),
    ],
)
def test_counters_schedules_constants_lines_and_few_values_prove_nothing(
    record: Record, name: str, values: list[float]
) -> None:
    """All trainings of a sweep may have them."""
    runs = [record(run_id, **{name: values}) for run_id in ("a", "b")]

    assert groups(runs) == set()


def test_equal_values_of_one_metric_are_no_proof_where_the_loss_differs(record: Record) -> None:
    """The loss of a fixed teacher is the same in all runs."""
    runs = [record(f"s{seed}", eval_teacher_loss=curve(99), eval_loss=curve(seed)) for seed in range(3)]

    assert groups(runs) == set()


def test_forks_that_share_their_beginning_are_apart(record: Record, store_record: Callable[..., Path]) -> None:
    """Also where the steps of one, after the fork, lie between those of the other. One up to it is of either."""
    shared, first, second = curve(0, 30), curve(1, 10), curve(2, 10)
    constant = record("constant", loss=[*shared, *first])
    decayed = record("decayed", loss=[*shared, *second])
    places = [10 * n for n in range(1, 31)] + [305 + 10 * n for n in range(9)]
    events = [
        Event("step_end", step=step, metrics={"loss": value})
        for step, value in zip(places, [*shared, *second[:9]], strict=True)
    ]
    between = open_run(store_record(events, run_id="between"))
    until = record("until", loss=shared)

    assert groups([constant, decayed, between]) == set()
    assert groups([constant, decayed, until]) == {frozenset(("constant", "until"))}


def test_a_rounded_log_that_fits_two_trainings_proves_neither(record: Record) -> None:
    """The seeds differ by less than the digits that it shows."""
    values = curve(0)
    runs = [record("a", eval_loss=values), record("b", eval_loss=[value + 1e-7 * n for n, value in enumerate(values)])]
    text = record("text", eval_loss=[round(value, 3) for value in values])

    assert groups([*runs, text]) == set()


def test_the_log_that_can_be_judged_counts(record: Record) -> None:
    """The rule reads the loss of the training, which the longer log lacks. Backtest and sweep agree."""
    policy = parse_policy(POLICY.replace("eval_loss > least", "loss > least"))
    longer = record("longer", eval_loss=curve(0), eval_accuracy=curve(3))
    judged = record("judged", 20, eval_loss=curve(0)[1::2], loss=curve(5))

    for runs in ([longer, judged], [judged, longer]):
        assert [result.run_id for result in backtest(policy, runs).results] == ["judged"]
        assert [run.run_id for run in sweep(policy, {"least": [1, 2]}, runs).runs] == ["judged"]


def test_trainings_with_two_logs_count_once_and_are_told(record: Record) -> None:
    """Fifteen trainings, each as TensorBoard and as CSV with every second evaluation, are fifteen cases."""
    runs = [record(f"tb-{seed}", eval_loss=curve(seed)) for seed in range(15)]
    runs += [record(f"csv-{seed}", 20, eval_loss=curve(seed)[1::2]) for seed in range(15)]

    report = backtest(parse_policy(POLICY), runs, family="run")

    assert [result.run_id for result in report.results] == [f"tb-{seed}" for seed in range(15)]
    assert summarize(report).totals.families.count == 15
    said = "15 trainings were logged twice and count once, such as csv-0 (csv-0): it repeats the series of tb-0 (tb-0)."
    assert said in " ".join(summary_lines(summarize(report)))
    assert len(sweep(parse_policy(POLICY), {"least": [1, 2]}, runs).repeated) == 15


def test_the_files_of_four_tools_of_one_training_are_one(tmp_path: Path) -> None:
    """CSV, the state of Hugging Face's Trainer, JSON lines and the text of a console; another seed is in each, too."""
    logs = tmp_path / "logs"
    for name, seed in (("one", 0), ("two", 1)):
        folder = logs / name
        (folder / "state").mkdir(parents=True)
        losses, held_out = curve(seed), curve(seed + 50)[::2]
        rows = [(10 * n, loss, held_out[n // 2 - 1] if n % 2 == 0 else None) for n, loss in enumerate(losses, start=1)]
        (folder / "table.csv").write_text(
            "step,loss,val_loss\n" + "".join(f"{s},{x!r},{'' if y is None else repr(y)}\n" for s, x, y in rows)
        )
        history = [{"step": s, "epoch": s / 100, "loss": round(x, 4)} for s, x, _ in rows]
        history += [{"step": s, "epoch": s / 100, "eval_loss": y} for s, _, y in rows if y is not None]
        state = {"log_history": sorted(history, key=lambda one: one["step"]), "global_step": 400, "max_steps": 400}
        (folder / "state" / "trainer_state.json").write_text(json.dumps(state))
        lines = [{"step": s, "train/loss": x} for s, x, _ in rows]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (folder / "console.log").write_text("".join(f"12:00:{s // 10:02} step {s} loss {x:.3f}\n" for s, x, _ in rows))
    list(import_sources(tmp_path / "runs", find_sources([logs], all_readers()).sources, ReadOptions()))

    runs = list(open_store(tmp_path / "runs"))
    found = {
        frozenset(Path(str(run.info.source_path)).parts[len(logs.parts)] for run in runs if run.run_id in group)
        for group in groups(runs)
    }

    assert len(runs) == 8
    assert sorted(map(len, groups(runs))) == [4, 4]
    assert found == {frozenset(["one"]), frozenset(["two"])}
