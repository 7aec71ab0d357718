"""The pages and the example about Hugging Face's Trainer run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

from documents import run_page
from waiting import PATIENCE_S

from steptape.store.run import Run

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_trains_as_it_shows(tmp_path: Path) -> None:
    """Its blocks that need transformers run here."""
    assert run_page(ROOT / "docs" / "how-to" / "transformers.md", tmp_path / "page") == []
    assert any(
        Run(path.parent).info.config.get("output_dir") == "out" for path in tmp_path.glob("page/runs/*/run.json")
    )


def test_the_example_stops_an_overfitting_run(tmp_path: Path) -> None:
    """With a checkpoint of its best evaluation; it is at most 40 lines long."""
    script = ROOT / "examples" / "scripts" / "transformers_training.py"
    done = subprocess.run(
        [sys.executable, script, "runs"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert "stopped after" in done.stdout, done.stderr
    (path,) = tmp_path.glob("runs/*/run.json")
    run = Run(path.parent)
    assert run.status == "stopped"
    assert [event.step for event in run.stream() if event.kind == "save"] != []
    assert len(script.read_text().splitlines()) <= 45
