"""Progress counts what was trained, over uneven batches, ranks and resumes; linnaeus' names tell the same."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE_S

from steptape import Ranks, Recorder, Samples, open_run
from steptape.integrations.linnaeus import (
    DistributedContext,
    MetricsTracker,
    TrainingConsistencyChecker,
    TrainingProgress,
    get_rank_safely,
    get_world_size,
    milestone,
)
from steptape.store.reading.tally import ProgressCounts
from steptape.store.reading.training import check_training
from steptape.store.run import Run

FRACTIONS = [*(f"{n / 100:.2f}" for n in range(1, 101)), Fraction(1, 3)]


def config(*, epochs: int = 3, accumulation: int = 4, batch: int = 8) -> SimpleNamespace:
    """Return a configuration as linnaeus has it."""
    train = SimpleNamespace(EPOCHS=epochs, ACCUMULATION_STEPS=accumulation)
    return SimpleNamespace(TRAIN=train, DATA=SimpleNamespace(BATCH_SIZE=batch))


def batches(count: int, accumulation: int) -> Iterator[bool]:
    """Yield for each micro-batch of an epoch whether the optimizer does not step."""
    for index in range(count):
        yield (index + 1) % accumulation != 0 and index != count - 1


def train(progress: TrainingProgress, epochs: int, count: int, accumulation: int, batch: int = 8) -> None:
    """Train whole epochs."""
    for _ in range(epochs):
        progress.start_epoch()
        for accumulates in batches(count, accumulation):
            progress.update_step(batch, accumulates)
        progress.end_epoch()


def codes(run: Run) -> list[str]:
    """Return the codes of what is inconsistent."""
    return [fault.code for fault in run.read(check_training)[0]]


def test_three_epochs_of_ten_batches_by_four_are_nine_updates(tmp_path: Path) -> None:
    """The last update of an epoch takes what is left. Live, from the log and by the facade the counts are the same."""
    with Recorder(tmp_path) as rec:
        progress = TrainingProgress(config(), accumulation_steps=4, recorder=rec)
        train(progress, 3, 10, 4, batch=8)
        live = rec.progress
    run = open_run(rec.folder)

    sizes = [event.micro_step for event in run.events() if event.kind == "step_end"]
    assert sizes == 3 * [4, 4, 2]
    assert live == run.progress() == ProgressCounts(3.0, 9, 0, 30, 240, None, 9)
    assert (progress.epoch, progress.step, progress.global_step, progress.samples_seen) == (3, 30, 9, 240)
    assert run.progress().fraction == 1.0
    assert codes(run) == []


def test_samples_are_the_sum_over_ranks_with_uneven_last_batches(tmp_path: Path) -> None:
    """They are recorded, so no product of batch size, ranks and steps stands in for them."""
    given = {0: [8, 8, 5], 1: [8, 8, 3]}
    for rank, sizes in given.items():
        with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=rank, world_size=2)) as rec:
            for size in sizes:
                rec.step(num_samples=size, num_tokens=10 * size)
            assert (rec.progress.samples, rec.progress.tokens) == (sum(sizes), 10 * sum(sizes))

    counted = open_run(tmp_path / "job").progress()

    assert (counted.samples, counted.tokens, counted.updates) == (40, 400, 3)


@pytest.mark.parametrize(("drop_last", "samples"), [(False, 40), (True, 32)])
def test_a_last_batch_that_the_loader_drops_counts_for_nothing(tmp_path: Path, drop_last: bool, samples: int) -> None:
    """Ranks with 21 and 19 samples, in batches of 8."""
    loading = pytest.importorskip("torch.utils.data")
    for rank, count in enumerate((21, 19)):
        with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=rank, world_size=2)) as rec:
            progress = TrainingProgress(world_size=2, total_epochs=1, recorder=rec)
            progress.start_epoch()
            for batch in loading.DataLoader(range(count), batch_size=8, drop_last=drop_last):
                progress.update_step(len(batch))
            progress.end_epoch()

    assert open_run(tmp_path / "job").progress().samples == samples


@pytest.mark.parametrize("form", ["losses", "ids", "every third", "highest two"])
def test_samples_are_counted_however_they_are_recorded(tmp_path: Path, form: str) -> None:
    """Sample losses that are kept in part, or ids alone, count whole batches; live as from the sealed log."""
    choice = {"every third": Samples(every=3), "highest two": Samples(top=2)}.get(form)
    with Recorder(tmp_path, samples=choice) as rec:
        for step in range(7):
            losses = None if form == "ids" else [1.0] * (step + 1)
            rec.step(loss=1.0, sample_ids=[*range(step + 1)], samples=losses)
        live = rec.progress.samples
    rec.close(seal=True)

    assert live == open_run(rec.folder).progress().samples == 28


def test_world_size_and_accumulation_may_change_between_attempts(tmp_path: Path) -> None:
    """What was rolled back does not count, and each attempt counts what it recorded."""
    for rank in (0, 1):
        with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=rank, world_size=2)) as rec:
            for _ in range(10):
                rec.step(loss=1.0, num_samples=4, micro_step=2)
    with Recorder(tmp_path, resume=("job", 6)) as rec:
        for _ in range(4):
            rec.step(loss=1.0, num_samples=8, micro_step=3)
        live = rec.progress

    counted = open_run(tmp_path / "job").progress()

    assert (counted.updates, counted.micro_steps, counted.samples) == (10, 6 * 2 + 4 * 3, 6 * 4 * 2 + 4 * 8)
    assert (live.updates, live.micro_steps, live.samples) == (10, 24, 6 * 4 + 4 * 8)


@pytest.mark.parametrize("across_epochs", [True, False])
def test_samples_of_micro_batches_that_no_update_took_are_seen_once(tmp_path: Path, across_epochs: bool) -> None:
    """The loop takes leftovers of the first epoch into the next update, or drops them; the last ones have no update."""
    with Recorder(tmp_path) as rec:
        for epoch in range(2):
            rec.epoch_begin()
            for index in range(23):
                if (index + 1 + 23 * epoch * across_epochs) % 4:
                    rec.event("substep_end", num_samples=8)
                else:
                    rec.step(loss=1.0, micro_step=4, num_samples=32)
            rec.epoch_end()
        live = rec.progress

    assert (live.micro_steps, live.samples) == (46, 368)
    assert open_run(rec.folder).progress() == live


def test_an_epoch_that_takes_micro_batches_of_the_one_before_may_have_an_update_more_than_planned(
    tmp_path: Path,
) -> None:
    """The plan is made from the first epoch, which is the shortest."""
    run = drive(tmp_path, (count % 4 != 0 for count in range(1, 21)))

    assert run.progress().samples == 160
    assert [event.micro_step for event in run.events() if event.kind == "step_end"] == [4] * 5
    assert run.info.last.newest_plan.max_steps() == 4
    assert codes(run) == []


def test_the_facade_counts_the_samples_of_all_processes(tmp_path: Path) -> None:
    """Each process is dealt as many; what it records are its own."""
    for rank in range(2):
        with Recorder(tmp_path, run_id="job", ranks=Ranks(rank=rank, world_size=2)) as rec:
            progress = TrainingProgress(config(epochs=1), world_size=2, accumulation_steps=4, recorder=rec)
            train(progress, 1, 10, 4, batch=8)

    assert progress.samples_seen == open_run(tmp_path / "job").progress().samples == 160


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4, 5])
def test_each_share_is_reached_once_at_the_rounded_up_update(accumulation: int) -> None:
    """It is asked after every micro-batch; each length of a training asks a seventh of the shares."""
    for total in range(1, 201):
        fired: dict[Any, list[int]] = {fraction: [] for fraction in FRACTIONS[(total + accumulation) % 7 :: 7]}
        progress = TrainingProgress(total_epochs=1, accumulation_steps=accumulation)
        progress.expected_total_steps = total
        for _ in range(total):
            for inner in range(accumulation):
                progress.update_step(1, inner < accumulation - 1)
                for fraction in filter(progress.is_fraction_point, fired):
                    fired[fraction].append(progress.global_step)
        assert fired == {fraction: [max(1, -(-Fraction(fraction) * total // 1))] for fraction in fired}


def test_a_run_that_crashed_and_resumed_has_each_update_and_each_milestone_once(tmp_path: Path) -> None:
    """It crashed at update 137, after a checkpoint at 100. What was rolled back stays readable."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "controllers:\n  - {name: quarter, triggers: [on_step_end], rule: (step * 4) // max_steps > "
        "((step - 1) * 4) // max_steps, operations: [hfcontrols.should_evaluate]}\n"
    )
    with Recorder(tmp_path, rules=rules, total_steps=200) as rec:
        for step in range(1, 138):
            rec.step(loss=1.0)
            if step == 100:
                state = rec.state_dict()
                rec.save("checkpoint", size_bytes=1)
        rec.fail(RuntimeError("crash"))
    with Recorder(tmp_path, rules=rules, resume=state, total_steps=200) as rec:
        for _ in range(100):
            rec.step(loss=1.0)
    run = open_run(rec.folder)

    assert [event.step for event in run.events() if event.kind == "step_end"] == [*range(1, 201)]
    assert run.decisions()["step"].to_pylist() == [50, 100, 150, 200]
    assert run.rows("SELECT count(*) AS n FROM events WHERE rolled_back AND kind = 'step_end'") == [{"n": 37}]
    assert run.progress().updates == 200
    assert codes(run) == []


