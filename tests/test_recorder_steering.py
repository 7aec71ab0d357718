"""Operations that steer: what the loop does, what the log keeps of it, and that a replay says the same."""

from __future__ import annotations

import copy
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from steered_loops import GUARD, SCHEDULERS, SKIP, Training, rollback

from steptape import Plan, Recorder, TelemetryError, load_policy, open_run, verify
from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.effects import LearningRateState, parse_call
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

SPIKES = {5: 4.0, 12: 5.0, 20: 4.0, 30: 4.0}


def written(folder: Path, text: str = GUARD) -> Path:
    """Write a policy, and return its path."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def events(run: Run, *kinds: str) -> list[Event]:
    """Return the events of some kinds."""
    return [event for event in run.events() if event.kind in kinds]


def receipts(run: Run) -> list[tuple[int, str, str]]:
    """Return step, operation and reason of each receipt; the reason is empty for one that was applied."""
    found = events(run, "operation_applied", "operation_refused")
    return [(event.step, event.attrs["operation"], event.attrs.get("reason", "")) for event in found]


def track(run: Run) -> list[tuple[int, float, float, float]]:
    """Return step, base, scheduled and used learning rate of each update."""
    names = ("lr.base", "lr.scheduled", "lr.used")
    steps = [event for event in events(run, "step_end") if "lr.used" in event.metrics]
    return [(event.step, *(event.metrics[name] for name in names)) for event in steps]  # type: ignore[misc]


def closed(rec: Recorder) -> Run:
    """End a run, and return it once its replay was seen to be identical, with its learning rates to the bit."""
    rec.close(seal=True)
    run = open_run(rec.folder)
    assert verify(run).identical, verify(run)
    if track(run):
        assert run.info.last.policy is not None
        points = learning_rates(replay(parse_policy(run.info.last.policy.text), run), run)
        assert [(point.step, point.base, point.scheduled, point.used) for point in points] == track(run)
        assert {str(point.validity) for point in points} == {"exact"}
    return run


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_rules_change_the_rate_of_every_group_and_the_scheduler_sees_nothing_of_it(
    scheduler: str, tmp_path: Path
) -> None:
    """The base rates are to the bit those of a training without rules; the log holds the rates that trained."""
    plain, steered = Training(scheduler), Training(scheduler, SPIKES)
    for step in range(1, 41):
        plain.update(step)
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(steered.optimizer, steered.scheduler)
    steered.run(rec, 40)
    run = closed(rec)

    assert [base for _, base, _, _ in track(run)] == [rates[0] for rates in plain.rates]
    assert steered.shown_rates() == plain.shown_rates()
    assert receipts(run) == [
        (5, "lr.scale(0.5, over=6)", ""),
        (12, "lr.scale(0.5, over=6)", ""),
        (20, "lr.reduce(0.5)", ""),
        (30, "lr.scale(0.5, over=6)", ""),
    ]
    state, expected = LearningRateState(), []
    for step in range(1, 41):
        expected.append(list(state.used(step, plain.rates[step - 1])))
        if step in SPIKES:
            operation = next(operation for at, operation, _ in receipts(run) if at == step)
            state = state.after(parse_call(operation), step, plain.rates[step - 1])
    assert steered.rates == expected
    assert [used for *_, used in track(run)] == [rates[0] for rates in expected]


def test_a_resume_in_the_middle_of_an_override_continues_it(tmp_path: Path) -> None:
    """The split run has the same rates, weights and decisions as the whole one."""
    whole, split = Training(losses=SPIKES), Training(losses=SPIKES)
    rules = written(tmp_path)
    rec = Recorder(tmp_path / "whole", rules=rules)
    rec.learning_rate(whole.optimizer)
    whole.run(rec, 40)
    unsplit = closed(rec)
    first = Recorder(tmp_path / "split", rules=rules)
    first.learning_rate(split.optimizer)
    split.run(first, 14)
    split.save(first, tmp_path / "14.pt")
    first.close()
    again = Training(losses=SPIKES)
    second = Recorder(tmp_path / "split", rules=rules, resume=again.load(tmp_path / "14.pt"))
    second.learning_rate(again.optimizer)
    again.run(second, 40)
    resumed = closed(second)

    assert track(resumed) == track(unsplit)
    assert split.rates + again.rates == whole.rates
    assert torch.equal(again.model.weight, whole.model.weight)
    assert receipts(resumed) == receipts(unsplit)


def test_a_resume_from_before_a_receipt_rolls_the_override_back(tmp_path: Path) -> None:
    """A permanent reduction of a part that no longer counts is gone as well."""
    training, rules = Training(losses={5: 4.0, 10: 4.0, 15: 4.0}), written(tmp_path)
    first = Recorder(tmp_path / "runs", rules=rules)
    first.learning_rate(training.optimizer)
    training.run(first, 16, saves=[4], folder=tmp_path)
    first.close()
    assert track(open_run(first.folder))[-1][2:] == (training.rates[-1][0], training.rates[-1][0])
    again = Training()
    second = Recorder(tmp_path / "runs", rules=rules, resume=again.load(tmp_path / "4.pt"))
    second.learning_rate(again.optimizer)
    again.run(second, 20)

    run = closed(second)
    assert receipts(run) == []
    assert all(base == used for _, base, _, used in track(run))


def test_an_update_that_mixed_precision_skips_has_no_rate_and_counts_for_the_blend(tmp_path: Path) -> None:
    """The scaler does not call the optimizer after an overflow."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(optimizer)
    for step in range(1, 13):
        optimizer.zero_grad()
        loss = (weight * (float("inf") if step == 7 else 1.0)).sum()
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        rec.step(loss=4.0 if step == 5 else 1.0, applied=step != 7)

    assert [(step, round(used, 6)) for step, _, _, used in track(closed(rec))][4:11] == [
        (5, 1.0),
        (6, 0.583333),
        (8, 0.75),
        (9, 0.833333),
        (10, 0.916667),
        (11, 1.0),
        (12, 1.0),
    ]


