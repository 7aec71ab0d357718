"""Keras 3, recorded and steered: what a callback learns of each batch, what it does at an order, how runs end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="keras is not installed; 'make frameworks' runs this")

import keras
import numpy as np
import torch
from documents import run_page
from waiting import PATIENCE_S

from steptape import TelemetryError, backtest, load_policy, open_store, verify
from steptape.integrations.keras import SteptapeCallback
from steptape.store.events import Event
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

TESTS = Path(__file__).parents[1]
X = np.random.default_rng(7).normal(size=(30, 4)).astype("float32")
Y = X.sum(1, keepdims=True)

#: Eight batches; the last one is smaller.
BATCHES = 8


def tiny_model(
    optimizer: Any = None,
    *,
    metrics: Sequence[Any] = (),
    losses: list[float] | None = None,
    dropout: float = 0.2,
    **compiled: Any,
) -> Any:
    """Return a model of fixed weights.

    Args:
        optimizer: SGD with a rate of 0.05 by default.
        metrics: Its metrics.
        losses: Takes the loss of each batch.
        dropout: How much of a layer is dropped, by random numbers.
        **compiled: Further arguments of ``compile``.
    """
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])

    def loss(y: Any, prediction: Any) -> Any:
        own = keras.ops.square(y - prediction)
        if losses is not None and prediction.requires_grad:
            losses.append(float(keras.ops.mean(own).detach()))
        return own

    model.compile(optimizer or keras.optimizers.SGD(0.05), loss=loss, metrics=[*metrics], **compiled)
    return model


def fit(model: Any, callbacks: Sequence[Any] = (), *, epochs: int = 3, **changes: Any) -> Any:
    """Train on the fixed data, and return the history."""
    arguments: dict[str, Any] = {"batch_size": 4, "verbose": 0, "validation_data": (X[:8], Y[:8])}
    return model.fit(X, Y, epochs=epochs, callbacks=[*callbacks], **(arguments | changes)).history


def newest(folder: Path) -> Run:
    """Return the newest run in a folder."""
    return max(open_store(folder / "runs"), key=lambda run: run.info.attempts[0].started_ns)


def events(run: Run, kind: str = "step_end") -> list[Event]:
    """Return the run's events of a kind."""
    return [event for event in run.events() if event.kind == kind]


def values(run: Run, name: str) -> list[float]:
    """Return a metric of every step."""
    return [event.metrics[name] for event in events(run)]


def decisions(run: Run) -> list[tuple[int, str]]:
    """Return the steps and the rules of the run's decisions."""
    return [(event.step, event.attrs["controller"]) for event in events(run, "decision")]


def are_equal(one: Any, other: Any) -> bool:
    """Whether two models have the same weights, to the bit."""
    return all(np.array_equal(*pair) for pair in zip(one.get_weights(), other.get_weights(), strict=True))


def test_a_recorded_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """Losses, history and weights; dropout and shuffled data show that no random number is taken."""
    free_losses: list[float] = []
    losses: list[float] = []
    free = tiny_model(losses=free_losses)
    history = fit(free)
    recorded = tiny_model(losses=losses)
    recorded_history = fit(recorded, [SteptapeCallback(tmp_path / "runs")])

    assert (losses, recorded_history) == (free_losses, history)
    assert are_equal(free, recorded)


def test_the_loss_of_a_step_is_that_of_its_batch(tmp_path: Path) -> None:
    """To the bit, and not the mean of the epoch so far that Keras shows."""
    losses: list[float] = []
    fit(tiny_model(losses=losses), [SteptapeCallback(tmp_path / "runs")], validation_data=None)

    run = newest(tmp_path)
    assert values(run, "loss") == losses
    assert [event.step for event in events(run)] == list(range(1, 3 * BATCHES + 1))
    assert (run.status, run.info.last.plan.total_epochs, run.info.last.plan.steps_per_epoch) == ("completed", 3, 8)