def test_a_skipped_update_counts_as_tried(tmp_path: Path) -> None:
    """Mixed precision skips it; the step counts on."""
    with Recorder(tmp_path) as rec:
        for step in range(4):
            rec.step(loss=1.0, applied=step != 2)
        live = rec.progress

    assert (live.updates, live.skipped) == (4, 1)
    assert open_run(rec.folder).progress() == live


def test_updates_of_every_form_are_counted_live_as_from_the_log(tmp_path: Path) -> None:
    """Plain values, numbered steps and nested mappings take other ways through the recorder."""
    with Recorder(tmp_path, log_every=3) as rec:
        for step in range(1, 41):
            rec.step(loss=1.0)
            rec.step({"loss": 1.0}, step=1000 * step)
            rec.step(loss=1.0, micro_step=3)
            rec.step(loss=1.0, num_tokens=step, step=1000 * step + 5)
            rec.step({"train": {"loss": 1.0}}, step=1000 * step + 6)
            rec.event("substep_end")
            rec.event("substep_end")
            rec.step(loss=1.0)
        live = rec.progress
    counted = open_run(rec.folder).progress()

    assert (live.micro_steps, live.tokens) == (40 * (4 + 3 + 3), sum(range(41)))
    assert live == counted


def test_the_share_grows_from_nothing_to_one_and_is_unknown_without_a_plan(tmp_path: Path) -> None:
    """Until the first epoch has ended, linnaeus' names count the current one."""
    with Recorder(tmp_path, total_steps=7) as rec:
        shares = [rec.progress.fraction]
        for _ in range(7):
            rec.step(loss=1.0)
            shares.append(rec.progress.fraction)
    progress = TrainingProgress(config(epochs=2))
    shares_of_epochs = [progress.get_progress_fraction()]
    progress.start_epoch()
    progress.update_step(1)
    progress.update_step(1)
    shares_of_epochs.append(progress.get_progress_fraction())
    progress.end_epoch()
    progress.start_epoch()
    progress.update_step(1)
    shares_of_epochs.append(progress.get_progress_fraction())

    assert shares == [0.0, *(step / 7 for step in range(1, 7)), 1.0]
    assert shares_of_epochs == [0.0, 0.5, 0.75]
    assert math.isnan(TrainingProgress().get_progress_fraction())
    assert ProgressCounts(updates=3).fraction is None


