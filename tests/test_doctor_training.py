"""``steptape doctor --training`` names what went wrong in a training, each kind on a log made for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import call

from steptape import Plan, Ranks, Recorder, open_run
from steptape.integrations.linnaeus import TrainingProgress
from steptape.store.reading.training import check_training
from steptape.store.run import Run

#: Samples of an epoch, and of a batch.
SAMPLES, BATCH = 60, 5


def faults(run: Run) -> dict[str, str]:
    """Return what was found, by code."""
    return {fault.code: fault.what for fault in run.read(check_training)[0]}


def epoch_of(order: Sequence[int]) -> Iterator[list[int]]:
    """Yield the batches of an epoch."""
    for begin in range(0, SAMPLES, BATCH):
        yield list(order[begin : begin + BATCH])


def rate_at(step: int) -> float:
    """Return a learning rate that falls."""
    return 0.1 * 0.99**step


@pytest.fixture
def resumed(tmp_path: Path) -> Callable[..., Run]:
    """A function that records an epoch that breaks off after 8 of 12 updates, and resumes after 5 with this loader."""

    def record(loader: Callable[[int], Iterator[list[int]]], *, losses: bool = True, rate: float = 1.0) -> Run:
        order = random.Random(1).sample(range(SAMPLES), SAMPLES)
        named = (lambda ids: {"samples": [1.0] * len(ids)}) if losses else (lambda _: dict[str, Any]())
        with Recorder(tmp_path, name="resumed") as rec:
            rec.epoch_begin()
            for step, ids in zip(range(1, 9), epoch_of(order), strict=False):
                rec.step(loss=1.0, lr=rate_at(step), sample_ids=ids, **named(ids))
                if step == 5:
                    state = rec.state_dict()
            rec.close(status="interrupted")
        with Recorder(tmp_path, resume=state) as rec:
            for step, ids in zip(range(6, 13), loader(6), strict=False):
                rec.step(loss=1.0, lr=rate * rate_at(step), sample_ids=ids, **named(ids))
            rec.epoch_end()
        return open_run(rec.folder)

    return record


def from_order(seed: int, first: int) -> Callable[[int], Iterator[list[int]]]:
    """Return a loader of the epoch in the order of a seed, from this update on."""
    order = random.Random(seed).sample(range(SAMPLES), SAMPLES)
    return lambda _: iter([*epoch_of(order)][first - 1 :])


@pytest.mark.parametrize("losses", [True, False])
def test_a_resume_that_restores_everything_is_fine(resumed: Callable[..., Run], losses: bool) -> None:
    """The loader continues where the checkpoint was."""
    assert faults(resumed(from_order(1, 6), losses=losses)) == {}


@pytest.mark.parametrize("losses", [True, False])
def test_an_order_replayed_from_the_beginning_is_told(resumed: Callable[..., Run], losses: bool) -> None:
    """The loader begins its epoch anew: 25 samples come twice, and 5 of the rolled-back ones never."""
    found = faults(resumed(from_order(1, 1), losses=losses))

    assert (
        "replayed the order of epoch 0 from its beginning: updates 6 to 10 take the samples of updates 1 to 5"
        in (found["replayed-order"])
    )
    if losses:
        assert "25 samples seen twice, 5 never" in found["data-order"]


def test_another_shuffle_is_told_with_the_samples_seen_twice_and_never(resumed: Callable[..., Run]) -> None:
    """Its samples are counted against those that the log knows."""
    run = resumed(from_order(2, 6))
    found = faults(run)

    old, new = (random.Random(seed).sample(range(SAMPLES), SAMPLES) for seed in (1, 2))
    twice = set(old[:25]) & set(new[25:])
    never = set(old[:40]) - set(old[:25]) - set(new[25:])
    assert found["changed-order"] == "attempt 1 takes other samples at update 6 than attempt 0 did"
    assert f"{len(twice)} samples seen twice, {len(never)} never" in found["data-order"]


def test_a_learning_rate_that_jumps_is_told(resumed: Callable[..., Run]) -> None:
    """The schedule began anew."""
    assert faults(resumed(from_order(1, 6), rate=2.0))["lr-jump"].startswith("the learning rate of update 6 is")


def test_a_resume_without_ids_is_said_to_be_unknown(tmp_path: Path) -> None:
    """It is no finding: the exit status stays 0."""
    with Recorder(tmp_path, run_id="plain") as rec:
        rec.step(loss=1.0)
    with Recorder(tmp_path, resume=("plain", 1)) as rec:
        rec.step(loss=1.0)

    result = call("doctor", rec.folder, "--training")

    assert (result.returncode, "nothing is wrong" in result.stdout) == (0, True)
    assert "the data order after the resume at step 1 is unknown" in result.stderr


def lost(rec: Recorder) -> None:
    """Leave an update out."""
    for step in (1, 2, 4, 5):
        rec.step(loss=1.0, step=step)


def doubled(rec: Recorder) -> None:
    """Record an update twice."""
    for step in (1, 2, 2, 3):
        rec.step(loss=1.0, step=step)


def leftover(rec: Recorder) -> None:
    """Count the last update of an epoch without recording it."""
    for epoch in range(2):
        rec.epoch_begin()
        for step in (1, 2):
            rec.step(loss=1.0, step=3 * epoch + step)
        rec.epoch_end()


def open_leftover(rec: Recorder) -> None:
    """End an epoch with micro-batches of no update."""
    rec.epoch_begin()
    rec.event("substep_end")
    rec.step(loss=1.0)
    rec.event("substep_end")
    rec.epoch_end()


def rounded_down(rec: Recorder) -> None:
    """Plan 10 batches by 4 as two updates an epoch."""
    rec.declare(total_steps=4, total_epochs=2)
    for _ in range(2):
        rec.epoch_begin()
        for _ in range(3):
            rec.step(loss=1.0)
        rec.epoch_end()


@pytest.mark.parametrize(
    ("loop", "code", "what"),
    [
        (lost, "lost-update", "update 3 was not recorded (attempt 0)"),
        (doubled, "doubled-update", "update 2 of attempt 0 comes after update 2"),
        (leftover, "unlogged-leftover", "update 3 was"),
        (open_leftover, "unlogged-leftover", "micro-batches at the end of epoch 0 that no update took: 1"),
        (rounded_down, "plan-mismatch", "2 epochs of 3 updates are 6; the plan says 4"),
    ],
)
def test_each_defect_of_a_loop_is_named(tmp_path: Path, loop: Callable[[Recorder], None], code: str, what: str) -> None:
    """It is the only finding of its log."""
    with Recorder(tmp_path) as rec:
        loop(rec)

    found = faults(open_run(rec.folder))

    assert [*found] == [code]
    assert what in found[code]


def accumulated(folder: Path, *, across_epochs: bool, says_micro_steps: bool, epochs: int = 2) -> Recorder:
    """Record epochs of 10 micro-batches, four of which make an update, counted across epochs or in each epoch."""
    with Recorder(folder, quiet=True) as rec:
        count = 0
        for _ in range(epochs):
            rec.epoch_begin()
            count = count if across_epochs else 0
            for _ in range(10):
                count += 1
                if count % 4:
                    rec.event("substep_end")
                else:
                    rec.step(loss=1.0, micro_step=4 if says_micro_steps else 0)
            rec.epoch_end()
    return rec


@pytest.mark.parametrize("across_epochs", [True, False])
@pytest.mark.parametrize("says_micro_steps", [True, False])
def test_micro_batches_left_over_at_the_end_of_an_epoch_count_once(
    tmp_path: Path, across_epochs: bool, says_micro_steps: bool
) -> None:
    """Whether the loop takes them into the next update or drops them, live as on disk."""
    rec = accumulated(tmp_path, across_epochs=across_epochs, says_micro_steps=says_micro_steps)

    assert rec.progress.micro_steps == open_run(rec.folder).progress().micro_steps == 20


@pytest.mark.parametrize("says_micro_steps", [True, False])
def test_micro_batches_that_the_next_update_takes_are_no_finding(tmp_path: Path, says_micro_steps: bool) -> None:
    """Those at the end of the training are: no update follows."""
    whole = accumulated(tmp_path, across_epochs=True, says_micro_steps=says_micro_steps)
    cut = accumulated(tmp_path, across_epochs=True, says_micro_steps=says_micro_steps, epochs=3)

    assert faults(open_run(whole.folder)) == {}
    assert faults(open_run(cut.folder)) == {
        "unlogged-leftover": "micro-batches at the end of epoch 2 that no update took: 2"
    }


@pytest.mark.parametrize("says_micro_steps", [True, False])
def test_micro_batches_that_the_loop_drops_are_a_finding(tmp_path: Path, says_micro_steps: bool) -> None:
    """Of each epoch; the updates themselves are as large as ever."""
    rec = accumulated(tmp_path, across_epochs=False, says_micro_steps=says_micro_steps)

    assert [(fault.code, fault.what) for fault in open_run(rec.folder).read(check_training)[0]] == [
        ("unlogged-leftover", f"micro-batches at the end of epoch {epoch} that no update took: 2") for epoch in range(2)
    ]


def test_an_epoch_that_a_resume_trains_again_is_told(tmp_path: Path) -> None:
    """The checkpoint at the end of epoch 0 named epoch 0, so the loop began there."""
    with Recorder(tmp_path) as rec:
        rec.epoch_begin(0)
        for _ in range(3):
            rec.step(loss=1.0)
        rec.epoch_end()
        state = rec.state_dict()
    with Recorder(tmp_path, resume=state) as rec:
        for epoch in range(2):
            rec.epoch_begin(epoch)
            for _ in range(3):
                rec.step(loss=1.0)
            rec.epoch_end()

    assert faults(open_run(rec.folder)) == {"repeated-epoch": "attempt 1 trained epoch 0 again, which had ended"}


def test_an_epoch_that_begins_at_the_fraction_at_which_the_one_before_was_cut_is_none_again(tmp_path: Path) -> None:
    """An epoch that was cut short says nothing about the plan. One that begins earlier is told."""
    with Recorder(tmp_path, plan=Plan(steps_per_epoch=6)) as rec:
        for begun, steps, finished in ((0, 3, 0.5), (0.5, 6, None), (None, 6, None)):
            rec.epoch_begin(begun)
            for _ in range(steps):
                rec.step(loss=1.0)
            rec.epoch_end(finished)
        assert faults(open_run(rec.folder)) == {}
        rec.epoch_begin(0.5)

    assert faults(open_run(rec.folder)) == {"repeated-epoch": "attempt 0 trained epoch 0.5 again, which had ended"}


def test_ranks_that_made_other_updates_are_told(tmp_path: Path) -> None:
    """A run that broke off may end at another step on each rank."""
    for rank, steps in ((0, 5), (1, 4)):
        with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=rank, world_size=2)) as rec:
            for _ in range(steps):
                rec.step(loss=1.0)

    assert faults(open_run(tmp_path / "job")) == {
        "rank-disagreement": "rank 1 recorded 4 updates, rank 0 5, up to step 5"
    }


def test_a_clean_run_of_several_epochs_has_no_finding_and_the_command_says_so(tmp_path: Path) -> None:
    """Every other finding is an exit status of 1."""
    with Recorder(tmp_path / "clean", plan=Plan(total_epochs=2)) as rec:
        progress = TrainingProgress(total_epochs=2, accumulation_steps=2, recorder=rec)
        for _ in range(2):
            progress.start_epoch()
            for index in range(5):
                progress.update_step(4, index % 2 == 0 and index < 4)
            progress.end_epoch()
    with Recorder(tmp_path / "lost") as other:
        lost(other)

    results = [call("doctor", "--training", each.folder) for each in (rec, other)]

    assert [result.returncode for result in results] == [0, 1]
    assert "[lost-update]" in results[1].stdout