def test_a_mean_of_the_epoch_is_undone_and_another_metric_is_one_of_the_epoch(tmp_path: Path) -> None:
    """The last batch of each epoch has two samples of four."""
    metrics = [keras.metrics.MeanSquaredError(name="mse"), keras.metrics.RootMeanSquaredError(name="rmse")]
    losses: list[float] = []
    model = tiny_model(metrics=metrics, losses=losses)
    history = fit(model, [SteptapeCallback(tmp_path / "runs")], validation_data=None)

    run = newest(tmp_path)
    assert values(run, "mse") == pytest.approx(losses, rel=1e-4)
    assert values(run, "num_samples") == ([4.0] * 7 + [2.0]) * 3
    assert values(run, "epoch_rmse")[BATCHES - 1 :: BATCHES] == history["rmse"]
    assert [event.metrics["epoch_loss"] for event in events(run, "log")] == history["loss"]


def test_a_loss_that_a_step_of_the_users_tracks_is_that_of_its_batch(tmp_path: Path) -> None:
    """As Keras documents a ``train_step`` of one's own. How many samples it saw is unknown then."""
    losses: list[float] = []

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.tracker = keras.layers.Dense(1), keras.metrics.Mean(name="loss")

        def call(self, x: Any) -> Any:
            return self.layer(x)

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker]

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.zero_grad()
            loss = keras.ops.mean(keras.ops.square(y - self(x, training=True)))
            loss.backward()
            losses.append(float(loss))
            weights = self.trainable_weights
            self.optimizer.apply([each.value.grad for each in weights], weights)
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    model = Own()
    model.compile(keras.optimizers.SGD(0.05))
    fit(model, [SteptapeCallback(tmp_path / "runs")], validation_data=None)

    run = newest(tmp_path)
    assert values(run, "loss") == losses
    assert {*events(run)[0].metrics} == {"loss", "lr"}


def test_a_compiled_training_is_recorded_from_the_sums_of_keras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are rounded to 32 bits. The tap of the loss, which would be compiled anew, is left out.

    The compiler itself, which changes nothing of what a callback sees, would take most of a minute.
    """
    monkeypatch.setattr(torch, "compile", lambda function: function)
    models, losses = [], list[float]()
    fit(tiny_model(losses=losses, dropout=0.0))
    for callbacks in ([], [SteptapeCallback(tmp_path / "runs")]):
        models.append(tiny_model(dropout=0.0))
        models[-1].compile(keras.optimizers.SGD(0.05), loss="mse", jit_compile=True)
        fit(models[-1], callbacks)

    assert are_equal(*models)
    assert values(newest(tmp_path), "loss") == pytest.approx(losses, rel=1e-4)


WITH_JAX = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
from steptape.integrations.keras import SteptapeCallback

x = np.random.default_rng(7).normal(size=(30, 4)).astype("float32")
rules, histories = ["evaluate if step == 4", "save if step == 6"], []
recorded = SteptapeCallback("runs", rules=rules, validation_data=(x, x))
stopped = SteptapeCallback("runs", rules=["stop if step == 12"])
for callbacks in ([], [recorded], [stopped]):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(4)])
    model.compile("sgd", loss="mse", metrics=["mse"], steps_per_execution=2)
    histories.append(model.fit(x, x, batch_size=4, epochs=2, callbacks=callbacks, verbose=0).history)
print(json.dumps(histories[0] == histories[1]))
"""


