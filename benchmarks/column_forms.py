"""Measures sweeps of policies that read controller metrics, past decisions and windows by steps, by columns.

    .venv/bin/python benchmarks/column_forms.py [--runs N] [--steps N] [--checked N]

Prints one JSON line for each policy: microseconds of processor time for a pair of a variant and a run by columns, and
by the event engine (folding alone, events in memory, on the checked pairs); their ratio; milliseconds a run with one
variant; the checked pairs, and how many disagree. The exit status is 1 if one does.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from steptape.replay.columns.stream import Stream
from steptape.replay.columns.variant_firings import RunFirings, VariantBatch, batches_of
from steptape.replay.columns.variants import variants_of
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.judging import RunBackground
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.replaying import replay_events
from steptape.replay.sweeps.variant_outcomes import sweep_stream
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store.events import Event, SampleLosses
from steptape.store.metric_words import Mode
from steptape.store.plan import Plan

OBJECTIVE = Objective("eval_loss", Mode.MIN)
PLAN = Plan()
NUMBERS = [1.0 + number / 100 for number in range(40)]

_PAST = """
params: {spike: 1.2, least: 0.5}
controllers:
  - {name: high, triggers: [on_step_end], rule: "loss > spike * mean(loss, 20)", operations: [hfcontrols.should_log]}
  - name: stop
    triggers: [on_step_end]
    rule: times_fired("high") > 5 and steps_since("high") < 20 * least and streak("high") > 0
    cooldown: 30
    operations: [hfcontrols.should_training_stop]
"""
_STEPS = """
params: {spike: 1.2, least: 0.5}
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, steps=50) and delta(eval_loss, steps=100) > -least
    for: 3
    operations: [hfcontrols.should_training_stop]
"""
_EVALUATES = """
params: {spike: 1.2}
controllers:
  - name: look
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, 20)
    operations: [hfcontrols.should_evaluate]
  - name: stop
    triggers: [on_evaluate]
    rule: eval_loss > spike * min(eval_loss, 9)
    operations: [hfcontrols.should_training_stop]
"""


@dataclass(frozen=True)
class Case:
    """A policy with the values of its params."""

    name: str
    text: str
    axes: dict[str, list[float]] = field(default_factory=dict)


def cases() -> list[Case]:
    """Return the policies."""
    fig3 = load_policy("trac_fig3").text.replace('["loss"][0] <', '["loss"][0] * rise <')
    fig4 = load_policy("trac_fig4").text.replace("0.85 *", "drop *").replace("0.9 *", "low *")
    return [
        Case("trac_fig3", f"params: {{rise: 1.0}}\n{fig3}", {"rise": [number / 40 for number in range(30, 60)]}),
        Case("trac_fig4", f"params: {{drop: 0.85, low: 0.9}}\n{fig4}", {"drop": NUMBERS, "low": [0.5, 0.7, 0.9, 0.95]}),
        Case("bad_batches", load_policy("bad_batches").text, {"few": NUMBERS, "share": [0.2, 0.4, 0.6, 0.8]}),
        Case("past decisions", _PAST, {"spike": NUMBERS, "least": [0.1, 0.5, 1.0]}),
        Case("windows by steps", _STEPS, {"spike": NUMBERS, "least": [0.0, 0.1, 0.5]}),
        Case("asks for evaluations", _EVALUATES, {"spike": NUMBERS}),
        Case("overfitting", load_policy("overfitting").text, {"tolerance": NUMBERS, "window": [10, 50, 100]}),
        Case("loss_spike", load_policy("loss_spike").text, {"spike": NUMBERS, "window": [20, 50]}),
    ]


def made_up(number: int, steps: int) -> list[Event]:
    """Return the events of a run: a loss at each step, a log at every tenth, an evaluation at every twentieth."""
    random = np.random.default_rng(number)
    losses = 3.0 / np.sqrt(1 + np.arange(steps) / 50) * (1 + 0.1 * random.standard_normal(steps))
    losses[random.integers(0, steps, 20)] *= 2.5
    made: list[Event] = []
    for step, loss in enumerate(losses.tolist(), 1):
        samples = SampleLosses(struct.pack("<4f", *np.abs(loss * (1 + random.standard_normal(4)))))
        place: dict[str, Any] = {"step": step, "elapsed_ns": step * 10**8, "epoch": step / 100}
        made.append(Event("step_end", seq=len(made), metrics={"loss": loss}, samples=samples, **place))
        if step % 10 == 0:
            norm = abs(random.standard_normal())
            made.append(Event("log", seq=len(made), metrics={"loss": loss, "grad_norm": norm}, **place))
        if step % 20 == 0:
            value = float(losses[max(0, step - 20) : step].mean())
            made.append(Event("evaluate", seq=len(made), metrics={"eval_loss": value}, **place))
    return made


def taken_s(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the fewest seconds of processor time of some rounds."""
    passed = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        passed.append(time.process_time() - start)
    return min(passed)


def measure(case: Case, runs: Sequence[list[Event]], checked: int) -> bool:
    """Print the line of one policy; return whether every checked pair agrees."""
    policy = parse_policy(case.text)
    variants, streams = variants_of(policy, case.axes), [event_stream(events) for events in runs]
    schedules, single = batches_of(variants), batches_of(variants_of(policy, {}))

    def swept(chosen: Sequence[VariantBatch]) -> None:
        for stream in streams:
            sweep_stream(chosen, stream, RunBackground(status="completed"), OBJECTIVE)

    columns_s, single_s = taken_s(lambda: swept(schedules)), taken_s(lambda: swept(single))
    pairs = np.random.default_rng(0).choice(len(variants) * len(runs), checked).tolist()
    engine_s, disagreed = 0.0, 0
    for pair in pairs:
        variant, place = variants[pair // len(runs)], pair % len(runs)
        own, stream = variant.policy(), streams[place]
        start = time.process_time()
        replayed = replay_events(own, stream, PLAN)
        engine_s += time.process_time() - start
        columns = Stream(stream, PLAN, stream.facts.metrics)
        found = RunFirings(columns, partial(streams.__getitem__, place)).firings(variant)
        listed = sorted((index, fired.controller) for fired in found for index in fired.events.tolist())
        disagreed += listed != sorted((each.event_index, each.outcome.controller) for each in replayed.decisions)
    pair_us, engine_us = columns_s / len(variants) / len(runs) * 1e6, engine_s / len(pairs) * 1e6
    line = {
        "policy": case.name,
        "variants": len(variants),
        "pair_us": round(pair_us, 1),
        "engine_pair_us": round(engine_us),
        "ratio": round(engine_us / pair_us),
        "one_variant_ms_a_run": round(single_s / len(runs) * 1e3, 2),
        "checked": len(pairs),
        "disagreed": disagreed,
    }
    print(json.dumps(line), flush=True)
    return not disagreed


def main() -> None:
    """Make the runs up, and measure each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--checked", type=int, default=40, help="pairs of a variant and a run, drawn at random")
    given = parser.parse_args()
    runs = [made_up(number, given.steps) for number in range(given.runs)]
    agreed = [measure(case, runs, given.checked) for case in cases()]
    sys.exit(not all(agreed))


if __name__ == "__main__":
    main()
