"""The same eight trainings, logged by W&B, MLflow, TensorBoard and Lightning, give the verdict of plain files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from eight_trainings import EVALUATED_EACH, TRAININGS, expected_verdict, verdict

pytest.importorskip("lightning", reason="lightning is not installed; 'make frameworks' runs this")
pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")
pytest.importorskip("wandb")

import mlflow
import wandb
from lightning.pytorch.loggers import CSVLogger
from torch.utils.tensorboard import SummaryWriter

pytestmark = pytest.mark.filterwarnings("default")


def with_wandb(folder: Path) -> None:
    """Log offline runs of one project, with names of sections."""
    settings = wandb.Settings(console="off", silent=True)
    for training in TRAININGS:
        run = wandb.init(project="p", mode="offline", dir=str(folder), name=training.name, settings=settings)
        for step, loss, evaluation in training.rows():
            run.log({"train/loss": loss, "train/lr": 1e-3}, step=step)
            if evaluation is not None:
                run.log({"val/loss": evaluation}, step=step)
        run.finish()
    wandb.teardown()  # Until then its process may hold back output.


def with_mlflow_database(folder: Path) -> None:
    """Log runs of one experiment into SQLite."""
    _log_with_mlflow(f"sqlite:///{folder / 'mlflow.db'}")


def with_mlflow_files(folder: Path) -> None:
    """Log runs of one experiment into folders."""
    _log_with_mlflow(f"file://{folder / 'mlruns'}")


def _log_with_mlflow(uri: str) -> None:
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("exp")
    for training in TRAININGS:
        with mlflow.start_run(run_name=training.name):
            for step, loss, evaluation in training.rows():
                mlflow.log_metrics({"train_loss": loss, "lr": 1e-3}, step=step)
                if evaluation is not None:
                    mlflow.log_metric("val_loss", evaluation, step=step)


def with_tensorboard(folder: Path, each: int = 1) -> None:
    """Log a folder of event files each; validation counts what lasts so many updates."""
    for training in TRAININGS:
        with SummaryWriter(str(folder / training.name)) as writer:
            for step, loss, evaluation in training.rows():
                writer.add_scalar("Loss/train", loss, step)
                if evaluation is not None:
                    writer.add_scalar("Loss/valid", evaluation, step // each)


def with_tensorboard_by_epoch(folder: Path) -> None:
    """Log validation by epoch, as most scripts do."""
    with_tensorboard(folder, EVALUATED_EACH)


def with_lightning(folder: Path) -> None:
    """Log a version each."""
    for training in TRAININGS:
        logger = CSVLogger(str(folder), version=training.name)
        for step, loss, evaluation in training.rows():
            epoch = (step - 1) // 100
            logger.log_metrics({"train_loss": loss, "epoch": epoch}, step=step)
            if evaluation is not None:
                logger.log_metrics({"val_loss": evaluation, "epoch": epoch}, step=step)
        logger.save()


TOOLS: Final = (
    with_wandb,
    with_mlflow_database,
    with_mlflow_files,
    with_tensorboard,
    with_tensorboard_by_epoch,
    with_lightning,
)


@pytest.mark.parametrize("write", TOOLS, ids=[write.__name__ for write in TOOLS])
def test_the_tool_that_logged_them_changes_nothing(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_importers_one_verdict.py`` compares tables and text with the same verdict."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder)

    for policy in ("hf_early_stopping", "overfitting"):
        assert verdict(folder, policy) == expected_verdict(policy), policy
