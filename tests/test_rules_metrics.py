"""Controller metrics compute their values from the right kinds of events and keep them until the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.metrics import HistoryBasedMetric, Loss, Metric, TrainingState
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan


def history(size: int, events: Sequence[Event]) -> Any:
    """Return the value of a HistoryBasedMetric after a stream."""
    metric = HistoryBasedMetric({"window_size": size}, Plan())
    value = None
    for event in events:
        value = metric.compute(event)
    return value


def logs(*losses: float, epochs: Sequence[float | None] | None = None) -> list[Event]:
    """Return one ``log`` event per loss, a tenth of an epoch apart."""
    return [
        Event("log", step=step, epoch=epochs[step] if epochs else step / 10, metrics={"loss": loss, "lr": 0.1})
        for step, loss in enumerate(losses)
    ]


def test_a_history_window_drops_its_oldest_values() -> None:
    """Losses, steps and epochs are dropped together."""
    assert history(2, logs(3.0, 2.0, 1.0)) == {
        "training_loss": {"loss": [2.0, 1.0], "steps": [1, 2], "epoch": [0.1, 0.2]},
        "metrics": {},
        "window_size": 2,
    }


@pytest.mark.parametrize(("size", "expected"), [(-1, [3.0, 2.0, 1.0]), (0, []), (1, [1.0]), (7, [3.0, 2.0, 1.0])])
def test_a_history_window_may_be_unlimited_or_empty(size: int, expected: list[float]) -> None:
    """A negative size and zero mean the same as in TrAC."""
    assert history(size, logs(3.0, 2.0, 1.0))["training_loss"]["loss"] == expected


def test_a_log_without_loss_adds_nothing_but_makes_the_window() -> None:
    """Evaluations are logged too, and a training ends with a summary."""
    events = [Event("log", metrics={"eval_loss": 1.0}, epoch=1.0)]

    assert history(3, events)["training_loss"] == {"loss": [], "steps": [], "epoch": []}


def test_the_same_loss_at_the_same_epoch_counts_once() -> None:
    """This holds for NaN too, which TrAC would add again and again."""
    nan = math.nan
    value = history(9, logs(1.0, 1.0, nan, nan, nan, 1.0, epochs=[0.1, 0.1, 0.2, 0.2, 0.3, 0.3]))

    assert repr(value["training_loss"]["loss"]) == "[1.0, nan, nan, 1.0]"
    assert value["training_loss"]["epoch"] == [0.1, 0.2, 0.3, 0.3]


def test_without_epochs_the_step_tells_two_logs_apart() -> None:
    """A loop without epochs may log the same loss twice."""
    events = [Event("log", step=step, metrics={"loss": 1.0}) for step in (1, 2, 2)]

    assert history(9, events)["training_loss"] == {"loss": [1.0, 1.0], "steps": [1, 2], "epoch": [None, None]}


def test_evaluation_sets_that_take_turns_have_windows_of_their_own() -> None:
    """Keys appear and disappear; steps and epochs have an entry for every evaluation."""
    events = [
        Event("evaluate", step=1, epoch=0.1, metrics={"eval_a_loss": 5.0}),
        Event("evaluate", step=1, epoch=0.1, metrics={"eval_b_loss": 7.0}),
        Event("evaluate", step=2, epoch=0.2, metrics={"eval_a_loss": 4.0, "eval_extra": 1.0}),
        Event("evaluate", step=2, epoch=0.2, metrics={"eval_b_loss": 6.0}),
    ]

    assert history(2, events) == {
        "training_loss": {},
        "metrics": {
            "eval_a_loss": [5.0, 4.0],
            "eval_b_loss": [7.0, 6.0],
            "eval_extra": [1.0],
            "steps": [2, 2],
            "epoch": [0.2, 0.2],
        },
        "window_size": 2,
    }


def test_an_epoch_that_was_logged_as_a_metric_serves_where_the_event_has_none() -> None:
    """Hugging Face logs it like this."""
    metric: Metric = Loss({}, Plan())

    assert metric.compute(Event("log", step=3, metrics={"loss": 1.0, "epoch": 0.5})) == {
        "loss": 1.0,
        "epoch": 0.5,
        "step": 3,
    }
    assert metric.compute(Event("log", step=4, epoch=0.75, metrics={"loss": 1.0, "epoch": 0.5}))["epoch"] == 0.75


def test_loss_is_the_newest_log_that_has_one() -> None:
    """Logs without a loss leave it unchanged, and before the first loss it is unavailable."""
    metric = Loss({}, Plan())
    values = [
        metric.compute(event)
        for event in (Event("log", metrics={"x": 1.0}), *logs(2.0), Event("log", step=9, metrics={"eval_loss": 1.0}))
    ]

    assert values == [None, *[{"loss": 2.0, "lr": 0.1, "epoch": 0.0, "step": 0}] * 2]


def test_training_state_has_the_keys_of_the_trainers_state() -> None:
    """The keys hold what the loop declared, and None or 0 otherwise."""
    metric = TrainingState({}, Plan(total_epochs=3, steps_per_epoch=10))
    metric.compute(Event("log", step=5, epoch=0.5, metrics={"loss": 1.0}))

    undeclared = TrainingState({}, Plan()).compute(Event("log"))
    assert (undeclared["max_steps"], undeclared["num_train_epochs"]) == (0, 0)
    state = metric.compute(Event("save", step=6, epoch=0.6, rank=1, attrs={"is_final": True}))

    assert dict(state) == {
        "epoch": 0.6,
        "global_step": 6,
        "max_steps": 30,
        "num_train_epochs": 3,
        "logging_steps": None,
        "eval_steps": None,
        "save_steps": None,
        "train_batch_size": None,
        "num_input_tokens_seen": None,
        "total_flos": None,
        "log_history": [{"loss": 1.0, "epoch": 0.5, "step": 5}],
        "best_metric": None,
        "best_global_step": None,
        "best_model_checkpoint": None,
        "is_local_process_zero": False,
        "is_world_process_zero": False,
        "is_hyper_param_search": False,
        "trial_name": None,
        "trial_params": None,
        "stateful_callbacks": {},
        "is_final": True,
    }
    with pytest.raises(TypeError):
        state["epoch"] = 1.0  # type: ignore[index]


def test_training_state_shows_what_an_adapter_tells_of_the_trainer() -> None:
    """It keeps a value until the next report, and never lets it replace values of the events themselves."""
    metric = TrainingState({}, Plan(total_steps=5))
    told = {"train_batch_size": 8, "max_steps": 9, "global_step": 77, "log_history": "none", "whatever": 1}
    metric.compute(Event("train_begin", attrs={"trainer_state": told}))
    metric.compute(Event("step_end", step=1, attrs={"trainer_state": {"best_metric": 0.5, "train_batch_size": 16}}))

    state = metric.compute(Event("step_end", step=2, attrs={"trainer_state": "nonsense"}))

    assert (state["train_batch_size"], state["max_steps"], state["best_metric"]) == (16, 9, 0.5)
    assert (state["global_step"], state["log_history"], "whatever" in state) == (2, [], False)


POLICY = """
controller_metrics:
  - {name: s, class: TrainingState}
  - {name: p, class: PerProcessState}
  - {name: e, class: EvalMetrics}
  - {name: q, class: EvalMetrics, arguments: {source_event: on_predict}}