def test_a_training_with_jax_is_recorded_and_steered(tmp_path: Path) -> None:
    """The same to the bit, with two updates for each call of the callback: it has their mean."""
    pytest.importorskip("jax", reason="jax is not installed; 'make frameworks' installs it")
    command = [sys.executable, "-W", "ignore", "-c", WITH_JAX]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (done.stdout, "failed" in done.stderr) == ("true\n", False), done.stderr
    runs = sorted(open_store(tmp_path / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    assert [(run.status, [event.step for event in events(run)]) for run in runs] == [
        ("completed", list(range(2, 17, 2))),
        ("stopped", list(range(2, 13, 2))),
    ]
    assert values(runs[0], "loss") == values(runs[0], "mse")
    assert [event.step for kind in ("evaluate", "save") for event in events(runs[0], kind)] == [4, 6]


def test_the_epochs_and_validations_are_those_of_keras(tmp_path: Path) -> None:
    """An evaluation has the names of Keras, and is in the epoch that it ends."""
    history = fit(tiny_model(), [SteptapeCallback(tmp_path / "runs")], validation_freq=2)

    run = newest(tmp_path)
    assert [(event.step, event.epoch, dict(event.metrics)) for event in events(run, "evaluate")] == [
        (16, 2.0, {"val_loss": history["val_loss"][0]})
    ]
    assert [event.epoch for event in events(run, "epoch_end")] == [1.0, 2.0, 3.0]
    assert [event.epoch for event in events(run, "epoch_begin")] == [0.0, 1.0, 2.0]


def test_the_config_has_what_the_model_was_compiled_with(tmp_path: Path) -> None:
    """Optimizer, loss, size of the batch and of the model; the caller's own is added."""
    model = tiny_model()
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    fit(model, [SteptapeCallback(tmp_path / "runs", config={"note": "first"})])

    config = newest(tmp_path).info.config
    assert config["optimizer"]["class"] == "Adam"
    assert config["optimizer"]["learning_rate"] == pytest.approx(0.01)
    assert config["model"]["num_parameters"] == 25
    assert {name: config[name] for name in ("loss", "epochs", "batch_size", "backend", "note")} == {
        "loss": "mse",
        "epochs": 3,
        "batch_size": 4,
        "backend": "torch",
        "note": "first",
    }


def test_data_without_a_length_have_a_plan_after_the_first_epoch(tmp_path: Path) -> None:
    """Before it nobody knows the length."""

    def generated() -> Any:
        for _ in range(3 * BATCHES):
            yield X[:4], Y[:4]

    tiny_model().fit(generated(), epochs=2, verbose=0, callbacks=[SteptapeCallback(tmp_path / "runs")])

    run = newest(tmp_path)
    plans = [event.attrs for event in events(run, "plan") if "total_steps" in event.attrs]
    assert run.info.last.plan.steps_per_epoch is None
    assert [plan["steps_per_epoch"] for plan in plans][:1] == [3 * BATCHES]


def test_a_rule_stops_at_the_step_that_a_backtest_predicts(tmp_path: Path) -> None:
    """In the middle of an epoch: Keras asks after each batch. It validates once more, and leaves the loop."""
    rules = ["stop if loss < 1.5 for 2 steps"]
    free, live = tmp_path / "free", tmp_path / "live"
    fit(tiny_model(), [SteptapeCallback(free / "runs")])
    (predicted,) = backtest(load_policy(rules), [newest(free)]).results
    fit(tiny_model(), [SteptapeCallback(live / "runs", rules=rules)])

    run = newest(live)
    assert predicted.predicted is not None
    assert predicted.predicted.steps == run.info.last.steps == len(events(run))
    assert run.info.last.steps % BATCHES != 0
    assert (run.status, verify(run).identical) == ("stopped", True)


@pytest.mark.parametrize(("patience", "min_delta", "mode"), [(1, 0.0, "auto"), (3, 0.02, "min"), (2, 0.0, "max")])
def test_early_stopping_stops_at_the_epoch_at_which_that_of_keras_does(
    tmp_path: Path, patience: int, min_delta: float, mode: str
) -> None:
    """In one real training each, whose validation is noisy."""
    theirs = keras.callbacks.EarlyStopping("val_loss", patience=patience, min_delta=min_delta, mode=mode)
    expected = len(fit(tiny_model(keras.optimizers.SGD(0.25), dropout=0.5), [theirs], epochs=60)["loss"])
    params: dict[str, Any] = {"metric": "val_loss", "patience": patience, "min_gain": min_delta, "mode": mode}
    rules = load_policy("early_stopping", params=params)
    callback = SteptapeCallback(tmp_path / "runs", rules=rules, save_to=tmp_path / "saved")
    stopped = len(fit(tiny_model(keras.optimizers.SGD(0.25), dropout=0.5), [callback], epochs=60)["loss"])

    assert stopped == expected < 60
    assert newest(tmp_path).status == "stopped"


def test_a_training_that_another_callback_stops_is_stopped(tmp_path: Path) -> None:
    """Keras does not say which one it was."""
    fit(tiny_model(), [SteptapeCallback(tmp_path / "runs"), keras.callbacks.EarlyStopping(min_delta=1e9, patience=1)])

    run = newest(tmp_path)
    assert (run.status, run.info.last.reason, run.info.last.steps) == ("stopped", "model.stop_training", 2 * BATCHES)


RULES = ["save if step == 16", "log if loss < 1.0"]


def test_a_resume_from_a_checkpoint_continues_the_run_as_if_it_had_not_been_cut(tmp_path: Path) -> None:
    """Losses, weights and decisions; the state is in a file beside the checkpoint."""

    def training(store: str, **arguments: Any) -> SteptapeCallback:
        return SteptapeCallback(tmp_path / store / "runs", rules=RULES, save_to=tmp_path / store, **arguments)

    steady: dict[str, Any] = {"shuffle": False, "epochs": 4}
    losses: list[float] = []
    unsplit = tiny_model(keras.optimizers.Adam(0.05), dropout=0.0)
    unsplit.compile(keras.optimizers.Adam(0.05), loss="mse")
    fit(unsplit, [training("unsplit")], **steady)
    cut = tiny_model(dropout=0.0)
    cut.compile(keras.optimizers.Adam(0.05), loss="mse")
    fit(cut, [training("cut")], **steady | {"epochs": 2})
    saved = tmp_path / "cut" / "steptape-step=16.keras"
    resumed = keras.models.load_model(saved)
    fit(resumed, [training("cut", checkpoint=saved)], initial_epoch=2, **steady)

    whole, split = newest(tmp_path / "unsplit"), newest(tmp_path / "cut")
    assert not losses
    assert [attempt.from_step for attempt in split.info.attempts] == [None, 16]
    assert values(split, "loss") == values(whole, "loss")
    assert are_equal(resumed, unsplit)
    assert decisions(split) == decisions(whole) != []
    assert verify(split).identical


PROGRAM = """
import os, signal, sys
os.environ["KERAS_BACKEND"] = "torch"
import keras
from frameworks.test_keras import fit, tiny_model
from steptape.integrations.keras import SteptapeCallback

class Killing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

model = tiny_model(dropout=0.0)
model.compile(keras.optimizers.SGD(0.05), loss="mse")
backup = keras.callbacks.BackupAndRestore("backup")
ours = SteptapeCallback("runs", checkpoint="backup/latest.weights.h5")
fit(model, [ours, backup, Killing()], shuffle=False)
"""


def test_a_killed_training_that_keras_restores_continues_its_run(tmp_path: Path) -> None:
    """The program is the same at each start. Its first attempt is killed in the second epoch."""
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    ends = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, at], cwd=tmp_path, env=environment, timeout=PATIENCE_S
        ).returncode
        for at in ("13", "-1")
    ]
    whole = tiny_model(dropout=0.0)
    whole.compile(keras.optimizers.SGD(0.05), loss="mse")
    fit(whole, [SteptapeCallback(tmp_path / "whole" / "runs")], shuffle=False)

    run = newest(tmp_path)
    assert ends == [-signal.SIGKILL, 0]
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 8]
    assert values(run, "loss") == values(newest(tmp_path / "whole"), "loss")
    assert run.status == "completed"


