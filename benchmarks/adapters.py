"""Times an update of a tiny model under each adapter: the processor time of the training thread, with and without it.

    python benchmarks/adapters.py            # what is installed; one table for each framework
    python benchmarks/adapters.py --json     # one JSON line for each row
    python benchmarks/adapters.py --profile  # the functions that cost an update of Hugging Face's Trainer most

Needs torch, and of transformers, lightning, accelerate, keras, stable-baselines3, tensorboard and wandb what is to be
measured, as tests/frameworks/*.txt list them. Rounds of all rows of a framework take turns, so that other load affects
them alike. A figure is the median over rounds of the median of a round's updates after the first ten.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import json
import logging
import os
import pstats
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

#: Updates of a round, and those at its beginning that do not count.
UPDATES: Final = 100
WARM_UP: Final = 10

ROUNDS: Final = 9

#: Trains ``UPDATES`` updates in a new folder, and calls the clock at the beginning of each.
Training = Callable[[Path, "Clock"], object]


class Clock:
    """Notes the processor time of the training thread at the beginning of each update."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []

    def tick(self, *_: Any, **__: Any) -> None:
        """Note the beginning of an update."""
        self.at_ns.append(time.thread_time_ns())

    def update_us(self) -> float:
        """Return the median time of the updates after the first ones: a mean would hold what other load evicts."""
        return statistics.median(after - before for before, after in pairwise(self.at_ns[WARM_UP:])) / 1e3


@contextmanager
def silent() -> Iterator[None]:
    """Keep frameworks from printing."""
    with open(os.devnull, "w") as nowhere:
        before = os.dup(1), os.dup(2)
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            for number, kept in enumerate(before, 1):
                os.dup2(kept, number)
                os.close(kept)


def mlp() -> torch.nn.Module:
    """Return a small model, always the same."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


DATA: Final = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))


def plain_loop(clock: Clock, log: Callable[[int, torch.Tensor], object]) -> None:
    """Train in a loop of one's own, which logs the loss at each update."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, UPDATES + 1):
        clock.tick()
        optimizer.zero_grad()
        loss = model(DATA).square().mean()
        loss.backward()
        optimizer.step()
        log(step, loss)


# --- Hugging Face's Trainer -------------------------------------------------------------------------------------------


def hugging_face() -> Mapping[str, Training]:
    """Return trainings of a GPT-2 of one layer that log at each update."""
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from steptape.integrations.transformers import SteptapeCallback

    class Ticks(TrainerCallback):  # type: ignore[misc]
        def __init__(self, clock: Clock) -> None:
            self.on_step_begin = clock.tick

    tokens = torch.randint(0, 64, (UPDATES * 2, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    def train(
        folder: Path, clock: Clock, reporter: str = "none", callback: Any = None, *, attach: bool = False
    ) -> None:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16))
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "events")
        arguments = TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=2,
            num_train_epochs=1,
            logging_steps=1,
            save_strategy="no",
            report_to=[reporter],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Ticks(clock)])
        trainer.remove_callback(PrinterCallback)
        if callback is not None:
            if attach:
                callback.attach(trainer)
            else:
                trainer.add_callback(callback)
        trainer.train()
        if callback is not None:
            callback.close()

    def ours(folder: Path, clock: Clock, *, attach: bool = True, rules: str | None = None) -> None:
        train(folder, clock, callback=SteptapeCallback(folder / "runs", rules, quiet=True), attach=attach)

    return {
        "no reporter": train,
        "steptape, attached": ours,
        "steptape, not attached": lambda folder, clock: ours(folder, clock, attach=False),
        "steptape, attached, `loss_spike`": lambda folder, clock: ours(folder, clock, rules="loss_spike"),
        **({"TensorBoard's callback": lambda f, clock: train(f, clock, "tensorboard")} if has("tensorboard") else {}),
    }


# --- Lightning --------------------------------------------------------------------------------------------------------


