"""``steptape samples`` prints the samples behind a spike, and says where there are none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_line import call as steptape

from steptape import Recorder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run whose samples 7 and 8 spike at step 30, and with one that recorded no samples."""
    store = tmp_path_factory.mktemp("samples") / "runs"
    with Recorder(store, name="spiky") as rec:
        for step in range(1, 41):
            bad = 40.0 if step == 30 else 2.0
            losses = None if step == 35 else [2.0, bad, 2.0, bad / 2]
            rec.step(loss=2.0, samples=losses, sample_ids=None if losses is None else [1, 7, 3, 8])
    with Recorder(store, name="plain") as rec:
        rec.step(loss=1.0)
    return store


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return steptape("samples", *arguments)


def test_the_samples_that_drove_a_spike_come_first(store: Path) -> None:
    """A table shows their losses, their excess and what was seen of them before."""
    result = call("spiky", "--store", store, "--step", 30)

    headline, _, heading, *rows = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert headline == "4 samples at step 30; normal loss 2"
    assert heading.split()[3:6] == ["sample_id", "loss", "excess"]
    assert [row.split()[3:6] for row in rows[:2]] == [["7", "40", "38"], ["8", "20", "18"]]


def test_as_json_each_sample_is_one_line(store: Path) -> None:
    """The columns are those of ``Run.spiking_samples``."""
    rows = [json.loads(line) for line in call("spiky", "--store", store, "--step", 30, "--json").stdout.splitlines()]

    assert [row["sample_id"] for row in rows] == ["7", "8", "1", "3"]
    assert rows[0]["share"] == pytest.approx(38 / 56)
    assert {"step", "attempt", "rank", "position", "typical", "seen", "earlier_loss"} <= set(rows[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("spiky", "--step", 35), "no sample losses at this step; got 35. Nearest steps with samples: 34, 36, 33"),
        (("spiky", "--step", 99), "the run has no such step; got 99. Its steps are 0 to 40"),
        (("plain", "--step", 1), "the run recorded no sample losses. Pass them to rec.step: samples=LOSSES"),
        (("spikey", "--step", 1), "no run has this id or name; got 'spikey'. Did you mean 'spiky'?"),
        (("spiky",), "Missing option '--step'"),
    ],
)
def test_where_there_is_nothing_to_print_the_message_says_what_is_near(
    store: Path, arguments: tuple[object, ...], said: str
) -> None:
    """The exit status is 2, and stdout stays empty."""
    result = call(*arguments, "--store", store)

    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