def test_the_next_fit_of_a_model_continues_its_run_and_another_model_has_a_run_of_its_own(tmp_path: Path) -> None:
    """As long as the callback is the same."""
    callback, model = SteptapeCallback(tmp_path / "runs"), tiny_model()
    fit(model, [callback], epochs=1)
    fit(model, [callback], epochs=2, initial_epoch=1)
    fit(tiny_model(), [callback], epochs=1)

    runs = sorted(open_store(tmp_path / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    assert [(len(run.info.attempts), run.info.last.steps) for run in runs] == [(2, 16), (1, 8)]
    assert [event.epoch for event in events(runs[0], "epoch_end")] == [1.0, 2.0]


class Failing(keras.callbacks.Callback):
    """Raises after five updates."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 5:
            raise self.error


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("lost"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_an_exception_within_training_ends_the_run(tmp_path: Path, error: BaseException, status: str) -> None:
    """The model is left as it was: its methods are its class's."""
    callback, model = SteptapeCallback(tmp_path / "runs"), tiny_model()
    with pytest.raises(type(error)), callback.training():
        fit(model, [callback, Failing(error)])

    run = newest(tmp_path)
    assert (run.status, run.info.last.steps, "save" in vars(model)) == (status, 5, False)
    assert type(error).__name__ in str(run.info.last.failure)


def test_a_cell_that_is_run_again_after_an_interrupt_ends_the_run_of_the_first_time(tmp_path: Path) -> None:
    """Its callback is a new one, of the same model."""
    model = tiny_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [SteptapeCallback(tmp_path / "runs", name="first"), Failing(KeyboardInterrupt())])
    fit(model, [SteptapeCallback(tmp_path / "runs", name="second")])

    ends = {run.info.name: (run.status, run.info.last.reason) for run in open_store(tmp_path / "runs")}
    assert ends == {"first": ("failed", "fit() did not reach its end"), "second": ("completed", None)}


def test_of_two_callbacks_of_a_fit_the_last_one_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All of it, in one run; a warning says so."""
    fit(tiny_model(), [SteptapeCallback(tmp_path / "runs", name=name) for name in ("first", "second")])

    steps = {run.info.name: len(events(run)) for run in open_store(tmp_path / "runs")}
    assert steps == {"first": 0, "second": 3 * BATCHES}
    assert "an earlier callback still records this model" in caplog.text


def test_rules_change_the_rate_of_an_update_and_keras_keeps_its_own(tmp_path: Path) -> None:
    """The weights are those of a training whose own callback sets these rates."""

    class ByHand(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            step = int(self.model.optimizer.iterations)
            self.model.optimizer.learning_rate.assign(0.025 if 4 <= step < 7 else 0.05)

    by_hand = tiny_model()
    fit(by_hand, [ByHand()], epochs=1)
    steered = tiny_model()
    rules = ["lr.scale(0.5) if step == 4 once", "lr.restore() if step == 7 once"]
    fit(steered, [SteptapeCallback(tmp_path / "runs", rules=rules)], epochs=1)

    assert are_equal(steered, by_hand)
    rates = values(newest(tmp_path), "lr")
    assert rates == pytest.approx([0.05] * 4 + [0.025] * 3 + [0.05])
    assert float(steered.optimizer.learning_rate) == pytest.approx(0.05)


def test_a_schedule_of_keras_cannot_be_changed_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The training is the same as without the rule; its rates are recorded as each update used them."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)
    rules = ["lr.scale(0.5) if step == 4 once"]
    fit(tiny_model(keras.optimizers.SGD(schedule)), [SteptapeCallback(tmp_path / "runs", rules=rules)], epochs=1)

    assert values(newest(tmp_path), "lr") == pytest.approx([0.05 * 0.5**step for step in range(BATCHES)])
    assert "no LearningRateSchedule" in caplog.text


def test_an_ordered_checkpoint_opens_and_of_several_the_newest_are_left(tmp_path: Path) -> None:
    """With the state beside each; a checkpoint of Keras's own is recorded as well and stays."""
    rules = ["save if step in [2, 4, 8]"]
    callback = SteptapeCallback(tmp_path / "runs", rules=rules, save_to=tmp_path / "saved", keep=1)
    theirs = keras.callbacks.ModelCheckpoint(tmp_path / "epoch-{epoch}.weights.h5", save_weights_only=True)
    model = tiny_model()
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    fit(model, [callback, theirs], epochs=1)

    names = [Path(event.attrs["path"]).name for event in events(newest(tmp_path), "save")]
    assert names == [*(f"steptape-step={step}.keras" for step in (2, 4, 8)), "epoch-1.weights.h5"]
    left = [path.name for path in (tmp_path / "saved").iterdir()]
    assert sorted(left) == ["steptape-step=8.keras", "steptape-step=8.keras.steptape.json"]
    assert are_equal(keras.models.load_model(tmp_path / "saved" / "steptape-step=8.keras"), model)
    assert json.loads((tmp_path / "epoch-1.weights.h5.steptape.json").read_text())["step"] == 8
    with pytest.raises(TelemetryError, match="keep must be a whole number from 1"):
        SteptapeCallback(tmp_path / "runs", keep=0)


def test_an_ordered_evaluation_changes_nothing_of_the_training(tmp_path: Path) -> None:
    """Neither the metrics of the epoch nor the weights, with dropout."""
    free = tiny_model()
    history = fit(free)
    evaluated = tiny_model()
    rules, held_out = ["evaluate if step == 3"], (X[:8], Y[:8])
    callback = SteptapeCallback(tmp_path / "runs", rules=rules, validation_data=held_out)

    assert fit(evaluated, [callback]) == history
    assert are_equal(free, evaluated)
    assert [event.step for event in events(newest(tmp_path), "evaluate")] == [3, 8, 16, 24]


def test_batches_that_an_optimizer_accumulates_are_one_step(tmp_path: Path) -> None:
    """Its loss is their mean, and the last group of an epoch ends in the next one."""
    losses: list[float] = []
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=3)
    fit(tiny_model(optimizer, losses=losses), [SteptapeCallback(tmp_path / "runs")], validation_data=None)

    run = newest(tmp_path)
    assert int(optimizer.iterations) == run.info.last.steps == BATCHES
    assert values(run, "loss") == pytest.approx([sum(losses[n : n + 3]) / 3 for n in range(0, 24, 3)])
    assert (run.info.last.plan.steps_per_epoch, events(run, "plan")[0].attrs["total_steps"]) == (None, BATCHES)