controllers:
"""


def fired(rule: str, trigger: str, events: Sequence[Event]) -> list[int]:
    """Return the seq of each event at which a rule over the metrics above fires; the rule must not fail."""
    text = f"{POLICY}  - name: c\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n    operations: []\n"
    engine = Engine(parse_policy(text))
    outcomes = [*engine.start(), *(outcome for event in events for outcome in engine.observe(event))]
    assert not any(isinstance(outcome, RuleError) for outcome in outcomes), outcomes
    return [outcome.seq for outcome in outcomes if isinstance(outcome, Decision)]


def test_the_training_state_is_stale_inside_a_step() -> None:
    """It is refreshed at step_end and similar events, not at step_begin or optimizer_step."""
    events = [
        Event("step_begin", step=0, seq=0),
        Event("step_end", step=1, seq=1),
        Event("step_begin", step=1, seq=2),
        Event("optimizer_step", step=1, seq=3),
        Event("step_end", step=2, seq=4),
        Event("step_begin", step=2, seq=5),
    ]

    assert fired("s.global_step == 1", "on_step_begin", events) == [2]
    assert fired("s.global_step == 0", "on_init_end", events) == [-1]
    assert fired("s.global_step == 2", "on_step_end", events) == [4]


def test_evaluation_metrics_come_from_their_source_event() -> None:
    """They stay until the next such event."""
    events = [
        Event("evaluate", seq=0, epoch=0.5, metrics={"eval_loss": 2.0}),
        Event("predict", seq=1, metrics={"test_loss": 3.0}),
        Event("step_end", seq=2),
        Event("evaluate", seq=3, metrics={"eval_other": 1.0}),
        Event("step_end", seq=4),
    ]

    assert fired("e.eval_loss == 2.0 and e.epoch == 0.5 and q.test_loss == 3.0", "on_step_end", events) == [2]


def test_the_rank_is_that_of_the_events() -> None:
    """The rank is 0 before the first event."""
    assert fired("p.rank == 0", "on_init_end", []) == [-1]
    assert fired("p.rank == 3", "on_step_end", [Event("step_end", seq=0, rank=3)]) == [0]


@given(st.lists(st.one_of(st.floats(), st.none()), max_size=60), st.integers(-1, 6))
def test_a_history_window_is_the_end_of_all_that_was_logged(losses: list[float | None], size: int) -> None:
    """This holds for any window size, with NaN."""
    events = [
        Event("log", step=step, epoch=float(step), metrics={} if loss is None else {"loss": loss})
        for step, loss in enumerate(losses)
    ]
    everything = [loss for loss in losses if loss is not None]
    expected = everything if size < 0 else everything[len(everything) - min(size, len(everything)) :]
    value = history(size, events)

    assert repr(value["training_loss"]["loss"] if value else []) == repr(expected)
