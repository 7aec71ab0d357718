"""The ranks of a job obey rules at the same step, or not at all, and no rank waits longer than the timeout."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agreeing import Job, Launcher
from drawing import scaled, seed

from steptape import Ranks, Recorder, TelemetryError, open_store, verify

RULES = """
controllers:
  - {name: third, triggers: [on_step_end], rule: loss == 3, operations: [hfcontrols.should_save]}
  - {name: sixth, triggers: [on_step_end], rule: loss == 6, operations: [hfcontrols.should_evaluate]}
  - {name: high, triggers: [on_step_end], rule: loss >= 15, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """A process that forks the ranks of all jobs."""
    with Launcher() as started:
        yield started


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose rules ask for a checkpoint at step 3, an evaluation at step 6 and a stop at step 15."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    return Job(str(tmp_path / "runs"), str(rules))


def notes(job: Job) -> dict[int, list[dict[str, Any]]]:
    """Return the ``agreement`` notes of each rank, with the step of the event as ``at``."""
    (run_of_job,) = open_store(Path(job.store))
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(job.ranks)}
    rows = run_of_job.rows("SELECT rank, step, attrs FROM events WHERE kind = 'agreement' ORDER BY rank, seq")
    for row in rows:
        found[row["rank"]].append({"at": row["step"], **json.loads(row["attrs"])})
    return found


def status(job: Job) -> str:
    """Return how the run of a job ended. Its decisions must be those of a replay."""
    (run_of_job,) = open_store(Path(job.store))
    assert verify(run_of_job).identical
    return run_of_job.status


@pytest.mark.parametrize("has_callbacks", [False, True])
def test_every_rank_obeys_every_order_at_the_same_step(launcher: Launcher, job: Job, *, has_callbacks: bool) -> None:
    """Each rank records when an order took effect. A callback is called for each, whether or not it calls ``save``.

    Rank 0 alone names at the end what was not recorded.
    """
    again = "  - {name: ninth, triggers: [on_step_end], rule: loss == 9, operations: [hfcontrols.should_save]}\n"
    Path(str(job.rules)).write_text(RULES + again)
    job = dataclasses.replace(job, ranks=4, has_callbacks=has_callbacks, reduces=True)

    results = launcher.run(job)

    stops = [15] if has_callbacks else results[0]["stop"]
    expected = {"left": 15, "save": [3, 9], "evaluate": [6], "stop": stops}
    assert [{key: results[rank][key] for key in expected} for rank in range(4)] == [expected] * 4
    orders = [(3, "save"), (6, "evaluate"), (9, "save"), (15, "stop")]
    assert notes(job) == {
        rank: [{"at": at, "orders": [order], "step": at} for at, order in orders] for rank in range(4)
    }
    assert status(job) == "stopped"
    said = [line.partition(", but")[0] for line in results[0]["warnings"]]
    vain = ["a rule asked for a checkpoint at step 3", "a rule asked for an evaluation at step 6"]
    assert said == vain * has_callbacks
    assert [results[rank]["warnings"] for rank in (1, 2, 3)] == [[]] * 3


def test_an_order_takes_effect_at_the_next_agreement_on_the_values_of_all_ranks(launcher: Launcher, job: Job) -> None:
    """Rank 0 appends what it gathers before it decides. A value that is not finite outlasts newer ones."""
    any_nan = "  - {name: nan, triggers: [on_step_end], rule: any_rank(not isfinite(loss)), operations: []}\n"
    apart = "  - {name: apart, triggers: [on_step_end], rule: spread(loss) > 5, operations: [hfcontrols.should_log]}\n"
    Path(str(job.rules)).write_text(RULES + any_nan + apart)
    losses = {"1": {"5": float("nan"), "9": 19.0, "10": 19.0}}
    job = dataclasses.replace(job, agree_every=2, losses=losses, forks=True, steps=16)

    results = launcher.run(job)

    assert [(each["save"], each["evaluate"], each["left"]) for each in results.values()] == [([4], [6], 16)] * 2
    (run_of_job,) = open_store(Path(job.store))
    gathered = {event.step: event for event in run_of_job.events() if event.kind == "ranks"}
    assert [*gathered] == [*range(2, 17, 2)]
    assert {name: value for name, value in gathered[4].metrics.items() if "loss" in name} == {"loss@0": 4, "loss@1": 4}
    assert str(gathered[6].metrics["loss@1"]) == "nan"
    assert 0.0 <= gathered[8].metrics["step_time_s@1"] < 10.0
    assert gathered[8].attrs == {"world_size": 2}
    made = [
        (row["controller"], row["step"]) for row in run_of_job.decisions().to_pylist() if row["controller"] != "high"
    ]
    assert made == [("third", 3), ("sixth", 6), ("nan", 6), ("apart", 10)]
    assert status(job) == "stopped"


