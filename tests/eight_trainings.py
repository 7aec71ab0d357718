"""Eight trainings of 2,000 updates, with an evaluation each 100, which tests write with several tools and backtest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from command_line import call

STEPS: Final = 2000
EVALUATED_EACH: Final = 100
_LOGGED_EACH: Final = 10
_NAN_FROM: Final = 910
_SPIKE_AT: Final = 1200


@dataclass(frozen=True)
class Training:
    """Losses of one training by update, rounded to what a line of text holds."""

    name: str
    losses: dict[int, float]
    evaluations: dict[int, float]

    def rows(self) -> Iterator[tuple[int, float, float | None]]:
        """Yield each logged update, its loss, and the loss of the evaluation after it."""
        for step, loss in self.losses.items():
            yield step, loss, self.evaluations.get(step)


def _training(name: str, loss: Callable[[int], float], evaluation: Callable[[int], float]) -> Training:
    def values(of: Callable[[int], float], every: int) -> dict[int, float]:
        return {step: round(of(step), 4) for step in range(every, STEPS + 1, every)}

    return Training(name, values(loss, _LOGGED_EACH), values(evaluation, EVALUATED_EACH))


def _falling(floor: float) -> Callable[[int], float]:
    return lambda step: floor + 2 * math.exp(-step / 400)


def _spiking(floor: float) -> Callable[[int], float]:
    return lambda step: _falling(floor)(step) * (8 if _SPIKE_AT <= step < _SPIKE_AT + 50 else 1)


def _not_finite(floor: float) -> Callable[[int], float]:
    return lambda step: math.nan if step >= _NAN_FROM else _falling(floor)(step)


def _overfitting(best: int) -> Callable[[int], float]:
    return lambda step: 0.6 + abs(step - best) / 1000


#: Three overfit, two are fine, one is slow, one is NaN from update 910, one has a spike at 1,200.
TRAININGS: Final = (
    _training("overfit-0", _falling(0.11), _overfitting(500)),
    _training("overfit-1", _falling(0.12), _overfitting(600)),
    _training("overfit-2", _falling(0.13), _overfitting(800)),
    _training("fine-0", _falling(0.3), _falling(0.4)),
    _training("fine-1", _falling(0.31), _falling(0.42)),
    _training("slow", lambda step: 2.4 - step / 2000, lambda step: 2.5 - step / 2000),
    _training("nan", _not_finite(0.32), _not_finite(0.44)),
    _training("spike", _spiking(0.33), _spiking(0.45)),
)

#: The updates at which policies stop: the first evaluation without a new best; and the eleventh in a row that is more
#: than 5 % above the best, or the first loss that is NaN.
STOPS: Final = {
    "hf_early_stopping": {"overfit-0": 600, "overfit-1": 700, "overfit-2": 900, "nan": 1000, "spike": 1200},
    "overfitting": {"overfit-0": 1600, "overfit-1": 1700, "overfit-2": 1900, "nan": 910},
}

#: What the reports conclude: one family proves nothing, though the baseline loses the training with a spike.
ARM: Final = {"hf_early_stopping": "not_enough", "overfitting": "not_enough"}


def verdict(history: Path, policy: str) -> dict[str, Any]:
    """Backtest a policy on a folder of logs, under the nearest names, and return what no tool may change."""
    found = call("backtest", policy, "--history", history, "--rename", "auto", "--json")
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    total = report["aggregate"]
    runs = {_training_of(run["name"]): run for run in report["runs"]}
    stops = {name: run["stop"] for name, run in runs.items() if run["stop"]}
    return {
        "arm": report["arming"]["arm"],
        "families": total["families"]["count"],
        "repeated": total["repeated"],
        "stops": {name: stop["step"] for name, stop in stops.items()},
        "validity": {stop["validity"] for stop in stops.values()},
        "cut off": {name: run["saved"]["steps"] / run["recorded"]["steps"] for name, run in runs.items()},
        "evaluations": (total["evaluations"], total["evaluations_saved"]),
    }


def expected_verdict(policy: str) -> dict[str, Any]:
    """Return the verdict that each tool's logs must give."""
    stops = STOPS[policy]
    after = {training.name: STEPS - stops.get(training.name, STEPS) for training in TRAININGS}
    return {
        "arm": ARM[policy],
        "families": 1,
        "repeated": 0,
        "stops": stops,
        "cut off": {name: steps / STEPS for name, steps in after.items()},
        "evaluations": (len(TRAININGS) * STEPS // EVALUATED_EACH, sum(-(-s // EVALUATED_EACH) for s in after.values())),
        "validity": {"prefix-exact"},
    }


def _training_of(name: str) -> str:
    (found,) = (training.name for training in TRAININGS if training.name in name.split("/"))
    return found
