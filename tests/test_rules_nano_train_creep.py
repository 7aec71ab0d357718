"""The rule file `nano_train` and the health of a run find what creeps, at the step that arithmetic predicts.

Twenty healthy trainings, with noise, a warm-up, a schedule, evaluations and checkpoints, raise no alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from shipped_rules import shipped

from steptape import Recorder, open_run
from steptape.replay.health.health import health_of
from steptape.replay.health.health_summary import HealthState
from steptape.replay.runs.replaying import replay
from steptape.store.run import Run

Values = npt.NDArray[np.float64]
Change = Callable[[Values], Values]

#: Updates of a training. Each records a point of every metric.
STEPS = 400
SEEDS = range(20)


def schedule(kind: str) -> Values:
    """Return the learning rate of each update under a common schedule."""
    at = np.arange(STEPS) / STEPS
    warm = np.minimum(1.0, (np.arange(STEPS) + 1) / 40)
    rates = {
        "cosine": warm * 0.5 * (1 + np.cos(math.pi * at)),
        "linear to zero": warm * (1 - at),
        "polynomial": warm * (1 - at) ** 3,
        "warm-up, constant, decay": warm * np.minimum(1.0, (1 - at) / 0.2),
        "step decay": 0.1 ** np.floor(at * 4),
        "warm restarts": 0.5 * (1 + np.cos(math.pi * ((4 * at) % 1))),
        "one cycle": np.where(at < 0.3, at / 0.3, (1 - at) / 0.7) + 1e-4,
        "warm-up by epochs": np.minimum(1.0, 1e-3 + np.floor(at * 40) / 5),
        "constant warm-up": np.where(at < 0.1, 1 / 3, 1.0),
        "constant": np.ones(STEPS),
    }
    found: Values = 1e-3 * rates[kind]
    return found


KINDS = (
    "cosine",
    "linear to zero",
    "polynomial",
    "warm-up, constant, decay",
    "step decay",
    "warm restarts",
    "one cycle",
    "warm-up by epochs",
    "constant warm-up",
    "constant",
)


def noise(rng: np.random.Generator, share: float) -> Values:
    """Return factors about 1."""
    return np.exp(rng.normal(0.0, share, STEPS))


def series_of(seed: int) -> dict[str, Values]:
    """Return the metrics of a healthy training, as a watch records them: a value for each update, NaN for none."""
    rng, at = np.random.default_rng(seed), np.arange(STEPS)
    slow_start = np.where(at < 3, 4.0, 1.0)
    pauses = np.where(at % 50 == 49, 3.0, 1.0)  # An evaluation within the time of an update.
    step_s = 0.5 * noise(rng, 0.1) * slow_start * pauses
    wait_s = 0.02 * noise(rng, 0.5) * step_s
    tokens = np.round(4096 * noise(rng, 0.01))
    rates = schedule(KINDS[seed % len(KINDS)])
    speed = tokens / step_s
    flops = 60 * speed / speed.mean()
    settled = 1 + 0.3 * (at > 50) + 0.3 * (at > 200)  # An allocator keeps what an evaluation and a long batch needed.
    grown = 1 + np.sqrt(at / STEPS)
    loss = (1 + 3 * np.exp(-at / 80)) * noise(rng, 0.03)
    norms = 0.7 * noise(rng, 0.3)
    found = {
        "loss": loss,
        "LR": rates,
        "LR/previous": np.concatenate((rates[:1], rates[:-1])),
        "Tokens/seen": np.cumsum(tokens),
        "Tokens/effective_seen": np.cumsum(0.9 * tokens),
        "Data/tokens_per_update": tokens,
        "Data/effective_tokens_per_update": 0.9 * tokens,
        "Data/ignore_frac": np.full(STEPS, 0.1),
        "Gradients/norm": norms,
        "Gradients/norm_used": norms,
        "Gradients/clip_coef": np.ones(STEPS),
        "Gradients/clipped": np.zeros(STEPS),
        "Gradients/depth_ratio_first_last": 0.5 * noise(rng, 0.3),
        "Parameters/norm": 30 * grown,
        "Updates/ratio_global": rates,
        "Time/step_seconds": step_s,
        "Time/data_wait_seconds": wait_s,
        "Time/data_wait_frac": wait_s / step_s,
        "Time/compute_seconds_est": step_s - wait_s,
        "Time/compute_frac_est": 1 - wait_s / step_s,
        "Throughput/steps_per_second": 1 / step_s,
        "Throughput/tokens_per_second": speed,
        "Throughput/samples_per_second": 8 / step_s,
        "Perf/achieved_tflops": flops,
        "Perf/mfu": flops / 150,
        "Memory/allocated_mb": 8000 * noise(rng, 0.005),
        "Memory/reserved_mb": np.round(9000 * settled),
        "Memory/reserved_frac": 9000 * settled / 40000,
        "Memory/max_reserved_mb": np.round(9000 * settled),
        "GPU/memory_used_mb": np.round(9500 * settled),
        "Probes/fixed_probe_loss": np.where(at % 100 == 0, 1 + 3 * np.exp(-at / 80), np.nan),
        "Time/checkpoint_seconds": np.where(at % 10 == 9, 4 * noise(rng, 0.15), np.nan),
    }
    for block in range(4):
        found[f"Residual/block_{block}/rms"] = 1 + 2 * np.minimum(at, 5) / 5 + at / STEPS
        found[f"Attention/block_{block}/attn_entropy"] = (3.5 - 1.5 * at / STEPS) * noise(rng, 0.05)
        found[f"Attention/block_{block}/max_attn_logit"] = (5 + 5 * at / STEPS) * noise(rng, 0.05)
        found[f"weights/h.{block}.weight/norm"] = 12 * grown
        found[f"weights/h.{block}.bias/norm"] = 0.05 * np.sqrt(at + 1.0)
    return found


def recorded(folder: Path, series: Mapping[str, Values]) -> Run:
    """Record a training with these metrics, and evaluations that get better."""
    with Recorder(folder, quiet=True, total_steps=STEPS) as rec:
        for step in range(STEPS):
            rec.step({name: values[step] for name, values in series.items() if not math.isnan(values[step])})
            if step % 50 == 49:
                rec.evaluate(eval_loss=1.0 + 3 * math.exp(-step / 80))
    return open_run(rec.folder)


def fired(run: Run) -> list[tuple[str, int]]:
    """Return the first step at which each rule fires."""
    steps: dict[str, int] = {}
    for judged in replay(shipped("nano_train"), run).decisions:
        steps.setdefault(judged.outcome.controller, judged.outcome.step)
    return sorted(steps.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_training_raises_no_alarm(seed: int, tmp_path: Path) -> None:
    """No rule fires at any step, and its health is fine."""
    run = recorded(tmp_path, series_of(seed))

    assert fired(run) == []
    assert health_of(run, shipped("nano_train")).state is HealthState.FINE


class Fault(NamedTuple):
    """What goes wrong slowly in a training that is healthy else.

    Attributes:
        rule: The rule that finds it.
        metric: The metric that shows it.
        change: Maps the healthy values of all metrics that it changes, by name.
        is_beyond: Whether a lasting value is too far from the first one.
        points: The number of values in a lasting one.
    """

    rule: str
    metric: str
    change: Mapping[str, Change]
    is_beyond: Callable[[float, float], bool]
    points: int = 20


def grown(most: float) -> Change:
    """Return a steady growth to a multiple."""
    return lambda values: values * np.linspace(1, most, STEPS)


FAULTS = (
    Fault(
        "allocated_creeps",
        "Memory/allocated_mb",
        {"Memory/allocated_mb": grown(3)},
        lambda now, first: now > 1.5 * first,
    ),
    Fault("steps_slow_down", "Time/step_seconds", {"Time/step_seconds": grown(5)}, lambda now, first: now > 2 * first),
    Fault(
        "throughput_fades",
        "Throughput/tokens_per_second",
        {"Throughput/tokens_per_second": grown(0.2)},
        lambda now, first: now < 0.7 * first,
    ),
    Fault("flops_fade", "Perf/mfu", {"Perf/mfu": grown(0.2)}, lambda now, first: now < 0.7 * first),
    Fault(
        "waits_grow",
        "Time/data_wait_seconds",
        {"Time/data_wait_seconds": lambda _: np.linspace(0.001, 0.16, STEPS)},
        lambda now, first: now > 2 * first and now > 0.1,
    ),
    Fault(
        "checkpoints_slow_down",
        "Time/checkpoint_seconds",
        {"Time/checkpoint_seconds": grown(5)},
        lambda now, first: now > 2 * first,
        points=10,
    ),
)


def lasting(values: Values, count: int) -> Iterator[tuple[int, float]]:
    """Yield the step and the median of the newest values, once there are enough beyond the first five."""
    steps = np.flatnonzero(~np.isnan(values))[5:]
    for end in range(count, len(steps) + 1):
        yield int(steps[end - 1]) + 1, float(np.median(values[steps[end - count : end]]))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.rule)
def test_what_creeps_is_found_at_the_step_that_arithmetic_predicts(fault: Fault, tmp_path: Path) -> None:
    """The median of the newest points is compared with that of the first ones, for good. The health has a warning."""
    series = series_of(seed=0)
    series.update({name: change(series[name]) for name, change in fault.change.items()})
    if fault.rule == "waits_grow":  # Without noise the fifth of an update is a number.
        series["Time/step_seconds"] = np.full(STEPS, 0.5)
    medians = list(lasting(series[fault.metric], fault.points))
    predicted = next(step for step, now in medians if fault.is_beyond(now, medians[0][1]))

    run = recorded(tmp_path, series)

    assert dict(fired(run))[fault.rule] == predicted
    assert health_of(run, shipped("nano_train")).state is HealthState.WARNING


def test_reserved_memory_that_climbs_for_good_is_found(tmp_path: Path) -> None:
    """At the first point at which it is half as much again, and has grown in two stretches of 50 points, 20 apart."""
    series = series_of(seed=0)
    series["Memory/reserved_mb"] = np.round(np.linspace(9000, 30000, STEPS) / 100) * 100
    medians = dict(lasting(series["Memory/reserved_mb"], 20))
    first = next(iter(medians.values()))
    predicted = next(
        step
        for step, now in medians.items()
        if now > 1.5 * first and step - 120 in medians
        if now > medians[step - 50] and medians[step - 70] > medians[step - 120]
    )

    run = recorded(tmp_path, series)

    assert dict(fired(run))["reserved_creeps"] == predicted


def test_a_share_of_a_baseline_that_is_exactly_the_limit_is_fine(tmp_path: Path) -> None:
    """Of baselines whose shares no float holds."""
    for number, usual in enumerate((0.3, 0.7, 1.1, 3.3, 7.7, 110.0, 230.0)):
        values = {"Throughput/steps_per_second": 0.7, "Perf/mfu": 0.8, "Throughput/effective_tokens_per_second": 0.9}
        drifts = {"Data/tokens_per_update": 1.1}
        with Recorder(tmp_path / str(number), quiet=True) as rec:
            for factor_of in ({}, {**values, **drifts}):
                for _ in range(60):
                    rec.step({name: round(usual * factor_of.get(name, 1.0), 6) for name in (*values, *drifts)})

        assert fired(open_run(rec.folder)) == []


def test_each_schedule_is_one_of_the_healthy_trainings() -> None:
    """Each of them twice, and each moves or is constant as its name says."""
    used = [KINDS[seed % len(KINDS)] for seed in SEEDS]

    assert {kind: used.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, len(SEEDS) // len(KINDS))
    assert [kind for kind in KINDS if all(one == other for one, other in pairwise(schedule(kind)))] == ["constant"]