def test_a_loop_without_pytorch_asks_for_its_rate(tmp_path: Path) -> None:
    """The object that it calls returns the rate to train with."""
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rate = rec.learning_rate()
    trained = []
    for step in range(1, 14):
        trained.append(rate(2e-4))
        rec.step(loss=4.0 if step == 5 else 1.0)

    assert trained[4] == trained[10] == 2e-4
    assert trained[5:10] == pytest.approx([2e-4 * (0.5 + 0.5 * n / 6) for n in range(1, 6)], rel=1e-12)
    assert [used for *_, used in track(closed(rec))] == trained


def test_a_loop_that_records_some_steps_only_still_blends_by_updates(tmp_path: Path) -> None:
    """Updates since the newest recorded step count."""
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rate = rec.learning_rate()
    trained = []
    for update in range(1, 31):
        trained.append(rate(1.0))
        if update % 10 == 0:
            rec.step(step=update, loss=4.0 if update == 10 else 1.0)

    assert trained[10:16] == pytest.approx([0.5 + 0.5 * n / 6 for n in range(1, 7)])
    assert trained[16:] == [1.0] * 14
    rec.close()


def test_a_change_by_something_else_is_noted_and_kept(tmp_path: Path) -> None:
    """The rate that a loop sets itself is the base from then on."""
    training = Training("StepLR")
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(training.optimizer, training.scheduler)
    training.run(rec, 3)
    training.optimizer.param_groups[0]["lr"] = 0.7
    training.run(rec, 6)

    run = closed(rec)
    (note,) = events(run, "annotation")
    assert note.attrs["text"] == (
        "the learning rate is 0.7, 0.01, and the scheduler had set 0.1, 0.01: something else has changed it"
    )
    assert [base for _, base, *_ in track(run)][2:5] == [0.1, 0.7, 0.7]