def test_a_loop_that_makes_no_agreement_is_warned_and_not_steered(launcher: Launcher, job: Job) -> None:
    """It cannot hang: no rank leaves the loop before the others."""
    job = dataclasses.replace(job, agree_every=0, reduces=True)

    results = launcher.run(job)

    assert [(each["left"], each["save"], each["stop"]) for each in results.values()] == [(20, [], [])] * 2
    assert sum("has not called rec.agree()" in line for line in results[0]["warnings"]) == 1
    assert results[1]["warnings"] == []
    assert status(job) == "completed"


@pytest.mark.parametrize(("steps", "agree_every"), [(120, 20), (300, 200)])
def test_a_loop_is_warned_when_an_order_has_waited_long_for_an_agreement(
    launcher: Launcher, job: Job, steps: int, agree_every: int
) -> None:
    """An agreement every 20 steps is no reason, also where the loop takes seconds for them."""
    high = RULES.replace("loss >= 15", "loss >= 1000")
    Path(str(job.rules)).write_text(high)
    pauses = {"10": 1.2, "115": 1.2, "150": 1.2}
    job = dataclasses.replace(job, steps=steps, agree_every=agree_every, sleeps={"0": pauses})

    results = launcher.run(job)

    assert [(each["save"], each["evaluate"]) for each in results.values()] == [([agree_every], [agree_every])] * 2
    told = [line for line in results[0]["warnings"] if "has not called rec.agree()" in line]
    assert [line.partition(" steps")[0].rpartition(" ")[2] for line in told] == ([] if agree_every == 20 else ["116"])
    assert results[1]["warnings"] == []


@pytest.mark.parametrize(
    "late",
    [
        {"sleeps": {"0": {"15": 4.0}}},
        {"sleeps": {"1": {"15": 4.0}}},
        {"suspends": {"0": {"15": 4.0}}},
        {"suspends": {"1": {"15": 4.0}}},
    ],
    ids=["rank 0 sleeps", "rank 1 sleeps", "rank 0 is suspended", "rank 1 is suspended"],
)
def test_no_rank_is_steered_any_more_once_one_came_too_late(launcher: Launcher, job: Job, late: dict[str, Any]) -> None:
    """The other does not wait longer than the timeout, both train on, and both record it."""
    job = dataclasses.replace(job, timeout_s=2.0, **late)

    results = launcher.run(job)

    assert [(each["left"], each["save"], each["stop"]) for each in results.values()] == [(20, [3], [])] * 2
    (waiting,) = (rank for rank in (0, 1) if rank not in map(int, [*job.sleeps, *job.suspends]))
    assert results[waiting]["longest_s"] < job.timeout_s
    for rank, found in notes(job).items():
        assert [note for note in found if "off" in note] == [found[-1]]
        assert found[-1]["at"] == 15
        (warning,) = [line for line in results[rank]["warnings"] if "agrees with the other ranks no longer" in line]
        assert found[-1]["off"] in warning
    assert status(job) == "completed"


