"""The pack `surogate` against answers of Surogate's own modules, in trainings whose rate it steers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from drawn_trainings import training

from steptape.rules.control.calls import is_call, parse_call
from steptape.rules.control.learning_rate import LearningRateState
from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import Policy, parse_policy, shipped_policies, shipped_tests
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import run_test
from steptape.store.events import Event

Case = Mapping[str, Any]

ANSWERS = Path(__file__).parent / "data" / "surogate" / "answers.json"
CASES: list[Case] = json.loads(ANSWERS.read_text())["cases"]

#: A controller whose message shows the monitor of routing after each update.
PROBE = """
  - name: probe
    triggers: [on_step_end]
    rule: "True"
    requires: [moe_aux_loss]
    operations: []
    message: "{is_unhealthy} {balance} {utilization} {aux_trend}"
"""

ALL = {
    *(f"phase {phase}" for phase in ("unstable", "plateau", "diverging", "converging")),
    *("gradient_acceleration", "plateau", "guard 1", "guard 2"),
    *("imbalance_severe", "imbalance_high", "utilization_critical", "utilization_low", "aux_loss_spike"),
    *("plateau_high_lr", "diverging_moe", "gradient_vanishing", "spike_moe", "lr_reductions_ineffective"),
    *("warmup_too_short", "stop_convergence", "stop_efficiency", "stop_divergence", "stop_plateau"),
}


@dataclass
class Track:
    """What a training under the pack shows.

    Attributes:
        decided: Steps of the decisions, by meaning; of those that end the training the first one alone.
        used: The learning rate of each update.
        routing: What the monitor of routing says after each update.
    """

    decided: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    used: list[float] = field(default_factory=list)
    routing: list[str] = field(default_factory=list)


def _base_rate(update: int, kind: str, steps: int, warmup_steps: int, final_lr: float) -> float:
    """Return the rate of a schedule for an update, the first of which is 0."""
    if update < warmup_steps:
        return 2e-4 * update / warmup_steps
    way = min(1.0, (update - warmup_steps) / (steps - warmup_steps))
    rest = {"constant": 1.0, "linear": 1 - way, "cosine": (1 + math.cos(math.pi * way)) / 2}[kind]
    return final_lr + (2e-4 - final_lr) * rest if kind != "constant" else 2e-4


class _SteeredTraining:
    """A loop that records a drawn training, and whose learning rate obeys the policy."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._engine = Engine(_policy(case))
        self._rate = LearningRateState()
        self._base = (0.0,)
        self.track = Track()

    def run(self) -> Track:
        for event in training(self._case["seed"]):
            for outcome in self._engine.observe(self._recorded(event)):
                assert not isinstance(outcome, RuleError), outcome
                if isinstance(outcome, Decision) and outcome.acts:
                    self._obey(outcome)
        return self.track

    def _recorded(self, event: Event) -> Event:
        if event.kind != "step_end":
            return event
        self._base = (_base_rate(event.step, **self._case["schedule"]),)
        used = self._rate.used(event.step + 1, self._base)[0]
        self.track.used.append(used)
        rates = {"lr.used": used, "lr.scheduled": self._rate.scheduled(self._base)[0]}
        return event._replace(step=event.step + 1, metrics={**event.metrics, **rates})

    def _obey(self, decision: Decision) -> None:
        name, message = decision.controller, decision.message or ""
        if name == "probe":
            self.track.routing.append(message)
            return
        if name == "phase":
            name = f"phase {message.split()[-1]}"
        elif name == "guard":
            name = f"guard {message.removeprefix('stage ')[0]}"
        if not (name.startswith("stop_") and any(each.startswith("stop_") for each in self.track.decided)):
            self.track.decided[name].append(decision.step)
        for call in filter(is_call, decision.operations):
            self._rate = self._rate.after(parse_call(call), decision.step, self._base)


def _policy(case: Case) -> Policy:
    text = shipped_policies()["surogate"].read_text() + PROBE
    return parse_policy(text, params={**case["params"], "auto_lr_reduction": True, "early_stop": True})


def _changes(routing: list[str]) -> Iterator[int]:
    """Yield the updates from which on routing is unhealthy or healthy again."""
    was = False
    for step, message in enumerate(routing, start=1):
        if message.startswith("True") != was:
            was = not was
            yield step


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed {case['seed']}")
def test_the_pack_decides_and_steers_like_surogate(case: Case) -> None:
    """Warnings, phases, diagnostics, stages of the guard, stops and learning rates are those of the real modules."""
    track = _SteeredTraining(case).run()

    assert track.decided == case["events"]
    assert track.used[::20] == pytest.approx(case["lr"], rel=1e-12, abs=0)
    assert math.fsum(track.used) == pytest.approx(case["lr_sum"], rel=1e-12, abs=0)
    assert list(_changes(track.routing)) == case["unhealthy_changes"]
    for message, values in zip(track.routing[49::100], case["routing"], strict=True):
        assert [float(value) for value in message.split()[1:]] == pytest.approx(values, rel=1e-9, abs=1e-12)


def test_the_recorded_answers_show_each_meaning() -> None:
    """A detector that no case rings would be compared with nothing."""
    assert len(CASES) >= 60
    assert {name for case in CASES for name in case["events"]} == ALL


def test_each_difference_of_the_mended_pack_is_one() -> None:
    """Its scenarios fail on `surogate`, but for those that say that they are the same."""
    text = shipped_tests()["surogate_mended"].read_text()
    # A controller that surogate lacks fires there never: one that it has takes its place.
    text = text.replace("surogate_mended.yaml", "surogate.yaml").replace("stop_not_finite", "stop_divergence")
    text = text.replace("eval_not_finite", "stop_convergence")
    passed = [test.name for test in parse_tests(text, source=str(shipped_tests()["surogate"])) if run_test(test).passes]

    assert passed == [line for line in passed if line.startswith("as in surogate: ")]
    assert len(passed) == text.count("as in surogate: ")
