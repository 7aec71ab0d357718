"""A training on several ranks that is killed and started again, as a batch system requeues a job. torchrun runs this.

Arguments: the folder of its snapshot, ``recorded`` or ``plain``, and the step at which rank 1 kills itself, 0 for none.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder

RULE = """
controllers:
  - name: each_sixth
    triggers: [on_step_end]
    rule: isfinite(mean(loss, 5))
    cooldown: {steps: 6}
    operations: [hfcontrols.should_log]
"""


def train(folder: Path, *, is_recorded: bool, killed_at: int) -> None:
    """Train for 20 updates from the newest snapshot, saving one every 8, and write the weights."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), folder / "snapshot.pt"
    snapshot = torch.load(path) if path.exists() else None
    recorder = None
    if is_recorded:
        resume = snapshot["recorder"] if snapshot else "allow"
        (folder / "rule.yaml").write_text(RULE)
        recorder = Recorder(folder / "runs", run_id="job", resume=resume, rules=folder / "rule.yaml", quiet=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    first = 1
    if snapshot:
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["step"] + 1
    for step in range(first, 21):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if recorder is not None:
            recorder.step(loss=loss.item())
            recorder.agree()
        if step == killed_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 8 == 0 and rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**state, "recorder": recorder and recorder.state_dict()}, path)
            if recorder is not None:
                recorder.save(path)
        dist.barrier()
    if recorder is not None:
        recorder.close()
    if rank == 0:
        torch.save(model.module.state_dict(), folder / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), is_recorded=sys.argv[2] == "recorded", killed_at=int(sys.argv[3]))