def test_the_checker_foretells_the_updates_at_which_shares_are_reached() -> None:
    """Both round up, as the loop does at the end of an epoch."""
    checker = TrainingConsistencyChecker(config(), accumulation_steps=4)
    checker.initialize_with_first_epoch(actual_steps=10)
    progress = TrainingProgress(config())
    fired: dict[Any, int] = {}
    progress.expected_total_steps = 9
    foretold = checker.calculate_expected_fractions(["0.25", "0.5", "0.75", Fraction(1, 3)])
    for _ in range(9):
        progress.update_step(1)
        fired |= {fraction: progress.global_step for fraction in foretold if progress.is_fraction_point(fraction)}

    assert foretold == fired == {"0.25": 3, "0.5": 5, "0.75": 7, Fraction(1, 3): 3}
    assert milestone(0.07, 100) == 7


def test_validation_is_due_once_for_each_milestone_with_99_updates_in_an_epoch() -> None:
    """It is asked after every update and at the end of every epoch."""
    due: dict[str, list[int]] = {"epochs": [], "steps": [], "fraction": []}
    progress = {name: TrainingProgress(total_epochs=10) for name in due}
    every: dict[str, Any] = {"epochs": {"epochs": 2}, "steps": {"steps": 250}, "fraction": {"fraction": 0.25}}
    for name, each in progress.items():
        each.expected_total_steps = 990
        for _ in range(10):
            each.start_epoch()
            for _ in range(99):
                each.update_step(1)
                if each.should_validate(**every[name]):
                    due[name].append(each.global_step)
            each.end_epoch()
            if each.should_validate(**every[name]):
                due[name].append(each.global_step)

    assert due == {
        "epochs": [198, 396, 594, 792, 990],
        "steps": [250, 500, 750],
        "fraction": [248, 495, 743, 990],
    }


