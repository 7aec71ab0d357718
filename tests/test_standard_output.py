"""Commands handle a standard output that closes early or has a limited encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptape import Recorder, load_policy
from steptape.cli.streams import CLOSED_PIPE
from steptape.rules.policy_file.policy import shipped_policies


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one run with more events than a pipe holds."""
    path = tmp_path_factory.mktemp("store")
    with Recorder(path, name="long", rules=load_policy(shipped_policies()["loss_spike"])) as rec:
        for step in range(3000):
            rec.step(loss=1.0 + step % 7)
            if step % 100 == 0:
                rec.evaluate(eval_loss=1.0)
                rec.save(f"{step}.pt", size_bytes=1)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ("export", "long", "--store", "STORE"),
        ("show", "long", "--store", "STORE"),
        ("runs", "--store", "STORE"),
        ("runs", "--store", "STORE", "--json"),
        ("query", "SELECT step, loss FROM steps", "--store", "STORE"),
        ("tail", "long", "--store", "STORE"),
        ("backtest", "loss_spike", "--store", "STORE"),
        ("verify", "--store", "STORE"),
        ("--help",),
        ("runs", "--help"),
    ],
    ids=" ".join,
)
def test_a_reader_that_has_had_enough_ends_any_command_quietly(command: tuple[str, ...], store: Path) -> None:
    """The exit status is the one that shells give other tools, and nothing is printed."""
    arguments = [str(store) if word == "STORE" else word for word in command]
    ours, theirs = os.pipe()
    os.close(ours)

    with os.fdopen(theirs, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "steptape", *arguments], stdout=closed, stderr=subprocess.PIPE, check=False
        )

    assert done.returncode == CLOSED_PIPE
    assert done.stderr == b""


def test_signs_of_ours_are_plain_ones_where_the_encoding_lacks_them(store: Path, tmp_path: Path) -> None:
    """Columns stay aligned with their headings."""
    policy = tmp_path / "stop.yaml"
    policy.write_text(
        "controllers:\n  - name: late\n    triggers: [on_step_end]\n    rule: step >= 1000\n"
        "    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]\n"
    )
    command = [sys.executable, "-m", "steptape", "backtest", str(policy), "--store", str(store)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}

    plain = subprocess.run(command, capture_output=True, text=True, check=True, env=ascii_only).stdout
    signs = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    lines = plain.splitlines()
    place = next(index for index, line in enumerate(lines) if "->" in line)
    heading, row = lines[place - 1 : place + 1]
    assert "→" in signs
    assert heading.index("saves") + len("saves") == row.index("->") + len(row[row.index("->") :].split()[0])


def test_a_long_table_is_printed_in_parts_of_bounded_memory(store: Path) -> None:
    """Three hundred thousand rows take hardly more than a thousand, as a table and as JSON lines."""

    def peak_bytes(rows: int, *options: str) -> int:
        sql = f"SELECT range AS n, 'abc' AS t FROM range({rows})"
        command = [sys.executable, "-m", "steptape", "query", sql, "--store", str(store), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_maxrss << 10

    assert peak_bytes(300_000) < peak_bytes(1000) + (100 << 20)
    assert peak_bytes(300_000, "--json") < peak_bytes(1000, "--json") + (100 << 20)


def test_the_rows_of_a_long_table_are_aligned_with_its_head(store: Path) -> None:
    """Columns keep the width that the first thousand rows need."""
    sql = "SELECT range AS n, repeat('x', range::INT % 7) AS text, range / 4 AS quarter FROM range(1000, 4000)"
    command = [sys.executable, "-m", "steptape", "query", sql, "--store", str(store)]

    head, *rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert [int(row.split()[0]) for row in rows] == list(range(1000, 4000))
    assert {row.index("x") for row in rows if "x" in row} == {head.index("text")}
