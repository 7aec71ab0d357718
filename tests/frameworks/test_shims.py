"""Scripts record the same through the shims as through the real W&B and TensorBoard, but for differences tested here.

The real tools' files are imported, and the events of both runs compared.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from steptape import open_store
from steptape.importers.discovery import find_sources, reader_of
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.integrations import tensorboard, wandb
from steptape.store.run import Run

real_wandb = pytest.importorskip("wandb")
pytest.importorskip("tensorboard")
numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

#: Kind, step and values of each event.
Events: TypeAlias = list[tuple[str, int, dict[str, float]]]

_KINDS: Final = ("step_end", "log", "evaluate")


def events_of(run: Run) -> Events:
    """Return the events of a run that have values."""
    return [(event.kind, event.step, dict(event.metrics)) for event in run.events() if event.kind in _KINDS]


def imported(kind: str, source: Path, store: Path) -> list[Run]:
    """Import a tool's files into a store, and return its runs."""
    list(import_sources(store, find_sources([source], [reader_of(kind)]).sources, ReadOptions()))
    return list(open_store(store))


def as_float32(events: Events) -> Events:
    """Round the values as TensorBoard's files do."""

    def rounded(value: float) -> float:
        return float(struct.unpack("f", struct.pack("f", value))[0])

    return [(kind, step, {name: rounded(value) for name, value in values.items()}) for kind, step, values in events]


def comparable(events: Events) -> str:
    """Return text in which NaN equals NaN."""
    return "\n".join(f"{kind} {step} {sorted(values.items())}" for kind, step, values in events)


def one_call_per_step(wandb: Any) -> None:
    """nanoGPT: training and validation in one call, no step."""
    for step in range(5):
        wandb.log({"iter": step * 10, "train/loss": torch.tensor(1 / (step + 1)), "val/loss": 0.5, "lr": 1e-3})


def calls_that_count(wandb: Any) -> None:
    """A value counts the steps only if it comes before others repeat: these are calls."""
    wandb.log({"note": "text", "val/loss": 3.0})
    for epoch in range(2):
        for _ in range(3):
            wandb.log({"loss": 1.0, "epoch": epoch})
        wandb.log({"val/loss": 2.0, "step": epoch})


def hugging_face(wandb: Any) -> None:
    """The Trainer declares its key, and logs it with each row; a callback of the script logs without it."""
    wandb.define_metric("train/global_step")
    wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
    wandb.log({"parameters": 124})
    for step in range(10, 50, 10):
        wandb.log({"train/loss": 1 / step, "train/epoch": step / 50, "train/global_step": step})
        wandb.log({"sample": 1.0})
        wandb.log({"eval/loss": 2.0, "train/epoch": step / 50, "train/global_step": step})
    wandb.log({"train/total_flos": 1e9, "train/global_step": 40})


def lightning(wandb: Any) -> None:
    """Its key has another name, and rows of the training and of the validation come at one step."""
    for step in range(49, 250, 50):
        wandb.log({"epoch": 0, "loss": 1 / step, "trainer/global_step": step})
        wandb.log({"epoch": 0, "val_loss": 0.5, "trainer/global_step": step})


def a_counter_within_epochs(wandb: Any) -> None:
    """``iter`` begins again in each epoch: the steps count on. Validation by epoch is at the newest step."""
    for epoch in range(3):
        for step in range(0, 40, 10):
            wandb.log({"epoch": epoch, "iter": step, "loss": 1.0})
        wandb.log({"val/loss": 0.5, "iter": epoch})


def a_counter_that_goes_back(wandb: Any) -> None:
    """A loop that loads an earlier checkpoint: its rows have the newest step until it is passed."""
    for step in (0, 10, 20, 30, 20, 30, 40):
        wandb.log({"global_step": step, "loss": 1.0})


