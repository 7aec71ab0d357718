"""Stable-Baselines3, recorded and steered: what a step is, what it does at an order, and how its runs end."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed; 'make frameworks' runs this")

import gymnasium
import torch
from documents import run_page
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback

from steptape import TelemetryError, backtest, load_policy, open_store, verify
from steptape.integrations.stable_baselines3 import SteptapeCallback
from steptape.store.events import Event
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

TESTS = Path(__file__).parents[1]
QUIET: dict[str, Any] = {"seed": 1, "device": "cpu"}


def ppo() -> Any:
    """Return a model with three updates for each rollout of 32 steps."""
    return PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=3, **QUIET)


def a2c() -> Any:
    """Return a model with one update for each five steps."""
    return A2C("MlpPolicy", "CartPole-v1", **QUIET)


def dqn() -> Any:
    """Return a model with one update for each four steps, after fifty."""
    return DQN("MlpPolicy", "CartPole-v1", learning_starts=50, buffer_size=500, **QUIET)


def sac() -> Any:
    """Return a model with one update for each step, after fifty."""
    return SAC("MlpPolicy", "Pendulum-v1", learning_starts=50, buffer_size=500, **QUIET)


#: Each with its steps of the environment, and the numbers of its first and its last update.
MODELS = [(ppo, 200, 3, 21), (a2c, 60, 1, 12), (dqn, 150, 1, 26), (sac, 80, 1, 30)]


class Noting(BaseCallback):
    """Notes what the logger holds of each update, when the next rollout begins."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def _on_rollout_start(self) -> None:
        row = {name: float(value) for name, value in self.logger.name_to_value.items() if name.startswith("train/")}
        if row and (not self.rows or row["train/n_updates"] != self.rows[-1]["train/n_updates"]):
            self.rows.append(row)

    def _on_step(self) -> bool:
        return True

    _on_training_end = _on_rollout_start


def evaluator(every: int = 64) -> EvalCallback:
    """Return a callback that evaluates two episodes."""
    return EvalCallback(gymnasium.make("CartPole-v1"), eval_freq=every, n_eval_episodes=2, verbose=0)


def newest(folder: Path) -> Run:
    """Return the newest run in a folder."""
    return max(open_store(folder / "runs"), key=lambda run: run.info.attempts[0].started_ns)


def events(run: Run, kind: str = "step_end") -> list[Event]:
    """Return the run's events of a kind."""
    return [event for event in run.events() if event.kind == kind]


def learn(folder: Path, callbacks: Sequence[Any] = (), steps: int = 200, **arguments: Any) -> tuple[Any, Run]:
    """Train PPO with the callback last, and return the model and its run."""
    model = ppo()
    ours = SteptapeCallback(folder / "runs", save_to=folder / "saved", **arguments)
    model.learn(steps, callback=[*callbacks, ours])
    return model, newest(folder)


