"""The same eight trainings, in files of several tools, give one verdict. ``make frameworks`` does it with the tools."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from eight_trainings import EVALUATED_EACH, STEPS, TRAININGS, expected_verdict, verdict
from event_files import STARTED_S, event, field, simple, varint, write_events
from wandb_files import history, wandb_file


def as_csv(folder: Path) -> None:
    """Write a table each."""
    for training in TRAININGS:
        with open(folder / f"{training.name}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("step", "loss", "valid loss"))
            table.writerows(
                (step, loss, "" if evaluation is None else evaluation) for step, loss, evaluation in training.rows()
            )


def as_lightning(folder: Path) -> None:
    """Write tables whose evaluations have rows of their own, in a folder each, by the name of a Lightning version."""
    for training in TRAININGS:
        path = folder / "lightning_logs" / training.name / "metrics.csv"
        path.parent.mkdir(parents=True)
        with open(path, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("epoch", "step", "train_loss", "val_loss"))
            for step, loss, evaluation in training.rows():
                table.writerow(((step - 1) // 100, step, loss, ""))
                if evaluation is not None:
                    table.writerow(((step - 1) // 100, step, "", evaluation))


def as_stdout(folder: Path) -> None:
    """Write text with a date before each line."""
    for training in TRAININGS:
        with open(folder / f"{training.name}.log", "w") as file:
            for step, loss, evaluation in training.rows():
                time = f"2026-11-03 10:{step // 60:02}:{step % 60:02}"
                file.write(f"{time} step {step}/{STEPS} loss {loss}\n")
                if evaluation is not None:
                    file.write(f"{time} step {step}/{STEPS} validation loss {evaluation}\n")


def as_mlflow(folder: Path) -> None:
    """Write MLflow's store of files."""
    experiment = folder / "mlruns" / "1"
    for number, training in enumerate(TRAININGS):
        metrics = experiment / f"run{number}" / "metrics"
        metrics.mkdir(parents=True)
        run = f"artifact_uri: x\nrun_id: run{number}\nrun_name: {training.name}\nstart_time: 1000\nstatus: 3\n"
        (metrics.parent / "meta.yaml").write_text(run)
        for name, values in (("train_loss", training.losses), ("val_loss", training.evaluations)):
            (metrics / name).write_text("".join(f"{1000 + step} {value} {step}\n" for step, value in values.items()))
    (experiment / "meta.yaml").write_text("name: exp\nexperiment_id: '1'\n")


def as_tensorboard(folder: Path, each: int = 1) -> None:
    """Write event files, a folder each; validation counts what lasts so many updates."""
    for training in TRAININGS:
        events = []
        for step, loss, evaluation in training.rows():
            events.append(event(step, STARTED_S + step, simple("Loss/train", loss)))
            if evaluation is not None:
                events.append(event(step // each, STARTED_S + step, simple("Loss/valid", evaluation)))
        write_events(folder / training.name / "events.out.tfevents.1767323045.host", events)


def as_tensorboard_by_epoch(folder: Path) -> None:
    """Write event files whose validation counts epochs, as most scripts do."""
    as_tensorboard(folder, EVALUATED_EACH)


def as_wandb(folder: Path) -> None:
    """Write W&B's files, in a folder each, with a history row for each call."""
    for training in TRAININGS:
        rows = (
            history(
                step, **{"train/loss": loss} if evaluation is None else {"train/loss": loss, "val/loss": evaluation}
            )
            for step, loss, evaluation in training.rows()
        )
        path = folder / "wandb" / f"offline-run-{training.name}" / f"run-{training.name}.wandb"
        path.parent.mkdir(parents=True)
        run = field(1, training.name) + field(8, training.name)
        wandb_file(path, field(17, run), *rows, field(18, b"\x08" + varint(0)))


TOOLS: Final = (as_wandb, as_csv, as_lightning, as_stdout, as_mlflow, as_tensorboard, as_tensorboard_by_epoch)


@pytest.mark.parametrize("policy", ["hf_early_stopping", "overfitting"])
@pytest.mark.parametrize("write", TOOLS, ids=[write.__name__ for write in TOOLS])
def test_the_tool_that_logged_them_changes_nothing(write: Callable[[Path], None], policy: str, tmp_path: Path) -> None:
    """Stops, shares that are cut off, evaluations, families and what to do about the policy are the same."""
    (tmp_path / "logs").mkdir()
    write(tmp_path / "logs")

    assert verdict(tmp_path / "logs", policy) == expected_verdict(policy)
