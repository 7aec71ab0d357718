"""Writes runs with real trackers and records what the same tools read back, in an environment that has them.

``python -m trackers.writing OUT REAL`` writes one folder per tool below OUT. ``OUT/expected.json`` maps each run's
source below OUT to step and bits of every value. The event files and W&B runs below REAL are read, too.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackers.loops import LOOPS
from trackers.text_logs import TEXT_TOOLS

STEPS = 8

#: Every special case of a float.
SPECIAL = {2: math.nan, 3: math.inf, 4: -math.inf, 5: 5e-324, 6: -0.0}

Series = dict[str, list[tuple[int, str]]]


def value(step: int) -> float:
    """Return the value logged at a step."""
    return SPECIAL.get(step, 1 / (step + 3))


def taken(values: Iterator[tuple[str, int, float]]) -> Series:
    """Group values by metric, as steps and bits."""
    series: Series = {}
    for name, step, number in values:
        series.setdefault(name, []).append((int(step), float(number).hex()))
    return series


def write_tensorboard(folder: Path) -> dict[str, Series]:
    """Write both versions of scalars, as torch's summary writer makes them."""
    from torch.utils.tensorboard import SummaryWriter

    for name, is_new in (("v1", False), ("v2", True)):
        with SummaryWriter(str(folder / name)) as writer:
            for step in range(STEPS):
                writer.add_scalar("train/loss", value(step), step, new_style=is_new)
                writer.add_scalar("val/loss", value(step) * 2, step, new_style=is_new, double_precision=is_new)
    return {name: accumulated(folder / name) for name in ("v1", "v2")}


def accumulated(path: Path) -> Series:
    """Return TensorBoard's own reading: its scalars, and its tensors of one number."""
    from tensorboard.backend.event_processing.event_accumulator import STORE_EVERYTHING_SIZE_GUIDANCE, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(path), size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
    events.Reload()

    def values() -> Iterator[tuple[str, int, float]]:
        for tag in events.Tags()["scalars"]:
            for entry in events.Scalars(tag):
                yield tag, entry.step, entry.value
        for tag in events.Tags()["tensors"]:
            for entry in events.Tensors(tag):
                array = make_ndarray(entry.tensor_proto)
                if array.size == 1 and array.dtype.kind in "fiu":
                    yield tag, entry.step, array.item()

    return taken(values())


def write_wandb(folder: Path) -> dict[str, Series]:
    """Write offline runs, with nested keys and one failed run."""
    import wandb

    for index in range(2):
        run = wandb.init(project="p", mode="offline", dir=str(folder), name=f"run-{index}", config={"lr": 0.1})
        for step in range(STEPS):
            run.log({"train/loss": value(step), "nested": {"acc": step}, "note": "text"}, step=step * 10)
            if step % 4 == 3:
                run.log({"val/loss": value(step) * 2}, step=step * 10)
        run.finish(exit_code=index)
    wandb.teardown()  # Until then its process may hold back output.
    return {str(path.relative_to(folder)): scanned(path) for path in sorted(folder.glob("wandb/offline-*/*.wandb"))}


def scanned(path: Path) -> Series:
    """Return the histories as W&B's own reader of its files finds them."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(path))

    def rows() -> Iterator[dict[str, Any]]:
        while True:
            try:
                content = store.scan_data()
            except AssertionError:
                return  # The file ends within a record.
            if content is None:
                return
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
                yield {"_step": record.history.step.num, **row}

    def values() -> Iterator[tuple[str, int, float]]:
        for row in rows():
            for name, entry in row.items():
                leaves = (
                    {f"{name}.{key}": leaf for key, leaf in entry.items()} if isinstance(entry, dict) else {name: entry}
                )
                for leaf, held in leaves.items():
                    number = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(str(held), held)
                    if not name.startswith("_") and isinstance(number, (int, float)) and not isinstance(number, bool):
                        yield leaf, row["_step"], number

    return taken(values())


def write_mlflow(folder: Path) -> dict[str, Series]:
    """Write both local stores."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    found = {}
    for name, uri in (("mlruns", f"file://{folder / 'mlruns'}"), ("mlflow.db", f"sqlite:///{folder / 'mlflow.db'}")):
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("exp")
        with mlflow.start_run(run_name="r") as run:
            mlflow.log_param("lr", 0.1)
            for step in range(STEPS):
                mlflow.log_metric("loss", value(step), step=step)
                mlflow.log_metric("val/loss", value(step) * 2, step=step)
        client = mlflow.MlflowClient()
        history = [
            (metric.key, metric.step, metric.value)
            for key in ("loss", "val/loss")
            for metric in client.get_metric_history(run.info.run_id, key)
        ]
        is_database = name.endswith(".db")
        found[name if is_database else f"{name}/{run.info.experiment_id}/{run.info.run_id}"] = taken(iter(history))
    return found


