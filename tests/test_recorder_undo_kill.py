"""A training that is killed at any moment of an undo leaves a run that verifies, and that continues."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import open_store, verify

LOOP = """
import os, signal, sys
import torch
from steptape import Recorder
from steptape.recorder.operations import restore_points
from steptape.recorder.operations.restore_points import RestorePoints

store, moment = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

restore, wait = RestorePoints.restore, restore_points._local
copies = 0

def local(tensor):
    global copies
    copies += is_restoring
    if moment == "between two tensors" and is_restoring and copies == 2:
        die()
    return wait(tensor)

is_restoring = False

def restored(self, step, *, now):
    global is_restoring
    if moment == "before it":
        die()
    is_restoring = True
    restore(self, step, now=now)
    is_restoring = False
    if moment == "before its receipt":
        die()

RestorePoints.restore, restore_points._local = restored, local
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
arguments = {"resume": "allow", "run_id": "killed"}
with Recorder(store, rules=["undo.to(before=2) if loss > 100"], quiet=True, **arguments) as rec:
    rec.restore_points(model, optimizer, every=4)
    while rec.progress.updates < 20:
        step = rec.progress.updates + 1
        loss = model(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rec.step(loss=1000.0 if step == 11 and moment != "resume" else loss.item())
        if step % 5 == 0:
            rec.save(f"{step}.pt", size_bytes=1)
        if moment == "after its receipt" and step == 11:
            die()
"""


@pytest.mark.parametrize("moment", ["before it", "between two tensors", "before its receipt", "after its receipt"])
def test_a_training_that_is_killed_in_an_undo_leaves_a_sound_run_and_continues(tmp_path: Path, moment: str) -> None:
    """The points are gone with the process: the run continues from its newest checkpoint."""
    command = [sys.executable, "-c", textwrap.dedent(LOOP), str(tmp_path)]
    killed = subprocess.run([*command, moment], capture_output=True, timeout=PATIENCE_S, check=False)
    (run,) = open_store(tmp_path)
    is_carried_out = any(event.kind == "operation_applied" for event in run.events())
    sound = verify(run).identical
    resumed = subprocess.run([*command, "resume"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    (run,) = open_store(tmp_path)

    assert (killed.returncode, run.status) == (-signal.SIGKILL, "completed"), resumed.stderr
    assert (sound, is_carried_out) == (True, moment == "after its receipt")
    assert (run.info.last.from_step, run.info.last.steps, verify(run).identical) == (10, 20, True)