def test_an_update_that_a_scaler_of_the_loss_leaves_out_is_not_applied(tmp_path: Path) -> None:
    """As under mixed precision, until the scale is low enough."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=1e38)
    fit(tiny_model(optimizer), [SteptapeCallback(tmp_path / "runs")], epochs=1)

    run = newest(tmp_path)
    skipped = [event.step for event in events(run) if event.attrs.get("applied") is False]
    assert 0 < len(skipped) < BATCHES
    assert int(optimizer.iterations) == BATCHES - len(skipped)


def test_a_recorder_that_fails_changes_no_weight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the sixth step no file may grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))

    free = tiny_model()
    history = fit(free)
    recorded = tiny_model()
    try:
        recorded_history = fit(recorded, [SteptapeCallback(tmp_path / "runs"), Filling()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert recorded_history == history
    assert are_equal(free, recorded)
    assert 5 <= len(events(newest(tmp_path))) < 3 * BATCHES
    assert "File too large" in caplog.text


@pytest.mark.parametrize("lacking", ["optimizer", "metrics", "count_params", "stop_training"])
def test_what_an_unknown_version_lacks_is_named_and_training_reaches_its_end(
    tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A model without one of its attributes, as our hooks see it."""

    class Lacking:
        def __init__(self, model: Any) -> None:
            self.__dict__["_model"] = model

        def __getattr__(self, name: str) -> Any:
            if name == lacking:
                raise AttributeError(f"'Model' object has no attribute '{name}'")
            return getattr(self._model, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._model, name, value)

    class Ours(SteptapeCallback):
        @property
        def model(self) -> Any:
            return Lacking(super().model)

    assert len(fit(tiny_model(), [Ours(tmp_path / "runs")])["loss"]) == 3
    assert lacking in caplog.text


@pytest.mark.parametrize("argument", [{"rules": "no_such_policy"}, {"total_step": 3}])
def test_what_the_recorder_refuses_ends_the_training_at_its_start(tmp_path: Path, argument: dict[str, Any]) -> None:
    """A mistake in an argument must not cost a night without a log."""
    with pytest.raises((TelemetryError, TypeError), match=r"no_such_policy|total_step"):
        fit(tiny_model(), [SteptapeCallback(tmp_path / "runs", **argument)])


def test_the_page_trains_as_it_shows(tmp_path: Path) -> None:
    """Its blocks that need keras run here."""
    assert run_page(TESTS.parent / "docs" / "how-to" / "keras.md", tmp_path) == []

    assert {run.status for run in open_store(tmp_path / "runs")} <= {"completed", "stopped"}