def lightning() -> Mapping[str, Training]:
    """Return trainings by Lightning of the small model."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from steptape.integrations.lightning import SteptapeCallback, SteptapeLogger

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self.model, self.clock = mlp(), clock

        def training_step(self, batch: Any) -> torch.Tensor:
            self.clock.tick()
            loss = self.model(batch).square().mean()
            self.log("train_loss", loss)
            return loss  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(folder: Path, clock: Clock, **options: Any) -> None:
        batches: Any = torch.utils.data.DataLoader(DATA.repeat(UPDATES, 1), batch_size=8)  # type: ignore[arg-type]
        shared = {"accelerator": "cpu", "max_epochs": 1, "log_every_n_steps": 1, "enable_checkpointing": False}
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
        Trainer(**{**shared, **quiet, "logger": False, **options}).fit(Module(clock), batches)

    def callback(folder: Path, clock: Clock, rules: str | None = None) -> None:
        train(folder, clock, callbacks=[SteptapeCallback(folder / "runs", rules=rules, quiet=True)])

    def logger(folder: Path, clock: Clock) -> None:
        tape = SteptapeLogger(folder / "runs", quiet=True)
        train(folder, clock, logger=tape, callbacks=[tape.callback()])

    return {
        "no logger": train,
        "steptape's callback": callback,
        "steptape's callback, `loss_spike`": lambda folder, clock: callback(folder, clock, "loss_spike"),
        "steptape's logger and callback": logger,
        **(
            {"TensorBoard's logger": lambda f, clock: train(f, clock, logger=TensorBoardLogger(f))}
            if has("tensorboard")
            else {}
        ),
    }


# --- Keras ------------------------------------------------------------------------------------------------------------


def keras_fit() -> Mapping[str, Training]:
    """Return trainings by Keras, on torch, of a model as small."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    from steptape.integrations.keras import SteptapeCallback

    class Ticks(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self.clock = clock

        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            self.clock.tick()

    def train(_: Path, clock: Clock, *callbacks: Any) -> None:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((32,)), *layers])
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
        x = DATA.repeat(UPDATES, 1).numpy()
        model.fit(x, 0 * x[:, :1], batch_size=8, verbose=0, callbacks=[Ticks(clock), *callbacks])

    def ours(folder: Path, clock: Clock, rules: str | None = None) -> None:
        train(folder, clock, SteptapeCallback(folder / "runs", rules=rules, quiet=True))

    return {
        "no callback": train,
        "steptape's callback": ours,
        "steptape's callback, `loss_spike`": lambda folder, clock: ours(folder, clock, "loss_spike"),
    }


# --- Stable-Baselines3 ------------------------------------------------------------------------------------------------


def stable_baselines3() -> Mapping[str, Training]:
    """Return trainings by DQN, with an update for each four steps of the environment."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    from steptape.integrations.stable_baselines3 import SteptapeCallback

    class Ticks(BaseCallback):  # type: ignore[misc]
        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self.clock = clock

        def _on_rollout_start(self) -> None:
            self.clock.tick()

        def _on_step(self) -> bool:
            return True

    def train(_: Path, clock: Clock, *callbacks: Any) -> None:
        model = DQN("MlpPolicy", "CartPole-v1", learning_starts=0, buffer_size=1000, seed=0, device="cpu")
        model.learn(4 * UPDATES, callback=[Ticks(clock), *callbacks])

    def ours(folder: Path, clock: Clock, rules: str | None = None) -> None:
        train(folder, clock, SteptapeCallback(folder / "runs", rules=rules, quiet=True))

    return {
        "no callback": train,
        "steptape's callback": ours,
        "steptape's callback, `loss_spike`": lambda folder, clock: ours(folder, clock, "loss_spike"),
    }


# --- Accelerate -------------------------------------------------------------------------------------------------------


def accelerate() -> Mapping[str, Training]:
    """Return trainings in an Accelerate loop that logs at each update."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from steptape import Recorder
    from steptape.integrations.accelerate import SteptapeTracker

    def train(folder: Path, clock: Clock, kind: str = "") -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = Accelerator(
            cpu=True, log_with="tensorboard" if kind == "tensorboard" else None, project_dir=folder
        )
        rec = Recorder(folder / "runs", quiet=True) if kind == "steptape" else None
        if rec is not None:
            SteptapeTracker(rec).attach(accelerator)
        if kind:
            accelerator.init_trackers("project", config={"lr": 0.01})
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)
        for step in range(1, UPDATES + 1):
            clock.tick()
            with accelerator.accumulate(model):
                loss = model(DATA).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if rec is not None:
                rec.step(loss=loss, applied=not accelerator.optimizer_step_was_skipped)
                rec.agree()
            if kind:
                accelerator.log({"train_loss": loss.item()}, step=step)
        if rec is not None:
            rec.close()
        accelerator.end_training()

    rows: dict[str, Training] = {
        "no tracker": train,
        "steptape, `rec.step` and `accelerator.log`": lambda folder, clock: train(folder, clock, "steptape"),
    }
    if has("tensorboard"):
        rows["TensorBoard's tracker"] = lambda folder, clock: train(folder, clock, "tensorboard")
    return rows


# --- shims ------------------------------------------------------------------------------------------------------------


def wandb_shim() -> Mapping[str, Training]:
    """Return trainings in a loop of one's own that logs to W&B at each update."""
    import steptape.integrations.wandb as ours

    def train(folder: Path, clock: Clock, module: Any = None, **options: Any) -> None:
        if module is None:
            plain_loop(clock, lambda _, loss: loss.item())
            return
        run = module.init(project="p", dir=str(folder), **options)
        plain_loop(clock, lambda _, loss: module.log({"loss": loss.item(), "lr": 0.01}))
        run.finish()

    def real(folder: Path, clock: Clock) -> None:
        import wandb

        train(folder, clock, wandb, mode="offline")

    rows: dict[str, Training] = {
        "no tracker": train,
        "steptape's `wandb.log`": lambda folder, clock: train(folder, clock, ours, quiet=True),
        "the same, `loss_spike`": lambda folder, clock: train(folder, clock, ours, quiet=True, rules="loss_spike"),
    }
    if has("wandb"):
        rows["W&B's `wandb.log`, offline"] = real
    return rows