@pytest.mark.parametrize(
    ("interval", "due"),
    [
        ({"INTERVAL_EPOCHS": 2}, [6]),
        ({"INTERVAL_STEPS": 4}, [4, 8]),
        ({"INTERVAL_FRACTION": 0.5}, [5, 9]),
        ({"INTERVAL_STEPS": 0}, []),
    ],
)
def test_validation_is_due_at_the_intervals_of_the_configuration(interval: dict[str, Any], due: list[int]) -> None:
    """The keys are those of the page's example, and any may be missing."""
    settings = config()
    settings.SCHEDULE = SimpleNamespace(VALIDATION=SimpleNamespace(**interval))
    progress, asked = TrainingProgress(settings), []
    progress.expected_total_steps = 9
    for _ in range(3):
        progress.start_epoch()
        for _ in range(3):
            progress.update_step(8)
            asked += [progress.global_step] * progress.should_validate()
        progress.end_epoch()
        asked += [progress.global_step] * progress.should_validate()

    assert asked == due


def test_the_state_of_metrics_is_dumped_while_the_training_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the kind of event, so that a validation's loss is not the training's."""
    with Recorder(tmp_path) as rec, caplog.at_level(logging.INFO, "steptape"):
        for loss in (3.0, math.nan, 2.0):
            rec.step(loss=loss)
        rec.evaluate(loss=2.5)
        state = MetricsTracker(rec).dump_metrics_state()

    trained = state["step_end"]["loss"]
    assert (trained["count"], trained["last"], trained["last_step"], trained["nonfinite"]) == (3, 2.0, 3, 1)
    assert state["evaluate"]["loss"]["last"] == 2.5
    assert "loss of evaluate: " in caplog.text


def test_the_example_of_progress_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the document's, apart from its imports; its loop is written out."""
    config_ = config(epochs=2, accumulation=2)
    progress = TrainingProgress(
        config=config_, world_size=get_world_size(), accumulation_steps=config_.TRAIN.ACCUMULATION_STEPS
    )

    # At epoch start
    progress.start_epoch()

    # For each batch
    for step_idx in range(4):
        is_optimizer_step = progress.update_step(
            batch_size=config_.DATA.BATCH_SIZE,
            is_accumulation_step=(step_idx % config_.TRAIN.ACCUMULATION_STEPS != 0),
        )
        assert is_optimizer_step == (step_idx % 2 == 0)

    # At epoch end
    progress.end_epoch()

    # Check training progress
    if progress.get_progress_fraction() >= 0.5:
        print("Training is 50% complete")

    # Check for specific fraction points (e.g., 25%, 50%, 75%)
    if progress.is_fraction_point(0.25):
        print("Just reached 25% of training")

    assert capsys.readouterr().out == "Training is 50% complete\nJust reached 25% of training\n"


