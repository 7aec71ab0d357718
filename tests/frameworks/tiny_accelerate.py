"""A tiny training by Accelerate, for tests. torchrun runs this file: it trains as each line of its input says."""

from __future__ import annotations

import datetime
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

from steptape import Recorder
from steptape.integrations.accelerate import SteptapeTracker


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """Return a model with dropout, its optimizer and 20 equal batches."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    data = torch.randn(2, 4, generator=torch.Generator().manual_seed(7)).repeat(20, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(TensorDataset(data), batch_size=2)


def new_accelerator(**arguments: Any) -> Accelerator:
    """Return an accelerator that shares nothing with earlier ones of this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **arguments)


def train(
    accelerator: Accelerator,
    rec: Recorder | None = None,
    *,
    nan_at: int | None = None,
    save_at: int | None = None,
    folder: str | Path | None = None,
    load: bool = False,
) -> tuple[list[float], torch.nn.Module]:
    """Train as Accelerate's examples do, log every micro-batch, and obey the recorder, if there is one.

    Args:
        accelerator: What logs, if it has trackers.
        rec: The recorder; its ``step`` counts updates by its own number.
        nan_at: The micro-batch whose loss is NaN, from 0.
        save_at: The update after which the state is saved to the folder.
        folder: The folder of the state.
        load: Load the state first, and train the batches that are left.

    Returns:
        The losses of all micro-batches and the model.
    """
    model, optimizer, loader = accelerator.prepare(*parts())
    accelerator.init_trackers("tiny", config={"lr": 0.05})
    torch.manual_seed(3 + accelerator.process_index)  # Each rank drops other values.
    losses: list[float] = []
    batches, done = [batch for _ in range(2) for batch in loader], 0
    if load:
        accelerator.load_state(str(folder))
        done = rec.state_dict()["step"] if rec is not None else 0  # type: ignore[assignment]
    for batch in batches[done:]:
        with accelerator.accumulate(model):
            loss = (model(batch[0]) ** 2).mean()
            if len(losses) == nan_at:
                loss = loss * math.nan
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.log({"loss": losses[-1]})
        if rec is None or not accelerator.sync_gradients:
            continue
        if accelerator.num_processes > 1:
            rec.step(loss=losses[-1])
        if rec.state_dict()["step"] == save_at:
            accelerator.save_state(str(folder))
            rec.save(str(folder))
        if rec.agree().should_stop:
            break
    if accelerator.num_processes == 1:
        accelerator.end_training()
    else:  # The next training of the job needs the process group, which ``end_training`` ends.
        if rec is not None:
            rec.close()
        accelerator.wait_for_everyone()
    return losses, model


def train_on_rank(
    store: str | None = None, rules: str | None = None, on_log: Any = "log", nan_at: int | None = None, **more: Any
) -> dict[str, Any]:
    """Train in a job of several processes, and return what this one did.

    Args:
        store: Folder of runs; None trains without a recorder.
        rules: The policy of the recorder.
        on_log: What the tracker records.
        nan_at: The micro-batch whose loss is NaN, on another rank than the one that decides.
        **more: Further arguments of ``train``.
    """
    accelerator, rec = new_accelerator(), None
    rank = accelerator.process_index
    if store is not None:
        rec = Recorder(store, rules=rules)
        SteptapeTracker(rec, on_log=on_log).attach(accelerator)
        accelerator.register_for_checkpointing(rec)
    losses, _ = train(accelerator, rec, nan_at=nan_at if rank == 1 else None, **more)
    return {"losses": [loss.hex() for loss in losses], "run_id": rec and rec.run_id}


def main() -> None:
    """Train as each line of the first file says; write what each training returned into one file per rank."""
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("steptape").addHandler(handler)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    given, results = Path(sys.argv[1]), []
    for line in given.read_text().splitlines():
        warnings.clear()
        results.append({**train_on_rank(**json.loads(line)), "warnings": [*warnings]})
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(results))
    new_accelerator().end_training()


if __name__ == "__main__":
    main()
