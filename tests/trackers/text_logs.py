"""Runs tools whose logs are text, with their output in a file, and records what they measured by their own means.

Texts round. What a tool's callback got is therefore compared as the tool writes it, never as the importer reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, str]]]

#: Rounds or epochs of each training.
EPOCHS = 4


def told(values: Iterator[tuple[str, int, str]]) -> Series:
    """Group numbers as texts by metric, as steps and bits."""
    series: Series = {}
    for name, step, text in values:
        series.setdefault(name, []).append((step, float(text).hex()))
    return series


@contextlib.contextmanager
def output_in(path: Path) -> Iterator[None]:
    """Redirect the process's standard output, that of its libraries in C included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    held = os.dup(1)
    with open(path, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(held, 1)
            os.close(held)


def write_keras(folder: Path) -> dict[str, Series]:
    """Fit with a progress bar, and with a line per epoch; each evaluates and then predicts, as scripts do."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np

    found = {}
    x = np.linspace(0, 1, 64)[:, None]
    for name, verbose in (("bar.log", 1), ("lines.log", 2)):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        with output_in(folder / name):
            history = model.fit(x, 2 * x, validation_split=0.25, epochs=EPOCHS, batch_size=4, verbose=verbose).history
            model.evaluate(x, 2 * x, batch_size=4, verbose=verbose)
            model.predict(x, verbose=verbose)
        found[name] = told(
            (metric, epoch, f"{value:.4f}" if abs(value) > 1e-3 else f"{value:.4e}")
            for metric, values in history.items()
            for epoch, value in enumerate(values, start=1)
        )
    return found


def write_lightgbm(folder: Path) -> dict[str, Series]:
    """Boost with two metrics on two sets, and write every second round."""
    import lightgbm
    import numpy as np

    x = np.linspace(0, 1, 200)[:, None]
    train = lightgbm.Dataset(x, (x[:, 0] > 0.5).astype(int))
    history: dict[str, dict[str, list[float]]] = {}
    with output_in(folder / "train.log"):
        lightgbm.train(
            {"objective": "binary", "metric": ["binary_logloss", "auc"]}, train, 6,
            valid_sets=[train, train.create_valid(x, (x[:, 0] > 0.4).astype(int))], valid_names=["training", "valid"],
            callbacks=[lightgbm.log_evaluation(2), lightgbm.record_evaluation(history)],
        )  # fmt: skip
    return {
        "train.log": told(
            (f"{name}'s {metric}", step, f"{values[step - 1]:g}")
            for name, metrics in history.items()
            for metric, values in metrics.items()
            for step in (2, 4, 6)
        )
    }


def write_xgboost(folder: Path) -> dict[str, Series]:
    """Boost with two sets, and write every round."""
    import numpy as np
    import xgboost

    x = np.linspace(0, 1, 200)[:, None]
    data = xgboost.DMatrix(x, 2 * x[:, 0])
    history: dict[str, dict[str, list[float]]] = {}
    with output_in(folder / "train.log"):
        xgboost.train({}, data, EPOCHS, evals=[(data, "train"), (data, "eval")], evals_result=history)
    return {
        "train.log": told(
            (f"{name}-{metric}", step, f"{value:.5f}")
            for name, metrics in history.items()
            for metric, values in metrics.items()
            for step, value in enumerate(values)
        )
    }


def write_trainer(folder: Path) -> dict[str, Series]:
    """Train with transformers, and keep what it prints: a row has no step, so training rows are counted."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
    tokens = [torch.randint(0, 16, (8,)) for _ in range(16)]
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=8, logging_steps=2, eval_strategy="steps", eval_steps=4,
        save_strategy="no", per_device_train_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    printed: list[dict[str, Any]] = []
    with output_in(folder / "train.log"):
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
    rows = 0
    for row in trainer.state.log_history:
        rows += "loss" in row
        printed.append({"row": rows, **row})
    shown = [
        (name, row["row"], f"{value:.4g}" if isinstance(value, float) else str(value))
        for row in printed
        for name, value in row.items()
        if name not in ("row", "step", "epoch", "total_flos")  # It does not print the last.
    ]
    return {"train.log": told(iter(shown))}


MMENGINE = """
import sys, torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner

class Line(BaseModel):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def forward(self, x, y, mode):
        return {"loss": ((self.line(x) - y) ** 2).mean()} if mode == "loss" else [self.line(x), y]

class Error(BaseMetric):
    def process(self, batch, samples):
        self.results.append(float(((samples[0] - samples[1]) ** 2).mean()))
    def compute_metrics(self, results):
        return {"error": sum(results) / len(results)}

x = torch.arange(32.0)[:, None] / 32
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4)
Runner(
    model=Line(), work_dir=sys.argv[1], train_dataloader=loader, val_dataloader=loader, val_cfg={},
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}}, val_evaluator={"type": Error},
    train_cfg={"by_epoch": True, "max_epochs": 3, "val_interval": 1},
    default_hooks={"logger": {"type": "LoggerHook", "interval": 3}},
).train()
"""


def write_mmengine(folder: Path) -> dict[str, Series]:
    """Run MMEngine's runner; its own ``scalars.json`` has what its text log rounds."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-W", "ignore", "-c", MMENGINE, str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (path,) = folder.glob("*/*.log")
    (scalars,) = folder.glob("*/vis_data/scalars.json")
    shown = []
    newest = 0
    for row in map(json.loads, scalars.read_text().splitlines()):
        is_training = "loss" in row
        newest = row["step"] if is_training else 8 * row["step"]
        for name, value in row.items():
            if name not in ("epoch", "iter", "step"):
                prefix = "" if is_training else "val/"
                shown.append((prefix + name, newest, f"{value:.4e}" if name in ("lr", "base_lr") else f"{value:.4f}"))
    scalars.unlink()  # It is another source.
    return {str(path.relative_to(folder)): told(iter(shown))}


TEXT_TOOLS = {
    "keras-text": write_keras,
    "lightgbm-text": write_lightgbm,
    "xgboost-text": write_xgboost,
    "trainer-text": write_trainer,
    "mmengine-text": write_mmengine,
}