def test_a_rule_that_is_asked_within_the_optimizers_step_changes_this_update(tmp_path: Path) -> None:
    """The closure runs before the optimizer reads its rate, as in Lightning; a replay says the same."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rules = GUARD.replace("on_step_end", "on_pre_optimizer_step")
    rec = Recorder(tmp_path, rules=written(tmp_path, rules))
    rec.learning_rate(optimizer, scheduler)
    moved = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        torch.autograd.backward(loss)
        rec.event("pre_optimizer_step", loss=4.0 if rec.progress.updates == 2 else 1.0)
        return loss

    for _ in range(12):
        before = weight.item()
        optimizer.step(closure)
        moved.append(before - weight.item())
        scheduler.step()
        rec.step(lr=0.0)

    rates = [used for *_, used in track(closed(rec))]
    assert moved == pytest.approx(rates, abs=1e-6)
    assert rates[2] == 0.5 * 0.5 + (0.25 - 0.5 * 0.5) * (1 / 6)


def test_the_end_of_a_run_leaves_the_optimizer_alone(tmp_path: Path) -> None:
    """The loop may train on, or begin another run with the same optimizer."""
    training = Training("StepLR", {1: 4.0})
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(training.optimizer)
    training.run(rec, 2)
    rec.close()
    training.update(3)

    assert training.rates[1][0] < 0.1
    assert training.rates[2] == [0.1, 0.01]


def test_an_optimizer_whose_step_fails_gets_its_rate_back(tmp_path: Path) -> None:
    """The next update begins from the schedule's rate again."""
    training = Training("StepLR")
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(training.optimizer)
    training.losses = {2: 4.0}
    training.run(rec, 2)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = training.optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        training.update(3)
    hook.remove()
    training.run(rec, 9)

    assert [base for _, base, *_ in track(closed(rec))] == [0.1] * 7 + [0.05] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rate_in_a_tensor_returns_to_the_schedule(dtype: torch.dtype, tmp_path: Path) -> None:
    """A tensor of 32 bits holds a rounded rate. The next update begins from the schedule's all the same."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1, dtype=dtype), foreach=False)
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD.replace("0.5", "0.3")))
    rec.learning_rate(optimizer)
    for step in range(1, 21):
        weight.grad = torch.ones(3)
        optimizer.step()
        rec.step(loss=SPIKES.get(step, 1.0))
    run = closed(rec)

    assert optimizer.param_groups[0]["lr"].item() == torch.tensor(0.1, dtype=dtype).item()
    assert {base for _, base, _, _ in track(run)} == {torch.tensor(0.1, dtype=dtype).item()}
    assert [step for step, base, _, used in track(run) if used != base] == [6, 7, 8, 9, 10, *range(13, 18)]


@pytest.mark.parametrize("blend", ["linear", "none"])
def test_a_parameter_group_that_comes_during_an_override_joins_it(blend: str, tmp_path: Path) -> None:
    """It begins at the factor of its own rate. Another count of groups ends no training, in a resume neither."""
    first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer, rates = torch.optim.SGD([first], lr=0.1), []
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD.replace("over=6", f"over=6, blend={blend}")))
    rec.learning_rate(optimizer)
    optimizer.register_step_pre_hook(lambda *_: rates.append([group["lr"] for group in optimizer.param_groups]))
    for step in range(1, 16):
        if step == 8:
            optimizer.add_param_group({"params": [second], "lr": 1.0})
        optimizer.step()
        rec.step(loss=SPIKES.get(step, 1.0) if step < 8 else 1.0)
    closed(rec)

    at_8 = {"linear": [0.05 + 0.05 * 3 / 6, 0.5 + 0.5 * 3 / 6], "none": [0.05, 0.5]}
    assert rates[7] == pytest.approx(at_8[blend])
    assert rates[-1] == [0.1, 1.0]
    state = LearningRateState().after(parse_call("lr.scale(0.5, over=6)"), 5, (0.1, 1.0))
    assert state.used(8, (0.1,)) == pytest.approx((0.075,))


def test_a_failure_to_set_the_rate_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The update is made with what the optimizer holds, and the run says so once."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.1}])
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(optimizer)
    del optimizer.param_groups[0]["lr"]
    optimizer.register_step_pre_hook(lambda *_: optimizer.param_groups[0].update(lr=0.1))
    optimizer.register_step_post_hook(lambda *_: optimizer.param_groups[0].pop("lr"))
    for _ in range(3):
        weight.grad = torch.ones(3)
        optimizer.step()
        rec.step(loss=1.0)
    run = closed(rec)

    assert torch.allclose(weight, torch.full((3,), 0.7))
    assert caplog.text.count("rules could not change the learning rate; training continues") == 1
    notes = [event.attrs["text"] for event in events(run, "annotation")]
    assert notes == ["rules could not change the learning rate: KeyError: 'lr'"]
    assert track(run) == []


def test_a_batch_is_left_out_if_the_loop_says_so(tmp_path: Path) -> None:
    """The receipt holds the samples of the batch, and comes with the update that it answers for."""
    training = Training(gradients={4: 50.0})
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + SKIP))
    rec.handle("batch.skip")
    training.run(rec, 6)
    run = closed(rec)

    (receipt,) = events(run, "operation_applied")
    assert (receipt.step, receipt.attrs["sample_ids"], receipt.attrs["num_samples"]) == (4, [40, 41], 2)
    assert len(training.rates) == 5
    assert not rec.control.should_skip
    assert run.progress().skipped == 1


def test_an_update_that_the_loop_makes_all_the_same_refuses_the_skip(tmp_path: Path) -> None:
    """The log does not say that a batch was left out when it was not."""
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + SKIP))
    rec.handle("batch.skip")
    rec.event("pre_optimizer_step", gradients=50.0)
    assert rec.control.should_skip
    rec.step(loss=1.0)

    assert receipts(closed(rec)) == [(1, "batch.skip()", "the loop has applied the update")]


def test_a_rollback_loads_the_newest_checkpoint_and_continues_as_another_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt says where it came from; what was rolled back stays in the log and counts no more."""
    monkeypatch.delenv("STEPTAPE_QUIET", raising=False)
    training = Training(losses={5: 4.0, 17: 200.0})
    rec = Recorder(tmp_path / "runs", rules=written(tmp_path, GUARD + rollback()))
    rec.learning_rate(training.optimizer)

    def load(request: Any) -> Any:
        del training.losses[17]
        return training.load(request.save.path)

    rec.handle("rollback.to", load)
    training.run(rec, 30, saves=[8, 14], folder=tmp_path)
    run = closed(rec)

    assert [(one.attempt, one.parent, one.from_step) for one in run.info.attempts] == [(0, None, None), (1, 0, 14)]
    assert run.info.attempts[0].reason == "rolled back to step 14"
    assert "rolled back to step 14 after 17 steps: " in capsys.readouterr().err
    ((at, operation, _),) = [one for one in receipts(run) if one[1].startswith("rollback")]
    assert (at, operation) == (14, "rollback.to(last)")
    receipt = events(run, "operation_applied")[-1]
    assert {key: receipt.attrs[key] for key in ("from_attempt", "from_step", "save_step")} == {
        "from_attempt": 0,
        "from_step": 17,
        "save_step": 14,
    }
    assert [event.step for event in events(run, "step_end")] == list(range(1, 31))
    whole = Training(losses={5: 4.0})
    unrolled = Recorder(tmp_path / "other", rules=written(tmp_path, GUARD))
    unrolled.learning_rate(whole.optimizer)
    whole.run(unrolled, 30)
    assert track(run) == track(closed(unrolled))
    assert torch.equal(training.model.weight, whole.model.weight)