def tensorboard_shim() -> Mapping[str, Training]:
    """Return trainings in a loop of one's own that writes two scalars at each update."""
    from steptape.integrations.tensorboard import SummaryWriter as Ours

    def train(_: Path, clock: Clock, writer: Any = None) -> None:
        def log(step: int, loss: torch.Tensor) -> None:
            value = loss.item()
            if writer is not None:
                writer.add_scalar("loss", value, step)
                writer.add_scalar("lr", 0.01, step)

        plain_loop(clock, log)
        if writer is not None:
            writer.close()

    def ours(folder: Path, clock: Clock, rules: str | None = None) -> None:
        train(folder, clock, Ours(str(folder / "log"), store=folder / "runs", quiet=True, rules=rules))

    def real(folder: Path, clock: Clock) -> None:
        from torch.utils.tensorboard import SummaryWriter

        train(folder, clock, SummaryWriter(str(folder / "log")))

    rows: dict[str, Training] = {
        "no writer": train,
        "steptape's `SummaryWriter`": ours,
        "the same, `loss_spike`": lambda folder, clock: ours(folder, clock, "loss_spike"),
    }
    if has("tensorboard"):
        rows["torch's `SummaryWriter`"] = real
    return rows


#: The trainings of each framework, and what has to be installed for them.
FRAMEWORKS: Final[Mapping[str, tuple[str, Callable[[], Mapping[str, Training]]]]] = {
    "Hugging Face's Trainer": ("transformers", hugging_face),
    "Lightning": ("lightning", lightning),
    "Keras": ("keras", keras_fit),
    "Stable-Baselines3": ("stable_baselines3", stable_baselines3),
    "Accelerate": ("accelerate", accelerate),
    "a loop with W&B's calls": ("torch", wandb_shim),
    "a loop with TensorBoard's calls": ("torch", tensorboard_shim),
}


def has(module: str) -> bool:
    """Whether a module is installed."""
    return importlib.util.find_spec(module) is not None


def update_us(training: Training, name: str) -> float:
    """Return the processor time of an update in one round."""
    clock = Clock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # A sealer may still write.
        before = os.getcwd()
        os.chdir(folder)
        try:
            with silent():
                training(Path(folder), clock)
        except Exception as error:
            raise RuntimeError(f"{name} failed") from error
        finally:
            os.chdir(before)
    return clock.update_us()


def measured(name: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a framework. The first one is the floor."""
    trainings = FRAMEWORKS[name][1]()
    taken: dict[str, list[float]] = {row: [] for row in trainings}
    for number in range(rounds + 1):
        for row, training in trainings.items():
            us = update_us(training, row)
            if number:  # The first round loads and compiles.
                taken[row].append(us)
    floor = next(iter(taken.values()))
    for row, own in taken.items():
        ratios = sorted(us / base for us, base in zip(own, floor, strict=True))
        yield {
            "framework": name,
            "row": row,
            "update_us": round(statistics.median(own), 1),
            "added_us": round(statistics.median(us - base for us, base in zip(own, floor, strict=True)), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_least": round(ratios[0], 3),
            "ratio_most": round(ratios[-1], 3),
        }


def profile() -> None:
    """Print what costs the training thread most under Hugging Face's Trainer with steptape attached."""
    training, profiler = hugging_face()["steptape, attached"], cProfile.Profile(time.thread_time)
    update_us(training, "warm-up")
    profiler.enable()
    update_us(training, "profiled")
    profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats("steptape|integrations|recorder", 45)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=FRAMEWORKS, action="append", help="measure this framework; may be repeated")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ |= {"WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
    if given.profile:
        profile()
        return
    for name in given.only or FRAMEWORKS:
        if not has(FRAMEWORKS[name][0]):
            print(f"{name}: {FRAMEWORKS[name][0]} is not installed", file=sys.stderr)
            continue
        rows = list(measured(name, given.rounds))
        if given.json:
            print("\n".join(map(json.dumps, rows)), flush=True)
            continue
        print(f"\n| {name} | x the first row, of {given.rounds} rounds: median (least, most) | an update | added |")
        print("| --- | --- | --- | --- |")
        for row in rows:
            ratio = f"{row['ratio']} ({row['ratio_least']}, {row['ratio_most']})"
            print(f"| {row['row']} | {ratio} | {row['update_us']:,.0f} us | {row['added_us']:,.0f} us |", flush=True)


if __name__ == "__main__":
    main()
