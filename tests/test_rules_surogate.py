"""The pack `surogate` against answers of Surogate's own modules, in trainings whose rate it steers."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest
from drawn_trainings import training

from steptape.rules.effects import LearningRateState, is_call, parse_call
from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import Policy, parse_policy, shipped_policies, shipped_tests
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import run_test
from steptape.store.events import Event

Case = Mapping[str, Any]
#: One value for each step, or values by step with that of all others at -1, or a function of the step.
Values: TypeAlias = float | Mapping[int, float] | Callable[[int], float]

ACCELERATES, AUX = "gradient_acceleration", "aux_loss_spike"

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

    def __init__(self, case: Case, events: Iterable[Event] = ()) -> None:
        self._case = case
        self._events = events or training(case["seed"])
        self._engine = Engine(_policy(case))
        self._rate = LearningRateState()
        self._base = (0.0,)
        self.track = Track()

    def run(self) -> Track:
        for event in self._events:
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
        if name.startswith("diagnosis_"):
            return  # The report on routing is no event of the modules.
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


ROUTING = {"moe_aux_loss": 0.01, "moe_load_imbalance": 1.2, "moe_expert_utilization": 0.95}
#: Surogate's monitor of routing as its own tests set it up.
WATCH = {"moe_warmup": 3, "moe_cooldown": 1}
#: A phase that the newest three losses decide, and advice at each update.
LATEST = {"phase_window": 3, "phase_warmup": 2, "phase_instability": 1.0e9, "advice_cooldown": 1}
GRADIENTS = {"gradient_window": 10, "gradient_warmup": 5, "gradient_growth": 0.1, "gradient_cooldown": 1}
OFF = {"stop_pace": 0.0}


def at_steps(
    loss: Values = 3.0, norm: Values = 1.0, steps: int = 60, routing: Mapping[str, Values] = MappingProxyType({})
) -> list[Event]:
    """Return updates whose values are constant, listed, or a function of the step."""
    given = {"loss": loss, "grad_norm": norm, **routing}
    return [
        Event("step_end", step, step, metrics={name: _value(of, step) for name, of in given.items()})
        for step in range(steps)
    ]


def _value(values: Values, step: int) -> float:
    if callable(values):
        return values(step)
    return values if isinstance(values, float) else values.get(step, values[-1])


def routed(steps: int = 4, **values: Values) -> list[Event]:
    """Return updates of a mixture of experts, whose routing is as it should be where no value is given."""
    return at_steps(steps=steps, routing={**ROUTING, **{f"moe_{name}": value for name, value in values.items()}})


def decided(events: list[Event], params: Mapping[str, Any] | None = None, steps: int = 10_000) -> dict[str, list[int]]:
    """Return the steps of each decision, counted from 0 as Surogate does."""
    schedule = {"kind": "constant", "steps": steps, "warmup_steps": 0, "final_lr": 0.0}
    found = _SteeredTraining({"schedule": schedule, "params": params or {}}, events).run().decided
    return {name: [step - 1 for step in at] for name, at in found.items()}


@pytest.mark.parametrize(
    ("events", "params", "name", "steps"),
    [
        (at_steps(norm=lambda i: 1 + 2.0 * i, steps=20), {**GRADIENTS, "gradient_patience": 3}, ACCELERATES, 6),
        (at_steps(norm=2.0), {**GRADIENTS, "gradient_patience": 3}, ACCELERATES, None),
        (routed(load_imbalance={3: 15.0, -1: 1.2}), WATCH, "imbalance_severe", 3),
        (routed(load_imbalance={3: 5.0, -1: 1.2}), WATCH, "imbalance_severe", None),
        (routed(load_imbalance={3: 5.0, -1: 1.2}), WATCH, "imbalance_high", 3),
        (routed(load_imbalance=10.0), {**WATCH, "num_experts": 128, "top_k": 8}, "imbalance_high", None),
        (routed(load_imbalance=5.5), {**WATCH, "num_experts": 128, "top_k": 4}, "imbalance_high", None),
        (routed(expert_utilization={3: 0.3, -1: 0.95}), WATCH, "utilization_critical", 3),
        (routed(expert_utilization={3: 0.7, -1: 0.95}), WATCH, "utilization_critical", None),
        (routed(expert_utilization={3: 0.7, -1: 0.95}), WATCH, "utilization_low", 3),
        (routed(11, aux_loss={10: 1.0, -1: 0.01}), {**WATCH, "moe_warmup": 5, "aux_deviations": 2.0}, AUX, 10),
        (routed(11, aux_loss=lambda i: 0.01 + 0.001 * i if i < 10 else 0.02), {**WATCH, "moe_warmup": 5}, AUX, None),
    ],
)
def test_a_detector_of_surogate_sees_what_its_own_tests_ask_of_it(
    events: list[Event], params: Mapping[str, Any], name: str, steps: int | None
) -> None:
    """The first update at which it does; None for never."""
    found = decided(events, params).get(name, [])

    assert (found[0] if found else None) == steps


@pytest.mark.parametrize(
    ("events", "params", "expected"),
    [
        (
            at_steps(norm=lambda i: 1 + 2.0 * i, steps=20),
            {**GRADIENTS, "gradient_patience": 3},
            {ACCELERATES: [*range(6, 14)]},
        ),
        (
            at_steps(norm=lambda i: 1 + 2.0 * i, steps=30),
            {**GRADIENTS, "gradient_patience": 2, "gradient_cooldown": 50},
            {ACCELERATES: [5]},
        ),
        (
            at_steps(norm=lambda i: 1.0 + i if i < 10 else 5.0, steps=20),
            {**GRADIENTS, "gradient_patience": 5},
            {ACCELERATES: [8, 9, 10]},
        ),
        (
            routed(20, load_imbalance=lambda i: 15.0 if i > 2 else 1.2),
            {**WATCH, "moe_cooldown": 50},
            {"imbalance_severe": [3]},
        ),
        (
            routed(20, load_imbalance=lambda i: 15.0 if i in (3, 5, 13) else 1.2),
            {**WATCH, "moe_cooldown": 10},
            {"imbalance_severe": [3, 13]},
        ),
    ],
)
def test_patience_and_cooldown_of_surogate_count_as_its_own_tests_say(
    events: list[Event], params: Mapping[str, Any], expected: Mapping[str, list[int]]
) -> None:
    """A cooldown is over once its last step is."""
    assert {name: at for name, at in decided(events, params).items() if not name.startswith("phase ")} == expected


def shrinking(step: int) -> float:
    """Return norms that fall by a share of their mean."""
    return 10 - 0.15 * step


@pytest.mark.parametrize(
    ("advice", "events", "params", "steps"),
    [
        ("plateau_high_lr", at_steps(), {"gradient_warmup": 5}, [*range(53, 60)]),
        (
            "plateau_high_lr",
            at_steps(loss=lambda i: 3.0 if i < 40 else 2.0, steps=80),
            {"gradient_warmup": 5},
            [],
        ),
        (
            "gradient_vanishing",
            at_steps(loss=lambda i: 5 * 0.99**i, norm=shrinking, steps=50),
            {"gradient_window": 10, "gradient_warmup": 5, "plateau_warmup": 2, "plateau_gain": 1.0e9},
            [*range(41, 50)],
        ),
        (
            "gradient_vanishing",
            at_steps(loss=lambda i: 5 * 0.99**i, norm=shrinking, steps=50),
            {"gradient_window": 10, "gradient_warmup": 5, "plateau_warmup": 2, "plateau_gain": -1.0e9},
            [],
        ),
        (
            "spike_moe",
            at_steps(loss={20: math.nan, -1: 3.0}, routing={**ROUTING, "moe_expert_utilization": {30: 0.4, -1: 0.95}}),
            {},
            [30],
        ),
        (
            "spike_moe",
            at_steps(loss={20: math.nan, -1: 3.0}, routing={**ROUTING, "moe_expert_utilization": {31: 0.4, -1: 0.95}}),
            {},
            [],
        ),
        (
            "lr_reductions_ineffective",
            at_steps(loss=math.nan, steps=20),
            {"guard_cooldown": 1, "guard_overrides": 1, "guard_actions": 10, "advice_cooldown": 10},
            [3, 13],
        ),
        (
            "warmup_too_short",
            at_steps(loss=lambda i: 5 - 0.2 * max(i - 90, 0), steps=120),
            {"warmup_steps": 100},
            [100],
        ),
        ("warmup_too_short", at_steps(steps=120), {"warmup_steps": 100}, []),
    ],
)
def test_the_advisor_of_surogate_speaks_where_its_own_tests_say(
    advice: str, events: list[Event], params: Mapping[str, Any], steps: list[int]
) -> None:
    """Its phases are those of the newest three losses, and it repeats itself at each update."""
    assert decided(events, {**LATEST, **params}).get(advice, []) == steps


def test_a_divergence_is_blamed_on_routing_that_is_unhealthy() -> None:
    """And without routing on nothing."""
    routing = {**ROUTING, "moe_load_imbalance": 12.0, "moe_expert_utilization": 0.3}
    with_routing, without = (at_steps(lambda i: 3 * 1.02**i, lambda i: 0.1 + i, routing=each) for each in (routing, {}))

    assert decided(with_routing, LATEST)["diverging_moe"]
    assert "diverging_moe" not in decided(without, LATEST)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"moe_load_imbalance": 8.0}, ("True", 0.125, 0.95, 0.0)),
        ({"moe_load_imbalance": 2.0}, ("True", 0.5, 0.95, 0.0)),
        ({"moe_expert_utilization": 0.6}, ("True", 1 / 1.2, 0.6, 0.0)),
        ({"moe_aux_loss": lambda i: 0.01 if i < 5 else 0.1}, ("True", 1 / 1.2, 0.95, 0.09)),
        ({}, ("False", 1 / 1.2, 0.95, 0.0)),
    ],
)
def test_the_diagnostics_of_routing_are_those_of_surogate(
    values: Mapping[str, Values], shown: tuple[str, float, float, float]
) -> None:
    """After ten updates: whether it is unhealthy, balance, utilization, and the trend of the auxiliary loss."""
    case = {"schedule": {"kind": "constant", "steps": 99, "warmup_steps": 0, "final_lr": 0.0}, "params": {}}
    message = _SteeredTraining(case, at_steps(steps=10, routing={**ROUTING, **values})).run().routing[-1].split()

    assert message[0] == shown[0]
    assert [float(value) for value in message[1:]] == pytest.approx(shown[1:], abs=1e-12)


def spiky(step: int) -> float:
    """Return a loss that falls slowly, with four spikes."""
    return {200: 6.0, 260: 6.5, 320: 7.0, 380: 7.5}.get(step, noisy(step))


def noisy(step: int) -> float:
    """Return a loss that falls slowly, with noise."""
    return 2 + 2 * math.exp(-step / 1000) + random.Random(step).uniform(-0.01, 0.01)


def collapsing(step: int) -> float:
    """Return a loss that falls, and rises from step 150 on."""
    return 3 - 0.001 * step if step < 150 else 2.85 + 0.01 * (step - 150)


@pytest.mark.parametrize(
    ("events", "params", "expected"),
    [
        (at_steps(noisy, steps=400), {}, {"phase converging": [50]}),
        (
            at_steps(spiky, steps=440),
            OFF,
            {"guard 1": [200, 260, 380], "guard 2": [320], "phase unstable": [380]},
        ),
        (at_steps({5: math.nan, -1: 3.0}), {}, {"guard 1": [5], "phase plateau": [51]}),
        (
            at_steps(lambda i: 3 - 0.002 * min(i, 400), steps=1000),
            OFF,
            {
                "phase converging": [50],
                "phase plateau": [489],
                "plateau_high_lr": [538, 738, 938],
                "plateau": [587, 787, 987],
                "stop_plateau": [988],
            },
        ),
        (
            at_steps(lambda i: 3 - 0.002 * min(i, 300) + 0.01 * max(i - 300, 0), steps=540),
            OFF,
            {
                "phase converging": [50],
                "phase plateau": [329],
                "phase diverging": [332],
                "plateau": [359],
                "stop_divergence": [531],
            },
        ),
        (
            at_steps(lambda i: 2 + 2 * math.exp(-i / 100), steps=130),
            {},
            {"phase converging": [50], "stop_efficiency": [120]},
        ),
        (at_steps(lambda i: 5 * 0.985**i, steps=90), {"warmup_steps": 60, **OFF}, {"warmup_too_short": [60]}),
    ],
)
def test_whole_trainings_are_decided_on_like_by_surogate(
    events: list[Event], params: Mapping[str, Any], expected: Mapping[str, list[int]]
) -> None:
    """At the steps that Surogate's own modules gave."""
    found = decided(events, params)

    assert {name: found.get(name) for name in expected} == expected
    assert set(found) - set(expected) <= {"phase converging", "phase plateau", "gradients_flat"}


def test_an_override_begins_above_half_of_the_rate_and_ends_after_its_updates() -> None:
    """The update of the spike trains at the full rate, and a later reduction halves the schedule."""
    schedule = {"kind": "constant", "steps": 999, "warmup_steps": 0, "final_lr": 0.0}
    events = at_steps({60: math.nan, 200: math.nan, 300: math.nan, -1: 3.0}, steps=400)
    used = _SteeredTraining({"schedule": schedule, "params": {}}, events).run().used

    assert [used[step] for step in (60, 61, 85, 109, 110)] == pytest.approx([2e-4, 1.02e-4, 1.5e-4, 1.98e-4, 2e-4])
    assert [used[step] for step in (200, 201, 250, 300, 301, 399)] == pytest.approx(
        [2e-4, 1.02e-4, 2e-4, 2e-4, 1e-4, 1e-4]
    )


def test_the_recorded_answers_show_each_meaning() -> None:
    """A detector that no case rings would be compared with nothing."""
    assert len(CASES) >= 20
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
