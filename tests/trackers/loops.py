"""Runs real trainings of frameworks with logs of their own, and records what a plain parser reads back from them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Values = Iterator[tuple[str, int, float]]
Series = dict[str, list[tuple[int, str]]]


def table(path: Path, step: str, left_out: frozenset[str] = frozenset()) -> Values:
    """Yield every number of a table: name, step and value."""
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            for name, cell in row.items():
                if name != step and cell and name not in left_out:
                    yield name, int(row[step]), float(cell)


def series(values: Values) -> Series:
    """Group values by name, as steps and bits."""
    found: Series = {}
    for name, step, value in values:
        found.setdefault(name, []).append((step, value.hex()))
    return found


def write_keras(folder: Path) -> dict[str, Series]:
    """Fit a line; its History becomes JSON and CSV as users write them."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np
    import pandas as pd

    folder.mkdir(parents=True)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.arange(16, dtype="float32")[:, None] / 16
    logger = keras.callbacks.CSVLogger(str(folder / "logger.csv"))
    history = model.fit(x, 2 * x, epochs=4, validation_split=0.25, verbose=0, callbacks=[logger]).history
    (folder / "lists.json").write_text(json.dumps(history))
    frame = pd.DataFrame(history)
    frame.to_csv(folder / "frame.csv")
    frame.to_json(folder / "frame.json", double_precision=15)
    exact = series((name, step, value) for name, values in history.items() for step, value in enumerate(values))
    read = json.loads((folder / "frame.json").read_text())
    rounded = series((name, int(step), value) for name, values in read.items() for step, value in values.items())
    return {"lists.json": exact, "frame.csv": exact, "logger.csv": exact, "frame.json": rounded}


def write_stable_baselines(folder: Path) -> dict[str, Series]:
    """Train two algorithms: their logs, the monitors of two environments, and the evaluations."""
    import numpy as np
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.monitor import load_results

    watched = folder / "watched"
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=str(watched))
    model = PPO("MlpPolicy", envs, n_steps=64, seed=0, device="cpu")
    model.set_logger(configure(str(folder / "ppo"), ["csv"]))
    evaluation = make_vec_env("CartPole-v1", n_envs=1, seed=1)
    model.learn(512, EvalCallback(evaluation, eval_freq=64, log_path=str(watched), n_eval_episodes=3, verbose=0))
    dqn = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    dqn.set_logger(configure(str(folder / "dqn"), ["csv"]))
    dqn.learn(400)

    def of_folder() -> Values:
        episodes = load_results(str(watched))
        for step, reward, length in zip(episodes.l.cumsum(), episodes.r, episodes.l, strict=True):
            yield from (("r", int(step), float(reward)), ("l", int(step), float(length)))
        with np.load(watched / "evaluations.npz") as arrays:
            for name, array in (("eval/mean_reward", "results"), ("eval/mean_ep_length", "ep_lengths")):
                for step, values in zip(arrays["timesteps"], arrays[array], strict=True):
                    yield name, int(step), float(np.mean(values))

    clock, step = frozenset(("time/time_elapsed",)), "time/total_timesteps"
    logs = {
        f"{name}/progress.csv": series(table(folder / name / "progress.csv", step, clock)) for name in ("ppo", "dqn")
    }
    return {"watched": series(of_folder()), **logs}


def write_mmengine(folder: Path) -> dict[str, Series]:
    """Run its loops by epochs and by iterations; rows of evaluation count either."""
    import torch
    from mmengine.evaluator import BaseMetric
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Line(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x: Any, y: Any, mode: str = "tensor") -> Any:
            return {"loss": ((self.line(x) - y) ** 2).mean()} if mode == "loss" else (self.line(x), y)

    class Error(BaseMetric):
        default_prefix = "line"

        def process(self, _: Any, outputs: Any) -> None:
            self.results.append(float(((outputs[0] - outputs[1]) ** 2).mean()))

        def compute_metrics(self, results: list[float]) -> dict[str, float]:
            return {"mse": sum(results) / len(results)}

    x = torch.arange(24.0)[:, None] / 24
    data = torch.utils.data.TensorDataset(x, 2 * x)
    loops: dict[str, dict[str, Any]] = {
        "epochs": {"by_epoch": True, "max_epochs": 4},
        "iterations": {"by_epoch": False, "max_iters": 18, "val_interval": 6},
    }
    found = {}
    for name, loop in loops.items():
        Runner(
            Line(), str(folder / name), *(torch.utils.data.DataLoader(data, batch_size=4) for _ in range(2)),
            train_cfg=loop, val_cfg={}, val_evaluator={"type": Error},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
            default_hooks={"logger": {"type": "LoggerHook", "interval": 4, "log_metric_by_epoch": loop["by_epoch"]}},
            log_processor={"window_size": 2, "by_epoch": loop["by_epoch"]}, experiment_name=name, log_level="ERROR",
        ).train()  # fmt: skip
        (path,) = (folder / name).rglob("scalars.json")
        found[str(path.relative_to(folder))] = series(scalars(path))
    return found


def scalars(path: Path) -> Values:
    """Yield the values of MMEngine's log: an evaluation after an epoch has the step of the training row before it."""
    newest = 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        newest = step = step if "iter" in row else max(step, newest)
        for name, value in row.items():
            yield name, step, float(value)


def write_rllib(folder: Path) -> dict[str, Series]:
    """Tune one trial of PPO, with the loggers that it has by default."""
    import ray
    from ray import tune
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    setup = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    setup = setup.training(train_batch_size=200, minibatch_size=64, num_epochs=1).evaluation(evaluation_interval=1)
    run = tune.RunConfig(stop={"training_iteration": 3}, storage_path=str(folder), name="ppo")
    tune.Tuner("PPO", param_space=setup, run_config=run).fit()
    ray.shutdown()
    (path,) = folder.rglob("progress.csv")

    def values() -> Values:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                step = int(row.pop("training_iteration"))
                for name, cell in row.items():
                    if name not in ("timestamp", "time_total_s"):
                        try:
                            yield name, step, float(cell)
                        except ValueError:
                            continue  # Text: a date, a host.

    return {str(path.relative_to(folder)): series(values())}


LOOPS: dict[str, Callable[[Path], dict[str, Series]]] = {
    "keras": write_keras,
    "stable_baselines": write_stable_baselines,
    "mmengine": write_mmengine,
    "rllib": write_rllib,
}
