"""The detectors of ``data/detectors/adaptive.yaml`` without names for expressions.

What the short form defines once is written out wherever it is needed. A count that a decision does not restart is the
number of steps since a shadow controller last fired. What another controller decides at the same event is asked
again. The window of the guard leaves out what the guard refused, which needs a name: the events
carry these values as ``calm_loss`` and ``calm_norm``, each one event late.
"""

from __future__ import annotations

from collections.abc import Mapping

UNDEFINED = "[1][1]"

LOSS = f"(loss if isfinite(loss) else {UNDEFINED})"
NORM = f"(grad_norm if isfinite(grad_norm) else {UNDEFINED})"
EVALS = f"(eval_loss if isfinite(eval_loss) else {UNDEFINED})"


def _half(window: int, half: str) -> str:
    return f"mean({LOSS}, {window}, half='{half}')"


def _known(condition: str, *given: str) -> str:
    """Return a condition that is undefined unless all that is given holds."""
    return f"(({condition}) if {' and '.join(given)} else {UNDEFINED})"


OLDER, NEWER = _half(100, "older"), _half(100, "recent")
GAIN = f"({OLDER} - {NEWER}) / {OLDER}"
JITTER = f"detrended_std({LOSS}, 100, half='recent') / max([{NEWER}, 1.0e-8])"
CALM = f"count({LOSS}, 51) > 50 and {OLDER} > 0 and {JITTER} <= 0.15"
PHASES = {
    "unstable": f"count({LOSS}, 51) > 50 and {OLDER} > 0 and {JITTER} > 0.15",
    "plateau": f"{CALM} and -0.01 < {GAIN} < 0.001",
    "diverging": f"{CALM} and {GAIN} <= -0.01",
    "converging": f"count({LOSS}, 51) > 50 and ({OLDER} <= 0 or {JITTER} <= 0.15 and {GAIN} >= 0.001)",
}
BEFORE = _half(200, "older")
STALLS = f"({BEFORE} - {_half(200, 'recent')}) / {BEFORE} < 0.001"
MEASURES_FALL = (f"count({LOSS}, 100) >= 100", f"{BEFORE} > 0")
GROWTH = f"slope({NORM}, 20) / max([mean({NORM}, 20), 1.0e-8])"
HAS_NORMS = f"count({NORM}, 10) >= 10"
STEADY = f"{PHASES['plateau']} and {_known(f'{GROWTH} <= 0.1', HAS_NORMS)}"
VANISHING = f"{PHASES['converging']} and {_known(f'{GROWTH} < -0.02', HAS_NORMS)}"
#: Whether the two newest known answers were that the loss stalls, this event's included.
STALLS_TWICE = (
    f"({STALLS} and streak('stalls') > 0 if isfinite(loss) and {' and '.join(MEASURES_FALL)}"
    " else streak('stalls_twice') > 0)"
)

ODD = (
    "not isfinite(loss) or not isfinite(grad_norm) or count(calm_loss, 50) >= 50"
    " and (loss > mean(calm_loss, 100) + 3 * std(calm_loss, 100) and loss - mean(calm_loss, 100) > 0.5"
    " or grad_norm > 10 * mean(calm_norm, 100) or grad_norm > 100)"
)
REDUCES = "(times_fired('guard_1') + times_fired('guard_2')) % 3 == 2"
GUARDS = (
    f"times_fired('guard_2') < 5 and (times_fired('guard_1') == 0 or steps_since('guard_1') >= 50)"
    f" and (times_fired('guard_2') == 0 or steps_since('guard_2') >= 50) and ({ODD})"
)
GUARDED_LATELY = (
    "(times_fired('guard_1') > 0 and steps_since('guard_1') <= 10"
    " or times_fired('guard_2') > 0 and steps_since('guard_2') <= 10"
    f" or {GUARDS})"
)

HAS_ROUTING = "len(moe_aux_loss) >= 10"
SEVERE = "moe_load_imbalance > max([10, 3 * experts / top_k])"
HIGH = "moe_load_imbalance > max([3, 1.5 * experts / top_k])"
AUX, AUX_STD = "mean(moe_aux_loss, 49, skip=1)", "std(moe_aux_loss, 49, skip=1)"
AUX_RISE = "mean(moe_aux_loss, 50, half='recent') - mean(moe_aux_loss, 50, half='older')"
UNHEALTHY = (
    f"{HAS_ROUTING} and (mean(moe_load_imbalance, 50) > 1 / 0.7 or mean(moe_expert_utilization, 50) < 0.8"
    f" or {AUX_RISE} > 0.5 * mean(moe_aux_loss, 50))"
)

STABLE = f"clamp(1 - std({EVALS}, 5) / max([mean({EVALS}, 5), 1.0e-8]), 0, 1)"
LEVEL = f"clamp(1 + 20 * delta({EVALS}) / max([abs(lag({EVALS}, 1)), 1.0e-8]), 0, 1)"
PACE = f"mean(abs(delta({LOSS})), 50)"
TRIED = f"count({LOSS}, 101) > 100"


