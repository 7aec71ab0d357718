"""Rules that read what undos and rollbacks did decide live as in a replay, whenever values come and the run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import Journal, Recorder, open_run, verify
from steptape.store.run import Run

_READ = (
    "undos > {n}",
    "undos_to_point == {n}",
    "rollbacks >= {n}",
    "loss > at_point(loss)",
    "median(loss, 3) > at_point(median(loss, 3)) + {n}",
    "undos > lag(host, 1)",
    'steps_since("back") == {n}',
    "at_point(host) < host and undos_to_point < {n}",
)
_BACK = ("undo.to(before={n})", "undo.to(before=0, times=1)", "undo.to(before={n}, times=9)")


@st.composite
def rule_files(draw: st.DrawFn) -> str:
    """Draw rules that order undos and rollbacks, and others that read what these did."""
    number = st.integers(0, 4)
    back = draw(st.sampled_from(_BACK)).format(n=draw(number))
    cooldown = draw(st.integers(1, 3))
    lines = [
        f'  - {{name: back, triggers: [on_step_end], rule: loss > 5, cooldown: {cooldown}, operations: ["{back}"]}}',
        '  - {name: far, triggers: [on_step_end], rule: loss > 8, operations: ["rollback.to(last)"]}',
    ]
    for index in range(draw(st.integers(1, 4))):
        rule = draw(st.sampled_from(_READ)).format(n=draw(number)).replace("'", '"')
        lines.append(f"  - {{name: r{index}, triggers: [on_step_end], rule: '{rule}', operations: []}}")
    return "controllers:\n" + "\n".join(lines) + "\n"


def play(folder: Path, text: str, losses: list[float], late: bool, split: int) -> Run:
    """Train as long as there are losses, and resume once in between from the newest checkpoint."""
    rules = folder / "rules.yaml"
    rules.write_text(text)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    resume: Any = None
    run = ""
    for part in (losses[:split], losses[split:]):
        journal = Journal(value_lag=3) if late else None
        with Recorder(folder / "runs", rules=str(rules), resume=resume, journal=journal, quiet=True) as rec:
            run = rec.run_id
            rec.restore_points(model, optimizer, every=2)
            rec.handle("rollback.to", lambda _: None)
            for index, loss in enumerate(part):
                if late:
                    rec.step(host=float(index), awaits=["loss"])
                    rec.late(rec.progress.updates, loss=loss)
                else:
                    rec.step(loss=loss, host=float(index))
                if index % 4 == 3:
                    rec.save(f"{index}.pt", size_bytes=1)
            resume = rec.state_dict()
    return open_run(folder / "runs" / run)


@pytest.mark.filterwarnings("ignore")
@examples(40)
@given(
    text=rule_files(),
    losses=st.lists(st.sampled_from([1.0, 2.0, 6.0, 9.0]), min_size=4, max_size=24),
    late=st.booleans(),
    split=st.integers(1, 12),
)
def test_what_rules_read_of_undos_replays_alike(
    tmp_path_factory: pytest.TempPathFactory, text: str, losses: list[float], late: bool, split: int
) -> None:
    """Each run has restore points, undos, rollbacks or none; a stop that an exhausted undo asks for is ignored."""
    run = play(tmp_path_factory.mktemp("run"), text, losses, late, split)

    verification = verify(run)
    assert verification.identical, verification
