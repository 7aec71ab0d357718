"""Real torch trainings under a policy do what the backtest of the same training without rules predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "predicted_vs_live.py"


@pytest.mark.parametrize("training", ["wine-dropout", "cancer-poisoned"])
def test_a_training_under_a_policy_goes_as_its_backtest_said(training: str, tmp_path: Path) -> None:
    """The last step, the checkpoints with their content, and every evaluation agree to the bit. The script has more."""
    command = [sys.executable, str(SCRIPT), "--only", training, "--store", str(tmp_path)]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    compared = json.loads(result.stdout)
    assert compared["differs_in"] == []
    assert compared["live_steps"] == compared["predicted_steps"] < compared["recorded_steps"]
    assert compared["compared_weights"] > 0
