"""Warnings name what the user of an adapter can call: no adapter's user holds a recorder of the name ``rec``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steptape import Recorder
from steptape.recorder import advice
from steptape.recorder.advice import OWN, Advice, advising

ROWS = {name: row for name, row in vars(advice).items() if isinstance(row, Advice)}

ALL = """
controller_metrics: [{name: batch, class: DataBatchInspector}]
controllers:
  - {name: spikes, triggers: [on_step_end], rule: batch.is_bad, operations: []}
  - {name: logged, triggers: [on_log], rule: x > 0, operations: [hfcontrols.should_save]}
  - {name: ends, triggers: [on_epoch_end, on_save], rule: loss > 0, operations: [hfcontrols.should_save]}
  - {name: evaluated, triggers: [on_evaluate], rule: eval_loss > 0 and epoch > 1, operations: []}
  - {name: sleeps, triggers: [on_sleep, on_ranks], rule: loss > 0, operations: []}
  - {name: lowers, triggers: [on_step_end], rule: loss > 5, operations: [lr.scale(0.5), detail.set(1)]}
  - {name: skips, triggers: [on_step_begin], rule: loss > 5, operations: [batch.skip()]}
  - name: orders
    triggers: [on_step_end]
    rule: step >= 2
    operations: [hfcontrols.should_save, hfcontrols.should_evaluate, hfcontrols.should_epoch_stop]
  - {name: stops, triggers: [on_step_end], rule: step >= 2, operations: [hfcontrols.should_training_stop]}
"""


def warnings_of(folder: Path, row: Advice, caplog: pytest.LogCaptureFixture) -> str:
    """Return what a loop is warned of that does everything wrong."""
    (folder / "all.yaml").write_text(ALL)
    with advising(row), Recorder(folder, rules=folder / "all.yaml", total_steps=20) as rec:
        rec.log(loss=1.0)
        for step in (0, *range(20), 3):
            rec.step({"loss": 1.0, "step": 1.0}, step=step)
        rec.save("s3://bucket/a")
    rec.step(loss=1.0)
    return caplog.text


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"OWN"}))
def test_a_warning_names_what_the_user_of_an_adapter_can_call(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row speaks of its own calls. What the adapter itself orders, such as the steps, is not warned of."""
    said = warnings_of(tmp_path, ROWS[name], caplog)

    assert "but none was recorded" in said
    assert "did not occur in this run" in said
    assert "this loop would refuse it" in said
    assert "no step of this run had any" in said
    assert re.findall(r"(?<![\w.])rec\.\w+", said) == []
    assert "log does not count steps" not in said
    assert "go backwards" not in said
    assert "size_bytes=" not in said


def test_a_loop_of_its_own_is_warned_of_its_own_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has all of the calls."""
    said = warnings_of(tmp_path, OWN, caplog)

    for call in ("rec.step does", "rec.evaluate(...)", "rec.learning_rate(", "Give size_bytes=", "go backwards"):
        assert call in said
