"""The shipped rules on evaluations count as the tools do that users know them from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from early_stoppings import curves, decided

from steptape import Recorder, load_policy
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy

#: Random curves for each setting.
CURVES = 25


def keras(values: Sequence[float], patience: int, min_delta: float, start_from_epoch: int) -> int | None:
    """Return the epoch, from 1, after which keras.callbacks.EarlyStopping stops, as its documents and source say."""
    best, wait = math.inf, 0
    for epoch, value in enumerate(values):
        if epoch < start_from_epoch:
            continue
        wait += 1
        if value + min_delta < best:
            best, wait = value, 0
        elif wait >= patience and epoch > 0:
            return epoch + 1
    return None


@pytest.mark.parametrize("patience", [1, 2, 5])
@pytest.mark.parametrize("min_gain", [0.0, 0.25])
@pytest.mark.parametrize("warmup", [0, 4])
def test_early_stopping_stops_where_keras_does(patience: int, min_gain: float, warmup: int) -> None:
    """The n-th evaluation in a row without improvement stops; those of the warm-up count for nothing."""
    policy = load_policy("early_stopping", params={"patience": patience, "min_gain": min_gain, "warmup": warmup})

    for values in curves(CURVES):
        known = [4.0, *values]  # The first epoch of Keras never stops.
        stops = decided(policy, known, "no_improvement")
        assert stops[:1] == [stop for stop in [keras(known, patience, min_gain, warmup)] if stop]


@pytest.mark.parametrize(("metric", "mode"), [("eval/accuracy", "auto"), ("val_score", "max"), ("eval_loss", "max")])
def test_a_metric_where_greater_is_better_stops_where_its_negative_does(metric: str, mode: str) -> None:
    """Its name says so, or the mode; the file is the same."""
    params: dict[str, str | float] = {"metric": metric, "mode": mode, "warmup": 2, "min_gain": 0.25}
    upwards, downwards = (
        load_policy("early_stopping", params=params),
        load_policy("early_stopping", params=params | {"metric": "eval_loss", "mode": "auto"}),
    )

    for values in curves(CURVES):
        negative = [-value for value in values]
        for rule in ("save_best", "no_improvement"):
            assert decided(upwards, negative, rule, metric) == decided(downwards, values, rule)


@pytest.mark.parametrize("name", ["early_stopping", "best_checkpoint"])
def test_each_new_best_is_saved(name: str) -> None:
    """A small gain below the margin waits until it has added up."""
    policy = load_policy(name, params={"min_gain": 0.1})

    assert decided(policy, [1.0, 0.95, math.nan, 0.89, 0.89, 0.5], "save_best") == [1, 4, 6]


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("min_gain", [0.0, 0.25])
def test_plateau_cuts_where_torch_does(patience: int, min_gain: float) -> None:
    """A tolerance of ``patience`` evaluations without improvement is a count of one more."""
    policy = load_policy("plateau", params={"patience": patience + 1, "min_gain": min_gain, "cuts": 1000})

    for values in curves(CURVES):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=patience, threshold=min_gain, threshold_mode="abs", eps=0.0
        )
        cuts = list[int]()
        for number, value in enumerate([4.0, *values], 1):
            before = optimizer.param_groups[0]["lr"]
            scheduler.step(value)
            cuts += [number] if optimizer.param_groups[0]["lr"] < before else []
        assert decided(policy, [4.0, *values], "plateau") == cuts


def test_plateau_makes_no_more_than_its_cuts() -> None:
    """A training that no cut helps keeps a rate."""
    policy = load_policy("plateau", params={"patience": 2, "cuts": 3})

    assert decided(policy, [1.0] * 30, "plateau") == [3, 5, 7]


def test_early_stopping_ends_a_training_that_is_armed_with_its_name(tmp_path: Path) -> None:
    """The third evaluation in a row without improvement is the last."""
    with Recorder(tmp_path / "runs", rules="early_stopping", quiet=True) as rec:
        made = 0
        for value in [3.0, 2.0, 2.5, 2.0, 2.25, 1.0]:
            made += 1
            if rec.evaluate(eval_loss=value).should_stop:
                break

    assert made == 5


def test_early_stopping_is_armed_with_params(tmp_path: Path) -> None:
    """The metric has the name that the loop gives it."""
    rules = load_policy("early_stopping", params={"metric": "eval/acc", "patience": 1})
    with Recorder(tmp_path / "runs", rules=rules, quiet=True) as rec:
        stops = [rec.evaluate({"eval/acc": value}).should_stop for value in (0.5, 0.75, 0.75)]

    assert stops == [False, False, True]


def test_a_param_names_a_series() -> None:
    """It is one series with the name that the text gives."""
    text = """
params: {metric: "train/loss", limit: 3}
controllers:
  - {name: a, triggers: [on_log], rule: "series(metric) > lag(series(metric), limit)", operations: []}
"""
    read = parse_policy(text, params={"metric": "eval/loss"}).controllers[0].rule.bound.series

    assert {key.name for key in read} == {"eval/loss"}


@pytest.mark.parametrize("metric", ["eval_loss", "val_loss"])
def test_a_rename_reaches_a_metric_that_a_param_names(metric: str) -> None:
    """The param has the name under which runs record it."""
    policy = load_policy("early_stopping", params={"metric": metric}, rename={"eval/acc": metric})

    assert (policy.params["metric"], policy.reads) == ("eval/acc", ("eval/acc",))


def test_a_number_names_no_series() -> None:
    """The refusal says what does."""
    text = "params: {m: 1}\ncontrollers: [{name: a, triggers: [on_log], rule: series(m) > 1, operations: []}]"

    with pytest.raises(PolicyError, match="series takes a text, or a param that is one, as its name"):
        parse_policy(text)


@pytest.mark.parametrize(
    ("series", "values", "expected"),
    [
        ("mean(eval_accuracy, 2)", [0.5, 0.5, 0.25, 0.75, 0.75], [2, 5]),
        ("finite(eval_accuracy)", [0.5, 0.75, 0.25], [1, 2]),
        ("eval_accuracy if step > 1 else undefined", [0.9, 0.5, 0.6], [2, 3]),
        ("eval_accuracy if len(eval_accuracy) > 1 else undefined", [0.9, 0.5, 0.6], [2, 3]),
        ("eval_accuracy - loss", [0.5, 0.75, 0.25], []),
    ],
)
def test_what_is_smoothed_or_left_out_keeps_the_direction_of_its_metric(
    series: str, values: list[float], expected: list[int]
) -> None:
    """A mean of accuracies improves as it rises."""
    policy = parse_policy(
        f"controllers: [{{name: a, triggers: [on_evaluate], rule: 'improved({series})', operations: []}}]"
    )

    assert decided(policy, values, "a", "eval_accuracy") == expected