@pytest.mark.parametrize(
    ("delays_s", "pause_s"),
    [((7.0, 0.0), 0.0), ((0.0, 7.0), 0.0), ((0.0, 7.0), 6.0)],
    ids=["before it commits", "after it has committed", "after it has committed, and all are suspended"],
)
def test_a_rank_gives_up_while_rank_0_commits_a_stop(
    launcher: Launcher, job: Job, delays_s: tuple[float, float], pause_s: float
) -> None:
    """Rank 1 gives up 4 s after rank 0 has come, whose order takes 7 s. Either both ranks stop, or none does."""
    sleeps = {"0": {"15": 5.0}}
    job = dataclasses.replace(job, timeout_s=12.0, sleeps=sleeps, store_delays_s=delays_s, pause_s=pause_s)
    is_committed = delays_s == (0.0, 7.0)

    results = launcher.run(job)

    assert {rank: each["stop"] for rank, each in results.items()} == dict.fromkeys((0, 1), [15] if is_committed else [])
    assert all(each["longest_s"] < job.timeout_s + pause_s for each in results.values())
    found = notes(job)
    assert all(({"at": 15, "orders": ["stop"], "step": 15} in own) == is_committed for own in found.values())
    assert "off" in found[1][-1]
    assert is_committed or "off" in found[0][-1]
    assert status(job) == ("stopped" if is_committed else "completed")


def test_a_rank_that_is_told_that_another_gave_up_does_not_obey(launcher: Launcher, job: Job) -> None:
    """Rank 1 gives up 4 s after ranks 0 and 2 have come, and rank 0 reads it in the store 3 s later."""
    sleeps = {"0": {"15": 5.0}, "2": {"15": 5.0}}
    job = dataclasses.replace(job, ranks=3, timeout_s=12.0, sleeps=sleeps, store_delays_s=(7.0, 0.0))

    results = launcher.run(job)

    assert [(each["left"], each["stop"]) for each in results.values()] == [(20, [])] * 3
    assert all("off" in found[-1] for found in notes(job).values())
    assert status(job) == "completed"


@pytest.mark.parametrize("killed", [0, 1])
def test_the_other_ranks_train_on_unsteered_when_one_is_killed(launcher: Launcher, job: Job, killed: int) -> None:
    """They do not wait for it: its connections are closed."""
    job = dataclasses.replace(job, ranks=4, kills={str(killed): 15})

    results = launcher.run(job)

    assert [(each["left"], each["stop"]) for each in results.values()] == [(20, [])] * 3
    assert all(each["longest_s"] < job.timeout_s for each in results.values())
    found = notes(job)
    assert all("off" in found[rank][-1] for rank in results)


def test_ranks_at_different_steps_are_warned_once(launcher: Launcher, job: Job) -> None:
    """They still obey at the same agreement."""
    job = dataclasses.replace(job, first_steps={"1": 2})

    results = launcher.run(job)

    assert [each["stop"] for _, each in sorted(results.items())] == [[15], [16]]
    (warning,) = results[1]["warnings"]
    assert "got 'step 2 on rank 1, step 1 on rank 0'" in warning
    assert [note for note in notes(job)[1] if "own_step" in note] == [{"at": 2, "step": 1, "own_step": 2}]


def test_ranks_without_a_process_group_steer_rank_0_only_and_say_so(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``agree`` returns at once."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with Recorder(job.store, rules=job.rules, run_id="job-1") as rec:
        assert rec.step(loss=15.0).should_stop
        assert rec.agree() is rec.control

    assert sum("no process group connects the 2 ranks" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("inf"), float("nan"), "10"])
def test_a_timeout_that_is_none_is_refused(tmp_path: Path, timeout_s: Any) -> None:
    """Before anything is written."""
    with pytest.raises(TelemetryError, match="agree_timeout_s must be a finite number above 0"):
        Recorder(tmp_path, ranks=Ranks(agree_timeout_s=timeout_s))

    assert not list(tmp_path.iterdir())


def test_ranks_that_are_late_suspended_or_killed_at_random_never_disagree() -> None:
    """Nor does one wait beyond the timeout. ``benchmarks/agreement_stops.py`` alone makes 1,000 stops."""
    script, stops = Path(__file__).parents[1] / "benchmarks" / "agreement_stops.py", scaled(20)
    command = [sys.executable, str(script), "--stops", str(stops), "--kills", str(stops // 10), "--seed", str(seed())]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    tally = json.loads(result.stdout)
    assert (tally["stops"], tally["killed"]) == (stops, stops // 10)
    assert tally["obeyed"] > 0