def are_equal(one: Any, other: Any) -> bool:
    """Whether two models have the same weights, to the bit."""
    pairs = zip(one.policy.parameters(), other.policy.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(("make", "steps", "first", "last"), MODELS)
def test_a_recorded_training_is_the_same_to_the_bit(
    tmp_path: Path, make: Callable[[], Any], steps: int, first: int, last: int
) -> None:
    """Weights, and the losses that the model logs; the numbers of the steps are its ``n_updates``."""
    free, noting, beside = make(), Noting(), Noting()
    free.learn(steps, callback=noting)
    recorded = make()  # It seeds the random numbers of the process.
    recorded.learn(steps, callback=[beside, SteptapeCallback(tmp_path / "runs")])

    run = newest(tmp_path)
    assert are_equal(free, recorded)
    assert beside.rows == noting.rows != []
    logged = [name for name in noting.rows[0] if name.endswith("loss")]
    recorded_names = {name: "loss" if name == "train/loss" else name for name in logged}
    assert [[event.metrics[name] for name in recorded_names.values()] for event in events(run)] == [
        [row[name] for name in logged] for row in noting.rows
    ]
    assert [event.step for event in events(run)] == [row["train/n_updates"] for row in noting.rows]
    assert (events(run)[0].step, run.info.last.steps, run.status) == (first, last, "completed")
    assert run.info.last.plan.total_steps == last


def test_the_rollouts_are_what_the_logger_writes(tmp_path: Path) -> None:
    """Without what belongs to updates and evaluations, by the interval of the caller."""
    model, ours = ppo(), SteptapeCallback(tmp_path / "runs")
    model.learn(200, callback=[evaluator(), ours], log_interval=2)

    run = newest(tmp_path)
    logs = events(run, "log")
    assert [event.metrics["time/iterations"] for event in logs] == [2.0, 4.0, 6.0]
    assert all("rollout/ep_rew_mean" in event.metrics for event in logs)
    assert {name.split("/")[0] for event in logs for name in event.metrics} == {"rollout", "time"}
    assert [{*event.metrics} for event in events(run, "evaluate")] == [{"eval/mean_reward", "eval/mean_ep_length"}] * 3


def test_the_config_has_the_settings_of_the_model(tmp_path: Path) -> None:
    """And the environment's name."""
    config = learn(tmp_path, config={"note": "first"})[1].info.config

    names = ("algorithm", "n_epochs", "gamma", "policy", "env", "num_parameters", "note")
    assert [config[name] for name in names] == ["PPO", 3, 0.99, "ActorCriticPolicy", "CartPole-v1", 9155, "first"]


@pytest.mark.parametrize("make", [ppo, dqn, sac])
def test_a_rule_stops_at_the_step_that_a_backtest_predicts(tmp_path: Path, make: Callable[[], Any]) -> None:
    """The model makes no update more."""
    rules = ["stop if step >= 9"]
    free, live, model = tmp_path / "free", tmp_path / "live", make()
    make().learn(200, callback=SteptapeCallback(free / "runs"))
    (predicted,) = backtest(load_policy(rules), [newest(free)]).results
    model.learn(200, callback=SteptapeCallback(live / "runs", rules=rules))

    run = newest(live)
    assert predicted.predicted is not None
    assert predicted.predicted.steps == run.info.last.steps == model._n_updates == 9
    assert (run.status, verify(run).identical) == ("stopped", True)


def test_a_stop_that_follows_from_an_evaluation_holds_at_once(tmp_path: Path) -> None:
    """The callback is behind the one that evaluates."""
    rules = ["stop if 'eval/mean_reward' > 0"]
    model, run = learn(tmp_path, [evaluator(64)], rules=rules)

    assert (model.num_timesteps, run.info.last.steps, run.status) == (64, 3, "stopped")


def test_early_stopping_reads_the_reward(tmp_path: Path) -> None:
    """Greater is better, as ``mode`` says. It stops at the evaluation at which the rewards say so."""
    params: dict[str, Any] = {"metric": "eval/mean_reward", "patience": 2, "mode": "max"}
    run = learn(tmp_path, [evaluator(32)], steps=2000, rules=load_policy("early_stopping", params=params))[1]

    rewards = [event.metrics["eval/mean_reward"] for event in events(run, "evaluate")]
    best = rewards.index(max(rewards))
    assert (run.status, len(rewards)) == ("stopped", best + 3)


def test_a_checkpoint_resumes_its_run(tmp_path: Path) -> None:
    """From its step; the model counts its updates on, and so does the run."""
    rules = ["save if step == 9", "log if step % 6 == 0"]
    learn(tmp_path, rules=rules)
    model = PPO.load(tmp_path / "saved" / "steptape-step=9.zip", env=gymnasium.make("CartPole-v1"), device="cpu")
    callback = SteptapeCallback(tmp_path / "runs", save_to=tmp_path / "saved", rules=rules)
    model.learn(64, callback=callback, reset_num_timesteps=False)

    (run,) = open_store(tmp_path / "runs")
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 9]
    assert [event.step for event in events(run)] == [3, 6, 9, 12, 15] == [*range(3, model._n_updates + 1, 3)]
    assert run.info.last.newest_plan.total_steps == 15
    assert verify(run).identical