def steps_and_a_counter(wandb: Any) -> None:
    """Where the script gives the steps, they count, be it with another counter among the values."""
    for step in range(100, 500, 100):
        wandb.log({"global_step": step // 100, "loss": 1.0}, step=step)
        wandb.log({"val/loss": 0.5}, step=step)


def epochs_as_steps(wandb: Any) -> None:
    """A step that rises by one counts no more than calls do."""
    for epoch in range(1, 4):
        wandb.log({"global_step": epoch * 100, "loss": 1.0, "val_loss": 0.5}, step=epoch)


def several_calls_per_step(wandb: Any) -> None:
    """Rows are merged until the step changes."""
    for step in range(0, 40, 10):
        wandb.log({"train/loss": 1 / (step + 1)}, step=step)
        wandb.log({"train/lr": numpy.float32(0.1)}, step=step)
        if step % 20 == 0:
            wandb.log({"eval": {"loss": 2.0, "acc": {"top1": step}}}, step=step)
    wandb.log({"train/loss": math.nan}, step=41)
    wandb.log({"train/loss": math.inf})


def commits(wandb: Any) -> None:
    """``commit=False`` holds a row, ``commit=True`` ends one."""
    wandb.log({"a": 1.0}, commit=False)
    wandb.log({"b": 2.0})
    wandb.log({})
    wandb.log({"c": 3.0}, step=7, commit=True)
    wandb.log({"d": 4.0, "none": None})
    wandb.log({"e": 5.0}, step=9)


def media(wandb: Any) -> None:
    """Lightning-like loops log pictures among the numbers."""
    wandb.define_metric("loss", summary="min")
    wandb.watch(torch.nn.Linear(1, 1))
    for step in range(3):
        picture = wandb.Image(numpy.zeros((2, 2, 3), "uint8"), caption="zero")
        table = wandb.Table(columns=["x"], data=[[1]])
        table.add_data(2)
        wandb.log({"loss": 1.0, "samples": [picture], "table": table, "h": wandb.Histogram([1.0, 2.0])}, step=step)
    wandb.log({"curve": wandb.plot.line(table, "x", "x"), "after": 1.0})
    wandb.alert("title", "text")
    wandb.summary["best"] = 1.0


def keys_that_count(wandb: Any) -> None:
    """nanochat: the step is among the values, and W&B counts calls."""
    for step in range(0, 300, 100):
        wandb.log({"step": step, "val/bpb": 1.0 / (step + 1)})
        wandb.log({"step": step, "train/loss": 2.0, "train/epoch": "3 pq: 4"})


_WANDB_LOOPS: Final = {
    one_call_per_step: [0, 10, 20, 30, 40],
    calls_that_count: [0, 1, 2, 3, 4, 5, 6, 7, 8],
    hugging_face: [0, 10, 20, 30, 40],
    lightning: [49, 99, 149, 199, 249],
    a_counter_within_epochs: [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110],
    a_counter_that_goes_back: [0, 10, 20, 30, 40],
    steps_and_a_counter: [1, 200, 300, 400],
    epochs_as_steps: [100, 200, 300],
    several_calls_per_step: [0, 10, 20, 30, 41],
    commits: [0, 7, 8, 9],
    media: [0, 1, 2],
    keys_that_count: [0, 100, 200],
}


@pytest.mark.parametrize(("loop", "steps"), _WANDB_LOOPS.items())
def test_a_script_records_what_the_real_wandb_records(
    loop: Callable[[Any], None], steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds, steps, names, values, name, group, tags and config of the run are those of the imported W&B run."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    described = {"dir": str(tmp_path), "project": "p", "name": "n", "tags": ["t"], "config": {"lr": 0.1, "n": {"w": 2}}}
    for each, more in ((real_wandb, {"mode": "offline"}), (wandb, {})):
        each.init(**described, **more)
        each.config.update({"late": 1})
        each.config.later = 2
        assert each.config.as_dict()["lr"] == 0.1
        loop(each)
        each.finish()

    (real,) = imported("wandb", tmp_path / "wandb", tmp_path / "imported")
    (ours,) = open_store(tmp_path / "runs")
    assert comparable(events_of(ours)) == comparable(events_of(real))
    assert sorted({step for _, step, _ in events_of(ours)}) == steps
    assert (ours.info.name, ours.info.group, ours.info.tags) == (real.info.name, real.info.group, real.info.tags)
    assert ours.info.config == real.info.config
    assert ours.info.last.status == real.info.last.status == "completed"


def test_the_differences_from_wandb_are_those_that_the_page_lists(tmp_path: Path) -> None:
    """A step that goes backwards is kept at the newest step, and a boolean is a number; W&B drops one, imports both."""
    for each, more in ((real_wandb, {"mode": "offline"}), (wandb, {})):
        with each.init(dir=str(tmp_path), **more) as run:
            run.log({"loss": 1.0, "done": True}, step=10)
            run.log({"val/loss": 2.0}, step=3)

    (real,) = imported("wandb", tmp_path / "wandb", tmp_path / "imported")
    (ours,) = open_store(tmp_path / "runs")
    assert events_of(real) == [("step_end", 10, {"loss": 1.0})]
    assert events_of(ours) == [("step_end", 10, {"loss": 1.0, "done": 1.0}), ("evaluate", 10, {"val/loss": 2.0})]


def test_passthrough_leaves_the_same_wandb_run_as_the_real_one_alone(tmp_path: Path) -> None:
    """Media and artifacts reach the real W&B, which records what it would record without steptape."""
    for each, name, more in ((real_wandb, "alone", {}), (wandb, "through", {"passthrough": True})):
        run = each.init(project="p", mode="offline", dir=str(tmp_path / name), config={"lr": 1}, **more)
        each.define_metric("loss", summary="min")
        for step in range(4):
            each.log({"loss": 1 / (step + 1), "picture": each.Image(numpy.zeros((2, 2, 3), "uint8"))}, step=step * 2)
        run.summary["best"] = 3
        run.config.update({"lr": 2}, allow_val_change=True)
        assert run.summary["best"] == 3
        each.finish()

    (alone,) = imported("wandb", tmp_path / "alone", tmp_path / "alone-imported")
    (through,) = imported("wandb", tmp_path / "through" / "wandb", tmp_path / "through-imported")
    (ours,) = open_store(tmp_path / "through" / "runs")
    assert events_of(through) == events_of(alone)
    assert through.info.config == alone.info.config == ours.info.config == {"lr": 2}
    assert [values for _, _, values in events_of(ours)] == [values for _, _, values in events_of(alone)]
    assert ours.info.run_id in next((tmp_path / "through" / "wandb").glob("offline-*/*.wandb")).name


def test_the_errors_of_the_real_wandb_are_caught_by_their_names_here() -> None:
    """A script catches them around its init, before a run has begun."""
    with pytest.raises(wandb.errors.CommError):
        raise real_wandb.errors.CommError("offline")
    with pytest.raises(wandb.Error):
        raise real_wandb.Error("offline")


def tags_of_an_update(writer: Any) -> None:
    """PPO in cleanrl: one tag a call, the step counts the environment's steps."""
    writer.add_text("hyperparameters", "|param|value|")
    for step in range(128, 640, 128):
        writer.add_scalar("charts/episodic_return", numpy.float64(step), step - 3)
        for tag in ("charts/learning_rate", "losses/value_loss", "losses/entropy"):
            writer.add_scalar(tag, 1 / step, step)
        writer.add_scalar("losses/clipfrac", math.nan, step)
        writer.add_scalar("charts/SPS", int(step), step)


def training_and_validation(writer: Any) -> None:
    """Both by the same step; the same tag twice at a step makes two events."""
    for step in range(10):
        writer.add_scalar("Loss/train", torch.tensor(1 / (step + 1)), step)
        if step % 5 == 4:
            writer.add_scalar("Loss/val", 2 / (step + 1), global_step=step, walltime=1.0)
            writer.add_histogram("weights", numpy.arange(3.0), step)
        writer.flush()
    writer.add_scalar("episode", 1.0, 20)
    writer.add_scalar("episode", 2.0, 20)


def validation_by_epoch(writer: Any) -> None:
    """The commonest habit of scripts: the loss by update, the validation by epoch."""
    for step in range(1, 401):
        writer.add_scalar("Loss/train", 0.25 + 2 / step, step)
        if step % 100 == 0:
            writer.add_scalar("Loss/valid", 0.5 + abs(step - 200) / 1000, step // 100)
            writer.add_scalar("Accuracy", step / 400, step // 100)
    writer.add_scalar("Loss/test", 0.25, 0)


@pytest.mark.parametrize("loop", [tags_of_an_update, training_and_validation, validation_by_epoch])
def test_a_script_records_what_the_real_summary_writer_writes(loop: Callable[[Any], None], tmp_path: Path) -> None:
    """The events of the imported event files are those of the shim, which also keeps what float32 rounds."""
    real_writer = __import__("torch.utils.tensorboard", fromlist=["SummaryWriter"]).SummaryWriter
    with real_writer(str(tmp_path / "real")) as writer:
        loop(writer)
    with tensorboard.SummaryWriter(tmp_path / "ours", store=tmp_path / "runs", tee=True) as writer:
        loop(writer)

    (real,) = imported("tensorboard", tmp_path / "real", tmp_path / "imported")
    (teed,) = imported("tensorboard", tmp_path / "ours", tmp_path / "teed")
    (ours,) = open_store(tmp_path / "runs")
    assert comparable(as_float32(events_of(ours))) == comparable(events_of(real))
    assert comparable(events_of(teed)) == comparable(events_of(real))