@pytest.mark.parametrize("operations", ["rollback.to(last), lr.reduce(0.5)", "lr.reduce(0.5), rollback.to(last)"])
def test_a_rate_that_is_cut_with_a_rollback_stays_cut_after_it(operations: str, tmp_path: Path) -> None:
    """The receipt of the cut stands after that of the rollback, in the attempt that goes on."""
    training = Training(losses={9: 200.0})
    rule = f"  - {{name: back, triggers: [on_step_end], rule: loss > 100, operations: [{operations}]}}\n"
    rec = Recorder(tmp_path / "runs", rules=written(tmp_path, "controllers:\n" + rule))
    rec.learning_rate(training.optimizer, training.scheduler)

    def load(request: Any) -> Any:
        training.losses.clear()
        return training.load(request.save.path)

    rec.handle("rollback.to", load)
    training.run(rec, 20, saves=[5], folder=tmp_path)
    run = closed(rec)

    assert receipts(run) == [(5, "rollback.to(last)", ""), (5, "lr.reduce(0.5)", "")]
    assert [used == base for _, base, _, used in track(run)] == [True] * 5 + [False] * 15
    assert all(used == base / 2 for step, base, _, used in track(run) if step > 5)


def test_a_cut_that_comes_with_a_rollback_that_fails_is_made_all_the_same(tmp_path: Path) -> None:
    """The training goes on from where it is, at the lower rate."""
    training = Training(losses={9: 200.0})
    rule = "  - {name: a, triggers: [on_step_end], rule: loss > 100, operations: [rollback.to(last), lr.reduce(0.5)]}\n"
    rec = Recorder(tmp_path / "runs", rules=written(tmp_path, "controllers:\n" + rule))
    rec.learning_rate(training.optimizer, training.scheduler)
    rec.handle("rollback.to", lambda _: "the file is damaged")
    training.run(rec, 12, saves=[5], folder=tmp_path)
    run = closed(rec)

    assert receipts(run) == [(9, "rollback.to(last)", "the file is damaged"), (9, "lr.reduce(0.5)", "")]
    assert [used / base for _, base, _, used in track(run)] == [1.0] * 9 + [0.5] * 3