def test_learning_on_continues_the_run_and_a_new_count_begins_another(tmp_path: Path) -> None:
    """As Stable-Baselines3 counts its own steps, whichever callback records."""
    model = ppo()
    for resets in (True, False, True):
        callback = SteptapeCallback(tmp_path / "runs")
        model.learn(64, callback=callback, reset_num_timesteps=resets)

    runs = sorted(open_store(tmp_path / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    assert [(len(run.info.attempts), [event.step for event in events(run)]) for run in runs] == [
        (2, [3, 6, 9, 12]),
        (1, [3, 6]),
    ]


def test_ordered_checkpoints_and_those_of_others_are_recorded_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    """Of those that rules ordered, the newest is left."""
    others = CheckpointCallback(100, str(tmp_path / "others"))
    model, run = learn(tmp_path, [others], rules=["save if step in [3, 9]"], keep=1)

    names = [Path(event.attrs["path"]).name for event in events(run, "save")]
    assert names == ["steptape-step=3.zip", "steptape-step=9.zip", "rl_model_100_steps.zip", "rl_model_200_steps.zip"]
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["steptape-step=9.zip"]
    assert ("save" in vars(model), len(model.logger.output_formats)) == (False, 0)
    with pytest.raises(TelemetryError, match="keep must be a whole number from 1"):
        SteptapeCallback(tmp_path / "runs", keep=0)


def test_an_ordered_evaluation_is_made_by_the_callback_that_evaluates(tmp_path: Path) -> None:
    """After the next step of the environment. It evaluates as often as before from then on."""
    evaluation = evaluator(64)
    run = learn(tmp_path, [evaluation], rules=["evaluate if step == 3"])[1]

    assert [event.step for event in events(run, "evaluate")] == [3, 3, 9, 15]
    assert evaluation.eval_freq == 64


@pytest.mark.parametrize("make", [ppo, sac])
def test_rules_change_the_rate_of_the_updates_to_come(tmp_path: Path, make: Callable[[], Any]) -> None:
    """The weights are those of a model whose own schedule has these rates; its checkpoint has its own."""
    scheduled = make()
    schedule = scheduled.lr_schedule
    scheduled.lr_schedule = lambda left: schedule(left) * (0.5 if scheduled._n_updates >= 6 else 1.0)
    scheduled.learn(100)
    steered = make()
    rules = ["lr.scale(0.5) if step == 6 once", "save if step == 9"]
    steered.learn(100, callback=SteptapeCallback(tmp_path / "runs", rules=rules, save_to=tmp_path))

    rates = {event.step: event.metrics["lr"] for event in events(newest(tmp_path))}
    assert are_equal(steered, scheduled)
    assert rates[9] == rates[3] / 2
    assert type(steered).load(tmp_path / "steptape-step=9.zip").lr_schedule(1.0) == schedule(1.0)
    assert steered.lr_schedule(1.0) == schedule(1.0)


def test_a_training_that_another_callback_stops_is_stopped(tmp_path: Path) -> None:
    """Before its planned steps of the environment."""

    class Stopping(Noting):
        def _on_step(self) -> bool:
            return bool(self.num_timesteps < 70)

    run = learn(tmp_path, [Stopping()])[1]

    assert (run.status, run.info.last.reason, run.info.last.steps) == ("stopped", "another callback", 6)


class Failing(Noting):
    """Raises after 70 steps of the environment."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def _on_step(self) -> bool:
        if self.num_timesteps == 70:
            raise self.error
        return True


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("lost"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_an_exception_within_training_ends_the_run(tmp_path: Path, error: BaseException, status: str) -> None:
    """The model is left as it was."""
    callback, model = SteptapeCallback(tmp_path / "runs"), ppo()
    with pytest.raises(type(error)), callback.training():
        model.learn(200, callback=[Failing(error), callback])

    run = newest(tmp_path)
    assert (run.status, run.info.last.steps, "save" in vars(model)) == (status, 6, False)
    assert type(error).__name__ in str(run.info.last.failure)


def test_a_cell_that_is_run_again_after_an_interrupt_ends_the_run_of_the_first_time(tmp_path: Path) -> None:
    """Its callback is a new one, of the same model."""
    model = ppo()
    with pytest.raises(KeyboardInterrupt):
        model.learn(200, [Failing(KeyboardInterrupt()), SteptapeCallback(tmp_path / "runs", name="first")])
    model.learn(64, SteptapeCallback(tmp_path / "runs", name="second"))

    ends = {run.info.name: (run.status, run.info.last.reason) for run in open_store(tmp_path / "runs")}
    assert ends == {"first": ("failed", "learn() did not reach its end"), "second": ("completed", None)}


def test_a_recorder_that_fails_changes_no_weight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the tenth update no file may grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(Noting):
        def _on_step(self) -> bool:
            if self.num_timesteps == 90:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
            return True

    free = ppo()
    free.learn(200)
    try:
        recorded, run = learn(tmp_path, [Filling()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert are_equal(free, recorded)
    assert 2 <= len(events(run)) < 7
    assert "File too large" in caplog.text


@pytest.mark.parametrize("lacking", ["_n_updates", "logger", "_total_timesteps", "policy", "lr_schedule"])
def test_what_an_unknown_version_lacks_is_named_and_training_reaches_its_end(
    tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A model without one of its attributes, as our hooks see it."""

    class Lacking:
        def __init__(self, model: Any) -> None:
            self.__dict__["_model"] = model

        def __getattr__(self, name: str) -> Any:
            if name == lacking:
                raise AttributeError(f"'PPO' object has no attribute '{name}'")
            return getattr(self._model, name)

    class Ours(SteptapeCallback):
        def init_callback(self, model: Any) -> None:
            super().init_callback(Lacking(model))

    model = ppo()
    model.learn(64, callback=Ours(tmp_path / "runs", rules=["lr.scale(0.5) if step == 3 once"]))

    assert model.num_timesteps == 64
    assert lacking in caplog.text


@pytest.mark.parametrize("argument", [{"rules": "no_such_policy"}, {"total_step": 3}])
def test_what_the_recorder_refuses_ends_the_training_at_its_start(tmp_path: Path, argument: dict[str, Any]) -> None:
    """A mistake in an argument must not cost a night without a log."""
    with pytest.raises((TelemetryError, TypeError), match=r"no_such_policy|total_step"):
        learn(tmp_path, **argument)


def test_the_page_trains_as_it_shows(tmp_path: Path) -> None:
    """Its blocks that need stable_baselines3 run here."""
    assert run_page(TESTS.parent / "docs" / "how-to" / "stable-baselines3.md", tmp_path) == []

    assert {run.status for run in open_store(tmp_path / "runs")} == {"completed"}