def write_trackio(folder: Path) -> dict[str, Series]:
    """Write a project of one run."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project="p", name="r", config={"lr": 0.1})
    for step in range(STEPS):
        trackio.log({"loss": value(step), "val": {"loss": value(step) * 2}}, step=step * 10)
    trackio.finish()
    logged = [("loss", step * 10, value(step)) for step in range(STEPS)]
    return {"p.db": taken(iter(logged + [("val/loss", step * 10, value(step) * 2) for step in range(STEPS)]))}


def write_lightning(folder: Path) -> dict[str, Series]:
    """Run a real fit with the CSV logger."""
    import lightning
    import torch
    from lightning.pytorch.loggers import CSVLogger

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = ((self.line(batch[0]) - batch[1]) ** 2).mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", ((self.line(batch[0]) - batch[1]) ** 2).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    x = torch.arange(16.0)[:, None] / 16
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4)
    trainer = lightning.Trainer(
        logger=CSVLogger(str(folder)), max_epochs=3, log_every_n_steps=2, enable_progress_bar=False,
        enable_checkpointing=False, accelerator="cpu", enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Line(), loader, loader)
    (path,) = folder.rglob("metrics.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [(name, int(row["step"]), float(row[name])) for row in rows for name in row if row[name] and name != "step"]
    return {str(path.relative_to(folder)): taken(iter(cells))}


def write_transformers(folder: Path) -> dict[str, Series]:
    """Train a tiny random model, with evaluations and checkpoints."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
    tokens = [torch.randint(0, 16, (8,)) for _ in range(16)]
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=8, logging_steps=2, eval_strategy="steps", eval_steps=4, save_steps=4,
        per_device_train_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.save_state()
    numbers = [
        (name, row["step"], held)
        for row in trainer.state.log_history
        for name, held in row.items()
        if name not in ("step", "epoch")
    ]
    return {"out": taken(iter(numbers))}


def write_optuna(folder: Path) -> dict[str, Series]:
    """Run a study whose trials report values, one of them pruned; each trial names its series."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.suggest_categorical("optimizer", ["sgd", "adam"])
        for step in range(STEPS):
            trial.report(value(step) if math.isfinite(value(step)) else math.inf, step)
            if trial.number == 2 and step == 4:
                raise optuna.TrialPruned
        return float(x)

    folder.mkdir(parents=True)
    study = optuna.create_study(storage=f"sqlite:///{folder / 'study.db'}", study_name="s")
    study.optimize(objective, n_trials=3)
    reports = [
        (f"trial-{trial.number}", step, reported)
        for trial in study.trials
        for step, reported in sorted(trial.intermediate_values.items())
    ]
    return {"study.db": taken(iter(reports))}


TOOLS: dict[str, Callable[[Path], dict[str, Series]]] = {
    "tensorboard": write_tensorboard,
    "wandb": write_wandb,
    "mlflow": write_mlflow,
    "trackio": write_trackio,
    "lightning": write_lightning,
    "transformers": write_transformers,
    "optuna": write_optuna,
    **LOOPS,
    **TEXT_TOOLS,
}


def main(out: Path, real: Path) -> None:
    """Write with every tool, and read the real logs."""
    out, real = out.resolve(), real.resolve()
    expected: dict[str, Series] = {}
    for tool, write in TOOLS.items():
        expected.update({f"{tool}/{path}": series for path, series in write(out / tool).items()})
    for path in sorted(real.glob("tfevents/*/*")):
        expected[str(path.parent)] = accumulated(path)
    for path in sorted(real.glob("wandb/*/*.wandb")):
        expected[str(path)] = scanned(path)
    (out / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