def test_an_order_at_an_update_that_was_not_recorded_as_applied_is_replayed_to_the_bit(tmp_path: Path) -> None:
    """Its target is relative to a rate that only the receipt tells of."""
    training = Training()
    rec = Recorder(tmp_path, rules=written(tmp_path))
    rec.learning_rate(training.optimizer, training.scheduler)
    for step in range(1, 11):
        training.update(step)
        rec.step(loss=4.0 if step == 4 else 1.0, applied=step != 4)
    run = closed(rec)  # It compares the rates of the replay.

    assert [step for step, base, _, used in track(run) if used != base] == [5, 6, 7, 8, 9]


def test_a_learning_rate_that_rules_cannot_change_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is that of another optimizer, of a copy, or of none; or the process that resumed did not ask for it."""
    training, other = Training(losses={3: 4.0}), Training()
    rec = Recorder(tmp_path / "runs", rules=written(tmp_path))
    with pytest.raises(TelemetryError, match="not an optimizer"):
        rec.learning_rate(training.model.weight)
    rec.learning_rate(other.optimizer)
    rec.learning_rate(training.optimizer)
    assert "another optimizer" in caplog.text
    training.run(rec, 4)
    state = rec.state_dict()
    training.optimizer = copy.deepcopy(training.optimizer)
    training.optimizer._optimizer_step_pre_hooks.clear()
    training.run(rec, 20)
    assert "has not stepped in 10 updates" in caplog.text
    rec.close()

    again = Recorder(tmp_path / "runs", rules=tmp_path / "policy.yaml", resume=state)
    again.step(loss=1.0)
    again.close()

    assert "trains with the schedule's" in caplog.text


def test_rollbacks_that_do_not_help_end(tmp_path: Path) -> None:
    """After three to the same checkpoint the loop trains on, and the log says why."""
    training = Training(losses={9: 200.0})
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + rollback()))

    def load(request: Any) -> Any:
        return training.load(request.save.path)

    rec.handle("rollback.to", load)
    training.run(rec, 12, saves=[5], folder=tmp_path)
    run = closed(rec)

    assert len(run.info.attempts) == 4
    refused = [one for one in receipts(run) if one[2] and one[1].startswith("rollback")]
    assert refused == [(9, "rollback.to(last)", "the run was rolled back to step 5 3 times already")]


@pytest.mark.parametrize("keeps_state", [True, False])
def test_rollbacks_to_a_checkpoint_that_is_never_written_again_end(keeps_state: bool, tmp_path: Path) -> None:
    """A loop whose training diverges at the same step each time meets the limit, in a resumed run too."""
    training = Training(losses={9: 200.0})
    rules = written(tmp_path, GUARD + rollback("rollback.to(last, times=2)"))

    def load(request: Any) -> Any:
        state = training.load(request.save.path)
        return state if keeps_state else None

    rec = Recorder(tmp_path, rules=rules)
    rec.handle("rollback.to", load)
    training.run(rec, 5)
    training.save(rec, tmp_path / "5.pt")
    while len(receipts(open_run(rec.folder))) < 1:
        training.step(rec)
    rec.close()
    rec = Recorder(tmp_path, rules=rules, resume=training.load(tmp_path / "5.pt"))
    rec.handle("rollback.to", load)
    for _ in range(20):
        if rec.progress.updates < 12:
            training.step(rec)
    run = closed(rec)

    assert run.info.last.steps == 12
    refused = [one for one in receipts(run) if one[2] and one[1].startswith("rollback")]
    assert refused == [(9, "rollback.to(last, times=2)", "the run was rolled back to step 5 2 times already")]


@pytest.mark.parametrize("state", [{"weight": torch.ones(2)}, True, "another run"])
def test_a_rollback_continues_from_its_step_if_the_loop_returns_no_state_of_the_run(
    state: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights of the checkpoint are in place by then, so that the record has to continue there."""
    training = Training(losses={9: 200.0})
    if state == "another run":
        with Recorder(tmp_path) as other:
            other.step(loss=1.0)
            state = other.state_dict()
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + rollback()))

    def load(request: Any) -> Any:
        training.load(request.save.path)
        training.losses.clear()
        return state

    rec.handle("rollback.to", load)
    training.run(rec, 5, saves=[5], folder=tmp_path)
    for _ in range(20):
        if rec.progress.updates < 12:
            training.step(rec)
    run = closed(rec)

    assert run.info.last.steps == 12
    assert [(one.step, one.attrs["save_step"]) for one in events(run, "operation_applied")] == [(5, 5)]
    assert "rollback to step 5: its function returned no state of this run" in caplog.text


