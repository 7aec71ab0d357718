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


def test_the_updates_around_a_step_belong_to_the_spike_within_a_radius(store: Path) -> None:
    """The step in the middle needs no samples."""
    result = call("spiky", "--store", store, "--step", 33, "--radius", 3)

    headline, _, _, first, *_ = result.stdout.splitlines()
    assert headline == "24 samples at steps 30 to 36; normal loss 2"
    assert first.split()[0] == "30"


def test_a_radius_without_a_step_is_refused(store: Path) -> None:
    """The samples that stay hard are of all steps."""
    result = call("spiky", "--store", store, "--radius", 3)

    assert (result.returncode, result.stdout) == (2, "")
    assert "give the step with --step" in result.stderr


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
    ],
)
def test_where_there_is_nothing_to_print_the_message_says_what_is_near(
    store: Path, arguments: tuple[object, ...], said: str
) -> None:
    """The exit status is 2, and stdout stays empty."""
    result = call(*arguments, "--store", store)

    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


def test_without_a_step_the_samples_that_stay_hard_come_first(store: Path) -> None:
    """Sample 7 spiked once. None is above the median of its batch each time."""
    result = call("spiky", "--store", store)

    headline, _, heading, first, *_ = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert headline == "4 samples, by how far their loss stayed above the median of the batch"
    assert heading.split() == ["sample_id", "seen", "least_above", "least", "greatest", "at_step"]
    assert first.split() == ["7", "39", "0", "2", "40", "30"]


def test_samples_without_ids_are_named_by_a_step_alone(tmp_path: Path) -> None:
    """Their positions in a batch say nothing over the whole run."""
    with Recorder(tmp_path, name="nameless", quiet=True) as rec:
        rec.step(loss=1.0, samples=[1.0, 2.0])

    result = call("nameless", "--store", tmp_path)

    assert (result.returncode, result.stdout) == (2, "")
    assert "the samples of this run have no ids" in result.stderr