def test_the_example_of_the_checker_runs(caplog: pytest.LogCaptureFixture) -> None:
    """An epoch with fewer batches is told, and so is a first epoch that does not fit its data."""
    checker = TrainingConsistencyChecker(config=config(), world_size=1, accumulation_steps=4)

    # After first epoch, initialize expectations
    checker.initialize_with_first_epoch(actual_steps=10, dataset_size=80)

    # Periodically validate
    is_consistent = [checker.validate_epoch_steps(epoch=epoch, actual_steps=10 - epoch // 2) for epoch in (1, 2)]

    assert is_consistent == [True, False]
    with caplog.at_level(logging.WARNING, "steptape"):
        checker.initialize_with_first_epoch(actual_steps=7, dataset_size=80)
    assert "the first epoch took 7 batches" in caplog.text


def test_the_example_of_the_context_runs_without_torch_distributed() -> None:
    """One object, which may be initialized again: a job may grow."""
    dist_ctx = DistributedContext()
    dist_ctx.initialize(is_distributed=False, world_size=get_world_size(), rank=get_rank_safely())

    @dist_ctx.master_only
    def log_something() -> str:
        return "This only runs on rank 0"

    assert dist_ctx.is_master
    assert log_something() == "This only runs on rank 0"
    assert dist_ctx.all_gather("my_tensor") == ["my_tensor"]
    DistributedContext().initialize(is_distributed=True, world_size=2, rank=1)
    assert (dist_ctx.rank, dist_ctx.world_size, dist_ctx.is_master, log_something()) == (1, 2, False, None)
    dist_ctx.initialize()


def test_the_context_gathers_and_reduces_over_the_processes_of_a_group(tmp_path: Path) -> None:
    """Two of them, which leave each other's tensors as they are."""
    pytest.importorskip("torch")
    script = """
        import datetime, sys
        import torch, torch.distributed as dist
        from steptape.integrations.linnaeus import DistributedContext
        rank, limit = int(sys.argv[1]), datetime.timedelta(minutes=10)
        dist.init_process_group("gloo", f"file://{sys.argv[2]}", timeout=limit, rank=rank, world_size=2)
        ctx, own = DistributedContext(), torch.tensor([1.0 + rank])
        assert (ctx.rank, ctx.world_size, ctx.is_distributed, ctx.is_master) == (rank, 2, True, rank == 0)
        assert [each.item() for each in ctx.all_gather(own)] == [1.0, 2.0]
        assert (ctx.all_reduce(own).item(), ctx.all_reduce(own, average=False).item()) == (1.5, 3.0)
        assert own.item() == 1.0 + rank
        dist.destroy_process_group()
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")]) for rank in range(2)]

    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0]


def test_counts_continue_from_a_checkpoint() -> None:
    """A milestone that was reached before is not reached again."""
    first = TrainingProgress(config(epochs=2))
    train(first, 1, 4, 1)
    assert first.is_fraction_point(0.5)
    second = TrainingProgress(config(epochs=2), world_size=2)
    second.load_state_dict(first.state_dict())
    train(second, 1, 4, 1)

    assert (second.global_step, second.epoch, second.world_size) == (8, 2, 2)
    assert not second.is_fraction_point(0.5)
    assert second.is_fraction_point(1)


def drive(folder: Path, flags: Iterator[bool]) -> Run:
    """Record two epochs of ten batches with these accumulation flags."""
    with Recorder(folder) as rec:
        progress = TrainingProgress(config(epochs=2), accumulation_steps=4, recorder=rec)
        for _ in range(2):
            progress.start_epoch()
            for accumulates in islice(flags, 10):
                progress.update_step(8, accumulates)
            progress.end_epoch()
    return open_run(rec.folder)


def test_the_document_s_wrong_flag_is_told_by_its_micro_batches(tmp_path: Path) -> None:
    """The first batch is taken for a whole update, so updates take 1, 4, 4 and one batch is left over."""
    run = drive(tmp_path, (index % 4 != 0 for _ in range(2) for index in range(10)))

    faults = {fault.code: fault.what for fault in run.read(check_training)[0]}
    assert set(faults) == {"accumulation", "unlogged-leftover"}
    assert "update 1 of attempt 0 took 1 of usually 4 micro-batches (1, 4, 4" in faults["accumulation"]


def test_rules_reach_the_shares_that_the_checker_foretells(tmp_path: Path) -> None:
    """The number of all updates is known from the end of the first epoch on; what has passed by then comes at once."""
    shares: list[float | str | Fraction] = ["0.1", "0.25", "0.5", Fraction(1, 3), "1"]
    checker = TrainingConsistencyChecker(config(), accumulation_steps=4)
    checker.initialize_with_first_epoch(actual_steps=10)
    foretold = checker.calculate_expected_fractions(shares)
    rules = tmp_path / "rules.yaml"
    each = "  - {{name: c{0}, triggers: [on_substep_end, on_step_end], rule: milestone(at={1}), operations: []}}\n"
    rules.write_text("controllers:\n" + "".join(each.format(n, share) for n, share in enumerate(shares)))
    fired: dict[Any, int] = {}
    with Recorder(tmp_path, rules=rules) as rec:
        progress = TrainingProgress(config(), accumulation_steps=4, recorder=rec)
        for _ in range(3):
            progress.start_epoch()
            for accumulates in batches(10, 4):
                progress.update_step(8, accumulates)
                fired |= {share: progress.global_step for share in shares if progress.is_fraction_point(share)}
            progress.end_epoch()
    decided = {(row["controller"], row["step"]) for row in open_run(rec.folder).decisions().to_pylist()}

    assert foretold == {"0.1": 1, "0.25": 3, Fraction(1, 3): 3, "0.5": 5, "1": 9}
    assert fired == {**foretold, "0.1": 3, "0.25": 3}
    assert decided == {(f"c{number}", max(3, foretold[share])) for number, share in enumerate(shares)}