def test_a_loop_ends_though_its_run_cannot_be_recorded_after_a_rollback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record ends at the rollback. The loop that counts by the recorder trains all its updates from there."""
    training = Training(losses={9: 200.0})
    rec = Recorder(tmp_path / "runs", rules=written(tmp_path, GUARD + rollback()))

    def load(request: Any) -> Any:
        shutil.rmtree(tmp_path / "runs")
        training.losses.clear()
        return training.load(request.save.path)

    rec.handle("rollback.to", load)
    training.run(rec, 8, saves=[5], folder=tmp_path)
    training.step(rec)
    assert rec.progress.updates == 5
    before = len(training.rates)
    for _ in range(20):
        if rec.progress.updates < 12:
            training.step(rec)

    assert len(training.rates) == before + 7
    assert "the run cannot be recorded after its rollback to step 5" in caplog.text


def test_every_skip_has_an_answer(tmp_path: Path) -> None:
    """Two orders for one update have two receipts, and one that the loop never records is refused at the end."""
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + SKIP))
    rec.handle("batch.skip")
    rec.event("pre_optimizer_step", gradients=11.0)
    rec.event("pre_optimizer_step", gradients=12.0)
    rec.step(loss=1.0, applied=False)
    rec.event("pre_optimizer_step", gradients=11.0)
    run = closed(rec)

    assert receipts(run) == [
        (1, "batch.skip()", ""),
        (1, "batch.skip()", ""),
        (1, "batch.skip()", "the run ended before the update was recorded"),
    ]


def test_a_loop_that_never_records_the_skipped_update_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The flag stays until the update is recorded, so such a loop would leave out all its batches."""
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + SKIP))
    rec.handle("batch.skip")
    for batch in range(15):
        rec.event("pre_optimizer_step", gradients=11.0 if batch == 2 else 1.0)
        if rec.control.should_skip:
            continue
        rec.step(loss=1.0)
    closed(rec)

    assert caplog.text.count("should_skip is set since step 2, and every batch since was left out") == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("rollback.to(last, before=7)", "there is no checkpoint up to step 2"),
        ("rollback.to(last)", "the file is damaged"),
        ("rollback.to(last, before=1)", "RuntimeError: no such file"),
    ],
)
def test_a_rollback_that_cannot_be_leaves_the_training_as_it_is(call: str, reason: str, tmp_path: Path) -> None:
    """No checkpoint is old enough, or the loop cannot load it."""
    training = Training(losses={9: 200.0})
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + rollback(call)))

    def load(_: Any) -> str:
        if "before" in call:
            raise RuntimeError("no such file")
        return "the file is damaged"

    rec.handle("rollback.to", load)
    training.run(rec, 12, saves=[5], folder=tmp_path)
    run = closed(rec)

    assert len(run.info.attempts) == 1
    assert [one for one in receipts(run) if one[1] == call] == [(9, call, reason)]


