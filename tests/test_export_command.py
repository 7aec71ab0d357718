"""``steptape export`` writes the same events as JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import call as steptape

from steptape import Recorder, open_run
from steptape.store.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of three steps, one with NaN and one without ``lr``, resumed after the second, with 600 more metrics."""
    store = tmp_path_factory.mktemp("exported") / "runs"
    with Recorder(store, name="first") as rec:
        rec.step({f"w/{index}": 0.5 for index in range(600)}, loss=2.0, lr=0.1)
        rec.step(loss=math.nan, lr=0.1)
        rec.save("checkpoint-2")
        rec.step(loss=9.0, lr=0.1)
    with Recorder(store, resume=(rec.run_id, 2)) as again:
        again.step(loss=1.0)
        again.evaluate({"eval, loss": 1.5})
    return open_run(again.folder)


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return steptape("export", *arguments)


def test_csv_and_parquet_hold_the_events_of_json_lines(run: Run, tmp_path: Path) -> None:
    """The suffix chooses the format. A metric that an event lacks is empty; every metric has its column."""
    for name in ("run.jsonl", "run.csv", "run.PARQUET"):
        assert call(run.folder, "--output", tmp_path / name).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    events = [line for line in lines if line["event"] != "plan"]
    cells = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    rows = pq.read_table(tmp_path / "run.PARQUET").to_pylist()

    assert [(row["kind"], int(row["step"]), int(row["seq"])) for row in cells] == [
        (event["event"], event["step"], event["seq"]) for event in events
    ]
    steps = [row for row in cells if row["kind"] == "step_end"]
    assert [(row["loss"], row["lr"], row["w/599"]) for row in steps] == [
        ("2", "0.1", "0.5"), ("nan", "0.1", ""), ("1", "", ""),
    ]  # fmt: skip
    assert [row["eval, loss"] for row in cells if row["kind"] == "evaluate"] == ["1.5"]
    assert str(rows) == str(run.table(attempts="effective").to_pylist())
    assert len(rows[0]) == 12 + 603


def test_the_format_may_be_named_and_rolled_back_events_included(run: Run, tmp_path: Path) -> None:
    """``--format`` wins over the suffix; ``--all`` adds the step that the resume rolled back."""
    printed = [call(run.folder, "--format", "csv", *more).stdout for more in ((), ("--all",))]
    assert call(run.folder, "--format", "parquet", "--output", tmp_path / "run.csv", "--all").returncode == 0

    counts = [[row["kind"] for row in csv.DictReader(io.StringIO(text))].count("step_end") for text in printed]
    assert counts == [3, 4]
    assert str(pq.read_table(tmp_path / "run.csv").to_pylist()) == str(run.table().to_pylist())


def test_parquet_is_not_written_to_standard_output(run: Run) -> None:
    """A terminal cannot show it."""
    result = call(run.folder, "--format", "parquet")

    assert (result.returncode, result.stdout) == (2, "")
    assert "name a file with --output FILE" in result.stderr


@pytest.mark.parametrize("name", ["run.xlsx", "run.csv.gz", "run.json"])
def test_a_suffix_that_names_no_format_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    """Nothing is written; ``--format`` allows any suffix."""
    refused = call(run.folder, "--output", tmp_path / name)
    is_there = (tmp_path / name).exists()
    chosen = call(run.folder, "--output", tmp_path / name, "--format", "jsonl")

    assert (refused.returncode, is_there, chosen.returncode) == (2, False, 0)
    assert "no format has the suffix" in " ".join(refused.stderr.split())
    assert json.loads((tmp_path / name).read_text().splitlines()[0])["event"] == "plan"
