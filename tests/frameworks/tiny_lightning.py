"""A tiny training by Lightning, for tests. Run as a program, it trains as each line of its input says, one by one."""

from __future__ import annotations

import datetime
import importlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from steptape.integrations.lightning import SteptapeCallback

#: The module that the tests run in: ``lightning.pytorch`` or ``pytorch_lightning``.
ROOT = "lightning.pytorch"


def loader(samples: int = 28, *, is_constant: bool = False) -> DataLoader[Any]:
    """Return fixed data, in a fixed order: 14 batches of 2 for training by default. Constant batches are all equal."""
    data = torch.randn(samples, 4, generator=torch.Generator().manual_seed(7))
    return DataLoader(TensorDataset(data[:2].repeat(samples // 2, 1) if is_constant else data), batch_size=2)


def tiny_module(root: str = ROOT, *, nan_at: int | None = None, optimizers: int = 0, dropout: float = 0.2) -> Any:
    """Return a module that notes the losses of its micro-batches.

    Args:
        root: The package of its base class.
        nan_at: Its micro-batch of this number, from 0, has a loss of NaN.
        optimizers: Step so many optimizers by hand, in place of Lightning's own optimization.
        dropout: How much of a layer is dropped, by random numbers.
    """

    class Tiny(importlib.import_module(root).LightningModule):  # type: ignore[misc]
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1))
            self.automatic_optimization = not optimizers
            self.losses: list[float] = []
            self.norms: list[float] = []

        def loss_of(self, batch: Any) -> torch.Tensor:
            return ((self.layer(batch[0]) - batch[0].sum(1, keepdim=True)) ** 2).mean()  # type: ignore[no-any-return]

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self.loss_of(batch)
            if len(self.losses) == nan_at:
                loss = loss * math.nan
            self.losses.append(float(loss.detach()))
            self.log("train_loss", loss)
            for optimizer in self.optimizers() if optimizers else ():
                optimizer.zero_grad()
                self.manual_backward(loss, retain_graph=True)
            for optimizer in self.optimizers() if optimizers else ():
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss_of(batch))

        def configure_model(self) -> None:
            if self.device_mesh is not None:  # A strategy that shards.
                fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

        def configure_gradient_clipping(self, *arguments: Any, **named: Any) -> None:
            squares = [float((each.grad**2).sum()) for each in self.parameters() if each.grad is not None]
            self.norms.append(math.sqrt(sum(squares)))
            super().configure_gradient_clipping(*arguments, **named)

        def configure_optimizers(self) -> Any:
            parts = [self.layer[0], self.layer[2]] if optimizers else [self.layer]
            made = [torch.optim.SGD(part.parameters(), self.hparams.lr / 2**n) for n, part in enumerate(parts)]
            if optimizers:
                return made
            schedule = torch.optim.lr_scheduler.ExponentialLR(made[0], 0.5)
            return made, [{"scheduler": schedule, "interval": "step"}]

    torch.manual_seed(3)
    return Tiny()


def tiny_trainer(folder: Path, callbacks: list[Any], root: str = ROOT, **changes: Any) -> Any:
    """Return a trainer of 3 epochs of 14 batches on the CPU, quiet and without checkpoints of its own."""
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 3,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 2,
    }
    return importlib.import_module(root).Trainer(callbacks=callbacks, **(arguments | changes))


def train_on_rank(
    folder: str,
    *,
    store: str | None = None,
    rules: str | None = None,
    nan_at: int | None = None,
    cut_at: int | None = None,
    ckpt_path: str | None = None,
    is_sharded: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Train on batches that are all equal, and return what this process did.

    Args:
        folder: Where Lightning writes.
        store: Folder of runs; None trains without a recorder.
        rules: The policy of the recorder.
        nan_at: The micro-batch whose loss is NaN, on another rank than the one that decides.
        cut_at: The step of a checkpoint, in the folder.
        ckpt_path: The checkpoint to train from.
        is_sharded: Each rank keeps a part of the weights.
        **changes: Further arguments of the trainer.
    """
    if is_sharded:
        changes["strategy"] = importlib.import_module(ROOT).strategies.ModelParallelStrategy()
    callbacks: list[Any] = [] if store is None else [SteptapeCallback(store, rules=rules)]
    if cut_at is not None:
        checkpoints = importlib.import_module(ROOT).callbacks.ModelCheckpoint
        callbacks.append(checkpoints(folder, every_n_train_steps=cut_at, filename="cut"))
    trainer = tiny_trainer(Path(folder), callbacks, enable_checkpointing=cut_at is not None, **changes)
    module = tiny_module(nan_at=nan_at if os.environ.get("RANK") == "1" else None, dropout=0.0)
    trainer.fit(module, loader(is_constant=True), loader(4), ckpt_path=ckpt_path)
    run_id = callbacks[0].recorder.run_id if store else None
    return {"losses": [loss.hex() for loss in module.losses], "step": trainer.global_step, "run_id": run_id}


def main() -> None:
    """Train as each line of the first file says; write what each training returned into one file per rank."""
    is_job = "RANK" in os.environ
    if is_job:
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    given, results = Path(sys.argv[1]), []
    for line in given.read_text().splitlines():
        results.append(train_on_rank(str(given.parent), **json.loads(line)))
        if is_job:
            dist.barrier()  # Else the next training resumes a run that another rank has not ended yet.
    given.with_suffix(f".{os.environ.get('RANK', 0)}").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