class _Text:
    """Collects the lines of the controllers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, rule: str, keys: Mapping[str, object] | None = None, trigger: str = "on_step_end") -> None:
        self.lines += [f"- name: {name}", f"  triggers: [{trigger}]", "  operations: []", f'  rule: "{rule}"']
        self.lines += [f"  {key}: {value}" for key, value in (keys or {}).items()]


def _patient(count: int, **keys: object) -> dict[str, object]:
    return {"patience": f"{{patience_threshold: {count - 1}}}", **keys}


def long_form(experts: int = 0, top_k: int = 1, warmup: int = 0, growth: float = 0.5) -> str:
    """Return the policy for a model, its warm-up, and the growth of gradient norms that is too much."""
    text, shadow, advice = _Text(), {"mode": "shadow"}, {"cooldown": 200}
    for phase, condition in PHASES.items():
        text.add(f"phase_{phase}", f"{condition} and streak('is_{phase}') == 0")
        text.add(f"is_{phase}", condition, shadow)
    growing = _known(f"{GROWTH} > {growth}", "isfinite(grad_norm)", HAS_NORMS)
    text.add("gradient_acceleration", growing, _patient(5, cooldown=100))
    stalling = _known(STALLS, "isfinite(loss)", *MEASURES_FALL)
    text.add("plateau", stalling, _patient(3, cooldown=200))
    text.add("guard_1", f"times_fired('guard_2') < 5 and not {REDUCES} and ({ODD})", {"cooldown": "guard"})
    text.add("guard_2", f"times_fired('guard_2') < 5 and {REDUCES} and ({ODD})", {"cooldown": "guard"})
    rest = {"cooldown": 100}
    text.add("imbalance_severe", f"{HAS_ROUTING} and {SEVERE}", rest)
    text.add("imbalance_high", f"{HAS_ROUTING} and not {SEVERE} and {HIGH}", rest)
    text.add("utilization_critical", f"{HAS_ROUTING} and moe_expert_utilization < 0.5", rest)
    text.add("utilization_low", f"{HAS_ROUTING} and 0.5 <= moe_expert_utilization < 0.8", rest)
    limit = f"({AUX} + 3 * {AUX_STD} if {AUX_STD} > 0 else 2 * {AUX} if {AUX} > 0 else 1.0e-6)"
    text.add("aux_loss_spike", f"len(moe_aux_loss) > 10 and moe_aux_loss > {limit}", rest)
    high_lr = "lr_scheduled > 0 and lr >= 0.3 * lr_scheduled"
    text.add("plateau_high_lr", f"{STEADY} and steps_since('not_steady') >= 50 and {high_lr}", advice)
    text.add("diverging_moe", f"{PHASES['diverging']} and {HAS_NORMS} and {GROWTH} > 0.1 and {UNHEALTHY}", advice)
    vanishing = f"{VANISHING} and steps_since('not_vanishing') >= 20 and {STALLS_TWICE}"
    text.add("gradient_vanishing", vanishing, advice)
    text.add("spike_moe", f"moe_expert_utilization < 0.8 and {GUARDED_LATELY}", advice)
    reduced_twice = f"(times_fired('guard_2') >= 2 or times_fired('guard_2') == 1 and {REDUCES} and {GUARDS})"
    text.add("reductions_do_not_help", f"{reduced_twice} and not ({PHASES['converging']})", advice)
    older, newer = _half(10, "older"), _half(10, "recent")
    at_end = {"between": f"[{warmup}, {warmup + 10}]"}
    drops = f"count({LOSS}, 10) >= 10 and {HAS_NORMS} and mean({NORM}, 20) > 0 and {older} > max([0, {newer} / 0.95])"
    text.add("warmup_too_short", f"warmup > 0 and times_fired('warmup_seen') == 0 and {drops}", at_end)
    text.add("warmup_seen", "True", {**at_end, "once": "true", **shadow})
    text.add("not_steady", f"not ({STEADY})", shadow)
    text.add("not_vanishing", f"not ({VANISHING})", shadow)
    twice = _known(f"{STALLS} and streak('stalls') > 0", "isfinite(loss)", *MEASURES_FALL)
    text.add("stalls_twice", twice, shadow)
    text.add("stalls", stalling, shadow)
    once = {"once": "true"}
    text.add("stop_efficiency", f"{TRIED} and {PACE} < 0.5 * peak({PACE})", once)
    for phase, count in (("diverging", 200), ("plateau", 500)):
        text.add(f"stop_{phase}", _known(PHASES[phase], "isfinite(loss)", TRIED), _patient(count, **once))
    flat = _known(f"0.6 * {STABLE} + 0.4 * {LEVEL} > 0.85", "isfinite(eval_loss)", f"count({EVALS}, 3) >= 3")
    text.add("stop_convergence", flat, _patient(5, **once), "on_evaluate")
    head = f"params: {{experts: {experts}, top_k: {top_k}, warmup: {warmup}}}\ncooldowns: {{guard: 50}}\ncontrollers:\n"
    return head + "\n".join(text.lines) + "\n"