def test_what_the_loop_cannot_do_is_named_at_the_start_and_refused_at_run_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says what to add to the loop."""
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + SKIP + rollback()))
    with caplog.at_level(logging.WARNING, logger="steptape"):
        rec.step(loss=1.0)
    rec.event("pre_optimizer_step", gradients=50.0)
    rec.step(loss=200.0)

    named = [record.message for record in caplog.records if "may order" in record.message]
    assert [message.partition(", and ")[0].removeprefix("rules may order ") for message in named] == [
        "lr.scale(0.5, over=6)",
        "lr.reduce(0.5)",
        "batch.skip()",
        "rollback.to(last)",
    ]
    assert "Call rec.learning_rate(optimizer, scheduler)" in named[0]
    assert not rec.control.should_skip
    why = "the loop has no handler for it"
    assert [(operation, reason) for _, operation, reason in receipts(closed(rec))] == [
        ("batch.skip()", why),
        ("lr.scale(0.5, over=6)", why),
        ("rollback.to(last)", why),
    ]


def test_a_function_of_the_loop_answers_with_details_a_refusal_or_a_failure(tmp_path: Path) -> None:
    """Whatever it does, the training goes on."""
    rules = """
controllers:
  - {name: longer, triggers: [on_step_end], rule: step == 2, operations: [epochs.set(4)]}
  - {name: detail, triggers: [on_step_end], rule: step >= 3, operations: [detail.set(2)]}
"""
    rec = Recorder(tmp_path, rules=written(tmp_path, rules))
    asked: list[Any] = []

    def set_epochs(request: Any) -> dict[str, Any]:
        asked.append((request.operation, dict(request.arguments), request.step, request.controller))
        return {"epochs_before": 3}

    def set_detail(request: Any) -> str | None:
        if request.step == 3:
            raise KeyError("level")
        return "there is no level 2" if request.step == 4 else None

    rec.handle("epochs.set", set_epochs)
    rec.handle("detail.set", set_detail)
    for _ in range(5):
        rec.step(loss=1.0)
    run = closed(rec)

    assert asked == [("epochs.set", {"n": 4}, 2, "longer")]
    assert events(run, "operation_applied")[0].attrs["epochs_before"] == 3
    assert receipts(run) == [
        (2, "epochs.set(4)", ""),
        (3, "detail.set(2)", "KeyError: 'level'"),
        (4, "detail.set(2)", "there is no level 2"),
        (5, "detail.set(2)", ""),
    ]


@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_rule_orders_as_the_training_begins_waits_for_the_function_of_the_loop(
    tmp_path: Path, is_named: bool
) -> None:
    """At most until the first update. Surogate's budget of tokens needs no more than its two params."""
    plan = Plan(total_steps=100, constants={"num_params": 1e6, "dataset_tokens": 7e6, "tokens_per_step": 5e4})
    rules = load_policy("surogate", params={"from_scratch": True, "epoch_adjustment": True})
    rec, asked = Recorder(tmp_path, rules=rules, plan=plan, quiet=True), list[Any]()
    if is_named:
        rec.handle("epochs.set", lambda request: asked.append(request.arguments["n"]))
    rec.step(loss=3.0)
    run = closed(rec)

    assert asked == [3] * is_named
    assert receipts(run) == [(0, "epochs.set(3)", "" if is_named else "the loop has no handler for it")]
    assert verify(run).identical


@pytest.mark.parametrize(
    ("operation", "function", "message"),
    [
        ("lr.scale", print, r"Call rec\.learning_rate"),
        ("epoch.set", print, r"Operations are lr\.scale"),
        ("epochs.set", None, "'epochs.set' needs a function"),
        ("batch.skip", print, "'batch.skip' takes no function"),
    ],
)
def test_a_handler_that_fits_no_operation_is_refused(
    operation: str, function: Any, message: str, tmp_path: Path
) -> None:
    """At once, in the program that is being written."""
    with Recorder(tmp_path) as rec, pytest.raises(TelemetryError, match=message):
        rec.handle(operation, function)


def test_a_policy_in_shadow_asks_the_loop_for_nothing(tmp_path: Path) -> None:
    """There are decisions, and no receipts."""
    rec = Recorder(tmp_path, rules=written(tmp_path, GUARD + "    mode: shadow\n"))
    rate = rec.learning_rate()
    trained = []
    for step in range(1, 9):
        trained.append(rate(1.0))
        rec.step(loss=4.0 if step == 2 else 1.0)
    run = closed(rec)

    assert trained == [1.0] * 8
    assert len(events(run, "decision")) == 1
    assert receipts(run) == []
