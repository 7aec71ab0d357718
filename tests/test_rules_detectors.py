"""Detectors of a training's health with named expressions, against the same detectors written out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from drawing import scaled, seed
from drawn_trainings import training
from long_detectors import long_form

from steptape.rules.engine.decisions import Decision, Outcome, RuleError, RuleWarning
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import AWAITED, LATE_FOR, Event

SHORT = Path(__file__).parent / "data" / "detectors" / "adaptive.yaml"

#: Experts, experts a token, steps of warm-up, and the growth of gradient norms that is too much. Norms cannot grow by
#: half their mean a step for long: the slope over n values is at most 6 / (n + 1) of their mean.
SETTINGS = [(0, 1, 0, 0.5), (8, 2, 10, 0.1), (64, 4, 40, 0.1), (8, 4, 100, 0.05)]

ALL = {
    *(f"phase: {phase}" for phase in ("unstable", "plateau", "diverging", "converging")),
    *("gradient_acceleration", "plateau", "guard: 1", "guard: 2"),
    *("imbalance: severe", "imbalance: high", "utilization: critical", "utilization: low", "aux_loss_spike"),
    *("plateau_high_lr", "diverging_moe", "gradient_vanishing", "spike_moe"),
    *("reductions_do_not_help", "warmup_too_short", "stop"),
}

#: What the short form decides in one controller, and its message says.
_LEVELS = {"imbalance", "utilization"}


def _what(decision: Decision) -> str:
    """Return what a decision of either form says."""
    name, message = decision.controller, decision.message
    if message and name == "phase":
        return f"phase: {message.split()[-1]}"
    if message and name == "guard":
        return f"guard: {message.removeprefix('stage ')[0]}"
    if message and name in _LEVELS:
        return f"{name}: {message.split()[0]}"
    group, _, rest = name.partition("_")
    if group in ("stop", "early"):
        return "stop"
    return f"{group}: {rest}" if group in (*_LEVELS, "phase", "guard") and rest else name


def _decided(outcomes: Iterable[Outcome]) -> list[tuple[int, str]]:
    """Return step and meaning of each decision that is not a shadow; of those that end the training the first."""
    decided: dict[tuple[int, str], None] = {}
    for each in outcomes:
        assert not isinstance(each, RuleError), each
        if isinstance(each, Decision) and each.acts:
            decided[each.step, _what(each)] = None
    stop = next((place for place in decided if place[1] == "stop"), None)
    return sorted(place for place in decided if place[1] != "stop" or place == stop)


def _observed(policy: Policy, events: Iterable[Event]) -> list[Outcome]:
    engine = Engine(policy)
    return [outcome for event in events for outcome in engine.observe(event)]


def _with_calm_values(events: Iterable[Event], refused: set[int]) -> Iterable[Event]:
    """Yield the events, each update with loss and norm of the one before, unless the guard refused that."""
    calm: dict[str, float] = {}
    for event in events:
        if event.kind != "step_end":
            yield event
            continue
        yield event._replace(metrics={**event.metrics, **calm})
        loss, norm = event.metrics["loss"], event.metrics["grad_norm"]
        is_calm = math.isfinite(loss) and math.isfinite(norm) and event.step not in refused
        calm = {"calm_loss": loss, "calm_norm": norm} if is_calm else {}


def _brought_late(events: Iterable[Event], lag: int) -> Iterable[Event]:
    """Yield the events as a recorder writes them if loss and norm of an update come so many updates later."""
    late = ("loss", "grad_norm")
    waiting: list[Event] = []
    seq = -1

    def brought(event: Event, at: int) -> Event:
        metrics = {name: event.metrics[name] for name in late}
        attrs = {AWAITED: list(late), LATE_FOR: event.seq}
        return event._replace(seq=at, metrics=metrics, attrs=attrs, value_lag=lag)

    for event in events:
        while waiting and (len(waiting) > lag or event.kind != "step_end"):
            seq += 1
            yield brought(waiting.pop(0), seq)
        seq += 1
        if event.kind != "step_end":
            yield event._replace(seq=seq)
            continue
        waiting.append(event._replace(seq=seq))
        there = {name: value for name, value in event.metrics.items() if name not in late}
        yield event._replace(seq=seq, metrics=there, attrs={AWAITED: list(late)})
    for event in waiting:
        seq += 1
        yield brought(event, seq)


def _short(setting: tuple[int, int, int, float]) -> Policy:
    experts, top_k, warmup, growth = setting
    text = SHORT.read_text().replace("streak(growth > 0.5)", f"streak(growth > {growth})")
    return parse_policy(text, params={"experts": experts, "top_k": top_k, "warmup": warmup})


def _trainings(count: int) -> Sequence[list[Event]]:
    first = seed()
    return [list(training(first + number)) for number in range(count)]


def test_all_detectors_need_few_controllers_and_little_text() -> None:
    """Each meaning of a decision has its place in one of them."""
    assert len(_short(SETTINGS[0]).controllers) <= 14
    assert len(SHORT.read_text()) <= 5_000


def test_the_short_form_decides_like_the_long_form() -> None:
    """Phases, warnings, stages of the guard and stops come at the same steps, in trainings of all kinds."""
    seen: set[str] = set()
    first = seed()
    for number in range(1_000):
        if number >= 4 * scaled(4) and seen >= ALL:  # Some kinds of decisions are rare.
            break
        setting, drawn = SETTINGS[number % len(SETTINGS)], list(training(first + number))
        short = _decided(_observed(_short(setting), drawn))
        refused = {step for step, what in short if what.startswith("guard")}
        long = parse_policy(long_form(*setting))

        assert short == _decided(_observed(long, _with_calm_values(drawn, refused))), setting
        seen.update(what for _, what in short)
    assert seen >= ALL


def test_the_short_form_says_nothing_of_routing_in_a_dense_model() -> None:
    """Its detectors of routing require a metric that only a mixture of experts records."""
    dense = next(drawn for drawn in _trainings(20) if "moe_aux_loss" not in drawn[0].metrics)

    warned = [each.warning for each in _observed(_short(SETTINGS[0]), dense) if isinstance(each, RuleWarning)]
    assert not [warning for warning in warned if "moe" in warning]


@pytest.mark.parametrize("lag", [1, 3])
def test_the_short_form_decides_alike_on_late_values(lag: int) -> None:
    """Definitions, states, admitted values and stages see each step once, whole."""
    for setting, drawn in zip(SETTINGS, _trainings(len(SETTINGS)), strict=True):
        late = _decided(_observed(_short(setting), _brought_late(drawn, lag)))

        assert late == _decided(_observed(_short(setting), drawn)), setting
