"""Helpers for tests of the page: a store with data to show, and a real server on loopback."""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from api_serving import PATIENT, STARTED_NS, begin, running
from steptape import Recorder
from steptape.api.app import create_app
from steptape.store.run_info import Attempt, RunInfo, write_run_info

STEPS = 200
PHASED = "20260101T000000-cccccc"
NS_PER_S = 10**9
SPIKE = 150

#: The samples whose losses stay high, as if their labels were wrong.
WRONG = ("cat-13", "cat-27")

POLICY = """
name: guard
params: {spike: 3.0, window: 20}
controllers:
  - name: loss_spike
    triggers: [on_step_end]
    rule: len(loss) >= window and loss > spike * mean(loss, window)
    severity: warning
    message: the loss is {loss}
    operations: [hfcontrols.should_save]
  - name: not_finite
    triggers: [on_step_end]
    rule: not isfinite(loss)
    operations: [hfcontrols.should_training_stop]
"""


def loss_at(step: int) -> float:
    """Return a falling loss with one spike."""
    return 2 / math.sqrt(step) + (4 if step == SPIKE else 0)


def record_run(store: Path, name: str, *, rules: Path | None = None, scale: float = 1.0, **about: Any) -> Path:
    """Record a sealed run of ``STEPS`` steps with samples, evaluations and checkpoints; return its folder."""
    with Recorder(store, name=name, rules=rules, total_steps=STEPS, **about) as rec:
        for step in range(1, STEPS + 1):
            loss = scale * loss_at(step)
            ids = [f"cat-{(4 * step + k) % 40}" for k in range(4)]
            losses = [9.0 if sample in WRONG else loss for sample in ids]
            rec.step(loss=loss, lr=0.1, samples=losses, sample_ids=ids)
            if step % 20 == 0:
                rec.evaluate(eval_loss=loss * 1.1)
                rec.save(f"step-{step}.pt", size_bytes=1000)
        rec.annotate("bad shard", first_step=SPIKE - 2, last_step=SPIKE + 2)
    rec.close(seal=True)
    return rec.folder


def serving(store: Path, **options: Any) -> AbstractContextManager[str]:
    """Serve a store for the duration of the context, which yields the address."""
    return running(create_app(store, limits=PATIENT, **options))


def record_phases(store: Path, name: str = "phased") -> Path:
    """Write a run of 80 s of training in 80 steps, with two evaluations of 10 s and in each a checkpoint of 2 s."""
    writer = begin(store, PHASED, name=name)
    now_ns = 0

    def span(name: str, step: int, began_ns: int, ended_ns: int, **more: str) -> None:
        attrs = json.dumps({"name": name, "began_ns": began_ns, **more}).encode()
        seconds = ((ended_ns - began_ns) / NS_PER_S,)
        metric = (f"Time/{name}_seconds",)
        writer.append("span", metric, seconds, step=step, time_ns=STARTED_NS, elapsed_ns=ended_ns, attrs=attrs)

    for step in range(1, 81):
        now_ns += NS_PER_S
        writer.append("step_end", ("loss",), (1 / step,), step=step, time_ns=STARTED_NS, elapsed_ns=now_ns)
        if step % 40 == 0:
            began_ns, now_ns = now_ns, now_ns + 10 * NS_PER_S
            span("checkpoint", step, began_ns + 3 * NS_PER_S, began_ns + 5 * NS_PER_S)
            span("eval", step, began_ns, now_ns, **({"trace": "/traces/<b>40</b>.json"} if step == 40 else {}))
    writer.append("train_end", (), (), step=80, time_ns=STARTED_NS + now_ns, elapsed_ns=now_ns)
    writer.close()
    ended = (Attempt(0, "completed", STARTED_NS, STARTED_NS + now_ns, steps=80),)
    write_run_info(store / PHASED, RunInfo(PHASED, name, ended))
    return store / PHASED
