"""Lightning, recorded and steered: what its hooks say, what it does at an order, and how its runs end."""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed; 'make frameworks' runs this")

import torch
from documents import run_page
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torchrun import run_job
from waiting import PATIENCE_S, until

from frameworks.tiny_lightning import loader, tiny_module, tiny_trainer
from steptape import Recorder, TelemetryError, backtest, open_run, open_store, verify
from steptape.integrations.lightning import SteptapeCallback, SteptapeLogger
from steptape.integrations.torch import sample_losses
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

ROOTS = ["lightning.pytorch", "pytorch_lightning"]
TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "frameworks" / "tiny_lightning.py"


def rule(condition: str, order: str = "should_training_stop", trigger: str = "on_step_end", name: str = "rule") -> str:
    """Return a controller, as a line of a policy."""
    return f'  - {{name: {name}, triggers: [{trigger}], rule: "{condition}", operations: [hfcontrols.{order}]}}\n'


def fit(
    folder: Path, rules: str = "", module: Any = None, callbacks: Sequence[Any] = (), **changes: Any
) -> tuple[Any, Run]:
    """Train with the callback, and return the trainer and its run."""
    callback = SteptapeCallback(folder / "runs", rules=policy(folder, rules))
    trainer = tiny_trainer(folder, [callback, *callbacks], **changes)
    trainer.fit(module or tiny_module(), loader(), loader(4))
    return trainer, newest(folder)


def policy(folder: Path, rules: str) -> Path | None:
    """Write controllers to a file."""
    path = folder / "policy.yaml"
    path.write_text(f"controllers:\n{rules}")
    return path if rules else None


def newest(folder: Path) -> Run:
    """Return the newest run in a folder."""
    return max(open_store(folder / "runs"), key=lambda run: run.info.attempts[0].started_ns)


def events(run: Run, kind: str = "step_end") -> list[Event]:
    """Return the run's events of a kind."""
    return [event for event in run.events() if event.kind == kind]


def values(run: Run, name: str) -> list[float]:
    """Return a metric of every step."""
    return [event.metrics[name] for event in events(run)]


@pytest.mark.parametrize("root", ROOTS)
def test_a_recorded_training_is_the_same_to_the_bit(tmp_path: Path, root: str) -> None:
    """Losses and weights of both packages; dropout shows that no random number is taken."""
    free, recorded = tiny_module(root), tiny_module(root)
    torch.manual_seed(5)
    tiny_trainer(tmp_path, [], root).fit(free, loader(), loader(4))
    torch.manual_seed(5)
    tiny_trainer(tmp_path, [SteptapeCallback(tmp_path / "runs")], root).fit(recorded, loader(), loader(4))

    run = newest(tmp_path)
    assert recorded.losses == free.losses == values(run, "loss")
    assert all(torch.equal(one, other) for one, other in zip(free.parameters(), recorded.parameters(), strict=True))
    assert [event.step for event in events(run)] == list(range(1, 43))
    assert (run.status, run.info.config["lr"], run.info.last.plan.total_steps) == ("completed", 0.1, 42)


def test_of_the_checkpoints_that_rules_order_the_newest_are_left_and_nothing_else_is_deleted(tmp_path: Path) -> None:
    """Neither those of Lightning nor one that an earlier process has left under such a name."""
    (tmp_path / "steptape-step=1.ckpt").write_text("of an earlier process")
    callback = SteptapeCallback(tmp_path / "runs", rules=policy(tmp_path, rule("step % 4 == 0", "should_save")), keep=2)
    lightnings = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=10, save_top_k=-1)
    trainer = tiny_trainer(tmp_path, [lightnings, callback], max_epochs=1, enable_checkpointing=True)
    trainer.fit(tiny_module(), loader(), loader(4))

    assert [event.step for event in events(newest(tmp_path), "save") if "steptape" in event.attrs["path"]] == [4, 8, 12]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [
        "step=10.ckpt",
        *(f"steptape-step={step}.ckpt" for step in (1, 12, 8)),
    ]
    with pytest.raises(TelemetryError, match="keep must be a whole number from 1"):
        SteptapeCallback(tmp_path / "runs", keep=0)


def test_the_config_has_what_the_trainer_decides_and_the_run_the_name_of_another_logger(tmp_path: Path) -> None:
    """Precision, clipping, accumulation and the number of parameters; a name of its own comes first."""
    logger = CSVLogger(tmp_path, name="probe")
    _, run = fit(tmp_path, logger=logger, max_epochs=1, gradient_clip_val=0.5, accumulate_grad_batches=2)
    (tmp_path / "unnamed").mkdir()
    _, other = fit(tmp_path / "unnamed", logger=CSVLogger(tmp_path), max_epochs=1)

    assert dict(run.info.config) == {
        "lr": 0.1,
        "trainer.precision": "32-true",
        "trainer.accumulate_grad_batches": 2,
        "trainer.gradient_clip_val": 0.5,
        "model.num_parameters": 25,
    }
    assert (run.info.name, other.info.name == "lightning_logs") == ("probe", False)


def test_of_two_callbacks_of_a_trainer_the_newest_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lightning refuses two when a Trainer is made; one that is added later takes the place of the first."""
    trainer = tiny_trainer(tmp_path, [SteptapeCallback(tmp_path / "runs")], max_epochs=1)
    trainer.callbacks.append(SteptapeCallback(tmp_path / "runs", name="newest"))
    trainer.fit(tiny_module(), loader(), loader(4))

    assert [(run.info.name, len(events(run))) for run in open_store(tmp_path / "runs")] == [("newest", 14)]
    assert "a Trainer has one SteptapeCallback" in caplog.text


@pytest.mark.parametrize(("used", "other"), [("pytorch_lightning", "lightning"), ("lightning", "pytorch_lightning")])
def test_the_classes_are_those_of_the_package_that_the_program_uses(used: str, other: str) -> None:
    """The other one is not imported; a trainer takes a callback of its own package without a list, too."""
    script = f"""
        import sys, {used} as used
        from steptape.integrations.lightning import SteptapeCallback, SteptapeLogger
        import {used}.pytorch as used
    """.replace("pytorch_lightning.pytorch", "pytorch_lightning")
    script += f"""
        assert issubclass(SteptapeCallback, used.Callback) and issubclass(SteptapeLogger, used.loggers.Logger)
        callback = SteptapeCallback("runs")
        assert callback in used.Trainer(callbacks=callback, logger=False).callbacks
        assert {other!r} not in sys.modules
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], timeout=PATIENCE_S, check=True)


def test_an_update_has_the_undivided_loss_the_rate_it_used_and_its_norm_before_clipping(tmp_path: Path) -> None:
    """Lightning divides losses by the length of a full group, the scheduler is ahead, and gradients are clipped."""
    module = tiny_module()
    _, run = fit(tmp_path, module=module, accumulate_grad_batches=4, max_epochs=1, gradient_clip_val=1e-3)

    groups = [module.losses[first : first + 4] for first in range(0, 14, 4)]
    assert values(run, "loss") == pytest.approx([sum(group) / len(group) for group in groups])
    assert [event.micro_step for event in events(run)] == [4, 4, 4, 2]
    assert values(run, "lr") == [0.1, 0.05, 0.025, 0.0125]
    assert values(run, "grad_norm") == pytest.approx(module.norms)
    assert [event.epoch for event in events(run)] == pytest.approx([4 / 14, 8 / 14, 12 / 14, 1])


def test_the_planned_length_follows_a_schedule_of_accumulation(tmp_path: Path) -> None:
    """Its first epochs have 14, 7 and 4 updates."""
    _, run = fit(tmp_path, callbacks=[GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})])

    assert (run.info.last.newest_plan.max_steps(), run.info.last.steps) == (25, 25)
    assert run.info.last.plan.steps_per_epoch is None
    _, short = fit(tmp_path, callbacks=[GradientAccumulationScheduler({0: 4})], max_steps=9)
    assert (short.info.last.plan.max_steps(), short.info.last.plan.steps_per_epoch, short.info.last.steps) == (9, 4, 9)


@pytest.mark.parametrize("micro_batch", range(8, 12))
def test_a_nan_of_any_micro_batch_stops_the_run_at_its_update(tmp_path: Path, micro_batch: int) -> None:
    """The third update has the micro-batches 8 to 11."""
    module = tiny_module(nan_at=micro_batch)
    trainer, run = fit(tmp_path, rule("not isfinite(loss)"), module, accumulate_grad_batches=4)

    assert (run.status, trainer.global_step, len(values(run, "loss"))) == ("stopped", 3, 3)


def test_the_sanity_check_is_no_evaluation(tmp_path: Path) -> None:
    """Evaluations hold what the validation computed, and nothing that the training has left."""
    _, run = fit(tmp_path, num_sanity_val_steps=2)

    assert [(event.step, set(event.metrics)) for event in events(run, "evaluate")] == [
        (14, {"val_loss"}),
        (28, {"val_loss"}),
        (42, {"val_loss"}),
    ]


def test_a_stop_comes_at_its_step_with_a_last_validation(tmp_path: Path) -> None:
    """The epoch ends where it was cut."""
    trainer, run = fit(tmp_path, rule("step >= 5"))

    assert (trainer.global_step, run.status, run.info.last.steps) == (5, "stopped", 5)
    assert [event.step for event in events(run, "evaluate")] == [5]
    assert [event.epoch for event in events(run, "epoch_end")] == [5 / 14]


@pytest.mark.parametrize(
    ("least", "step", "said"), [({"min_steps": 20}, 20, "min_steps=20"), ({"min_epochs": 2}, 28, "min_epochs=2")]
)
def test_a_stop_that_the_trainer_refuses_is_recorded_and_holds(
    tmp_path: Path, least: dict[str, Any], step: int, said: str
) -> None:
    """Training ends as soon as the least is reached."""
    trainer, run = fit(tmp_path, rule("step == 5"), **least)

    (note,) = events(run, "annotation")[:1]
    assert (note.step, note.attrs["refused"], said in note.attrs["text"]) == (5, "stop", True)
    assert (trainer.global_step, run.status) == (step, "stopped")


def test_checkpoints_have_their_paths_whoever_writes_them(tmp_path: Path) -> None:
    """Rules, ModelCheckpoint, and the loop's own call; afterwards the trainer's method is its own again."""

    class Own(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "own.ckpt")

    often = ModelCheckpoint(tmp_path / "often", every_n_train_steps=20, save_top_k=-1, filename="{step}")
    trainer, run = fit(tmp_path, rule("step == 5", "should_save"), callbacks=[often, Own()], enable_checkpointing=True)
    trainer.save_checkpoint(tmp_path / "after.ckpt")

    saves = {Path(event.attrs["path"]): event for event in events(run, "save")}
    assert [(event.step, path.relative_to(tmp_path).as_posix()) for path, event in saves.items()] == [
        (5, "often/steptape-step=5.ckpt"),
        (20, "often/step=20.ckpt"),
        (40, "often/step=40.ckpt"),
        (42, "own.ckpt"),
    ]
    assert all(path.stat().st_size == event.attrs["size_bytes"] for path, event in saves.items())


def test_an_evaluation_that_rules_ask_for_comes_at_once(tmp_path: Path) -> None:
    """Also between validations that are due every second epoch; afterwards they come as before."""
    rules = rule("step == 5", "should_evaluate") + rule("step == 5", "should_evaluate", "on_evaluate", name="again")
    _, run = fit(tmp_path, rules, check_val_every_n_epoch=2, max_epochs=4)

    assert [event.step for event in events(run, "evaluate")] == [5, 6, 28, 56]


@pytest.mark.parametrize("changes", [{"limit_val_batches": 0}, {"val_check_interval": "00:01:00:00"}])
def test_an_evaluation_that_the_trainer_cannot_do_is_refused_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A training without validation, and one that validates by the clock."""
    _, run = fit(tmp_path, rule("step >= 5", "should_evaluate"), **changes)

    assert [event.attrs["refused"] for event in events(run, "annotation")] == ["evaluate"]


def test_an_epoch_that_rules_cut_is_recorded_as_far_as_it_went(tmp_path: Path) -> None:
    """The next epochs are whole; an order in the last batch of an epoch cuts no other."""
    rules = rule("step == 5", "should_epoch_stop") + rule("step == 19", "should_epoch_stop", name="last")
    trainer, run = fit(tmp_path, rules)

    assert [event.epoch for event in events(run, "epoch_begin")] == [0, 1, 2]
    assert [(event.step, event.epoch) for event in events(run, "epoch_end")] == [(5, 5 / 14), (19, 2.0), (33, 3.0)]
    assert trainer.global_step == 33


@pytest.mark.parametrize("has_own", [False, True])
def test_a_training_that_ends_within_a_cut_epoch_leaves_the_module_as_it_was(tmp_path: Path, has_own: bool) -> None:
    """A hook that the module has of its own is there again."""
    module, calls = tiny_module(), []
    if has_own:
        module.on_train_batch_start = lambda *_: calls.append(1)
    before = vars(module).get("on_train_batch_start")
    fit(tmp_path, rule("step == 5", "should_epoch_stop") + rule("step == 5", name="end"), module)

    assert vars(module).get("on_train_batch_start") is before
    assert len(calls) == 5 * has_own


def test_a_log_that_rules_ask_for_has_the_values_of_its_step(tmp_path: Path) -> None:
    """No logger is needed."""
    _, run = fit(tmp_path, rule("step == 5", "should_log"))

    (log,) = events(run, "log")
    assert (log.step, dict(log.metrics)) == (5, dict(events(run)[4].metrics))


#: Its decisions depend on what happened before the cut.
RULES = rule("mean(loss, 12) < 2", "should_save", name="save") + rule("step >= 28", trigger="on_evaluate", name="end")


def decisions(run: Run) -> list[tuple[int, str]]:
    """Return step and controller of each decision of a run."""
    return [(event.step, event.attrs["controller"]) for event in run.events() if event.kind == "decision"]


@pytest.mark.parametrize("cut", [10, 14, 19])
def test_a_resumed_run_decides_as_an_unsplit_one(tmp_path: Path, cut: int) -> None:
    """Lightning restores the callback's state before training starts; the cut is within an epoch and at its end.

    Lightning begins an epoch's data again, so that all batches are equal here.
    """

    def trained(folder: Path, ckpt_path: Path | None = None, callbacks: Sequence[Any] = (), **changes: Any) -> None:
        callback = SteptapeCallback(folder / "runs", rules=policy(folder, RULES))
        trainer = tiny_trainer(folder, [callback, *callbacks], **changes)
        trainer.fit(tiny_module(dropout=0.0), loader(is_constant=True), loader(4), ckpt_path=ckpt_path)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    trained(whole)
    saving = ModelCheckpoint(parts, every_n_train_steps=cut, filename="cut")
    trained(parts, callbacks=[saving], enable_checkpointing=True, max_steps=cut + 2)
    trained(parts, parts / "cut.ckpt")

    (unsplit,) = open_store(whole / "runs")
    (resumed,) = open_store(parts / "runs")
    assert [attempt.from_step for attempt in resumed.info.attempts] == [None, cut]
    assert values(resumed, "loss") == values(unsplit, "loss")
    assert decisions(resumed) == decisions(unsplit) != []
    assert resumed.status == "stopped"
    assert verify(resumed).identical


def test_a_second_fit_of_a_trainer_continues_its_run_and_a_new_trainer_begins_one(tmp_path: Path) -> None:
    """Lightning counts steps on from one fit to the next."""
    callback = SteptapeCallback(tmp_path / "runs")
    module, trainer = tiny_module(), tiny_trainer(tmp_path, [callback], max_epochs=1)
    trainer.fit(module, loader())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, loader())
    tiny_trainer(tmp_path, [callback], max_epochs=1).fit(tiny_module(), loader())

    runs = sorted(open_store(tmp_path / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    assert [[event.step for event in events(run)] for run in runs] == [list(range(1, 29)), list(range(1, 15))]


def test_a_checkpoint_whose_run_is_lost_begins_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on from the checkpoint's step."""
    fit(tmp_path, callbacks=[ModelCheckpoint(tmp_path, filename="end")], enable_checkpointing=True, max_epochs=1)
    trainer = tiny_trainer(tmp_path, [SteptapeCallback(tmp_path / "other")], max_epochs=2)
    trainer.fit(tiny_module(), loader(), ckpt_path=tmp_path / "end.ckpt")

    (run,) = open_store(tmp_path / "other")
    assert [event.step for event in events(run)] == list(range(15, 29))
    assert "so a new one begins" in caplog.text


def test_a_checkpoint_that_rules_ask_for_and_that_fails_ends_the_training(tmp_path: Path) -> None:
    """In a job, the other ranks wait for it: its exception is the loop's."""
    (tmp_path / "full").touch()
    saving = ModelCheckpoint(tmp_path / "gone", save_top_k=0)

    class Blocking(Callback):
        def on_train_start(self, *_: Any) -> None:
            saving.dirpath = str(tmp_path / "full")

    with pytest.raises(OSError, match="full"):
        fit(tmp_path, rule("step == 5", "should_save"), callbacks=[Blocking(), saving], enable_checkpointing=True)

    assert newest(tmp_path).status == "failed"


def test_updates_of_several_optimizers_are_one_step_a_batch(tmp_path: Path) -> None:
    """Lightning's ``global_step`` counts both."""
    module = tiny_module(optimizers=2)
    trainer, run = fit(tmp_path, module=module, max_epochs=1)

    assert (trainer.global_step, [event.step for event in events(run)]) == (28, list(range(1, 15)))
    assert set(events(run)[0].metrics) == {"loss", "lr", "lr_1", "grad_norm", "grad_norm_1"}
    assert (values(run, "loss"), values(run, "lr_1")) == (module.losses, [0.05] * 14)


def test_an_update_that_the_gradient_scaler_skips_is_not_applied(tmp_path: Path) -> None:
    """Its norm is not finite, and it counts as a step, as for Lightning."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38, growth_interval=1000)
    trainer, run = fit(tmp_path, max_epochs=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

    skipped = [event.step for event in events(run) if event.attrs.get("applied") is False]
    norms = values(run, "grad_norm")
    assert skipped == [n for n, norm in enumerate(norms, 1) if not math.isfinite(norm)] != []
    assert trainer.global_step == len(norms) == 14


def test_a_training_that_another_callback_stops_is_stopped_by_it(tmp_path: Path) -> None:
    """The run says which one."""
    early = EarlyStopping("val_loss", min_delta=1e9, patience=1)
    _, run = fit(tmp_path, callbacks=[early], max_epochs=9)

    assert (run.status, run.info.last.reason) == ("stopped", "EarlyStopping")


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("lost"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_an_exception_ends_the_run(tmp_path: Path, error: BaseException, status: str) -> None:
    """Lightning exits at Ctrl-C, and passes on what else is raised."""

    class Failing(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise error

    with pytest.raises((RuntimeError, SystemExit)):
        fit(tmp_path, callbacks=[Failing()])

    run = newest(tmp_path)
    assert (run.status, run.info.last.steps) == (status, 5)
    assert type(error).__name__ in str(run.info.last.failure)


def test_a_sigterm_ends_the_run_as_interrupted(tmp_path: Path) -> None:
    """Lightning handles the signal, ends the batch and raises what looks like a successful exit."""
    given = tmp_path / "trainings.jsonl"
    given.write_text(json.dumps({"store": str(tmp_path / "runs"), "max_epochs": 100_000}))
    process = subprocess.Popen([sys.executable, "-W", "ignore", str(PROGRAM), str(given)])
    try:
        until(lambda: process.poll() is not None or any((tmp_path / "runs").glob("*/run.json")))
        until(lambda: process.poll() is not None or len(events(newest(tmp_path))) > 20)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()

    run = newest(tmp_path)
    assert (run.status, run.info.last.reason) == ("interrupted", "SIGTERM")
    assert len(events(run)) == run.info.last.steps


def test_a_sigterm_with_a_recorder_that_was_there_first_ends_both(tmp_path: Path) -> None:
    """Then Lightning calls both handlers, and the recorder's raises at once."""

    class Signalling(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, Recorder(tmp_path / "other"):
        fit(tmp_path, callbacks=[Signalling()])

    assert ended.value.code == 143
    assert [run.status for store in ("other", "runs") for run in open_store(tmp_path / store)] == ["interrupted"] * 2


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """A store, and by name what each training of one job of two processes was on each rank."""
    folder = tmp_path_factory.mktemp("job")
    saves = rule("step == 3", "should_save", name="save")
    written = {"stop": saves + rule("step == 5"), "nan": saves + rule("any_rank(not isfinite(loss))"), "decides": RULES}
    for name, rules in written.items():
        (folder / f"{name}.yaml").write_text(f"controllers:\n{rules}")
    job = {"devices": 2, "strategy": "ddp"}
    recorded = {**job, "store": str(folder / "runs")}
    decides = {**recorded, "rules": str(folder / "decides.yaml"), "max_epochs": 5}
    trainings: dict[str, dict[str, Any]] = {
        "plain": job,
        "recorded": recorded,
        "stopped": {**recorded, "rules": str(folder / "stop.yaml")},
        "poisoned": {**recorded, "rules": str(folder / "nan.yaml"), "nan_at": 4},
        "unsplit": decides,
        "cut": {**decides, "cut_at": 14, "max_steps": 16},
        "resumed": {**decides, "ckpt_path": str(folder / "cut.ckpt")},
        "sharded": {**recorded, "is_sharded": True, "max_epochs": 1},
    }
    done = run_job(PROGRAM, folder, 2, [*trainings.values()])
    return folder / "runs", dict(zip(trainings, done, strict=True))


def test_recording_changes_no_loss_of_any_rank(job: Any) -> None:
    """Each has losses of its own."""
    _, trainings = job

    assert [rank["losses"] for rank in trainings["recorded"]] == [rank["losses"] for rank in trainings["plain"]]
    assert trainings["plain"][0]["losses"] != trainings["plain"][1]["losses"]


@pytest.mark.parametrize("training", ["stopped", "poisoned"])
def test_a_rule_stops_all_ranks_at_the_same_step(job: Any, training: str) -> None:
    """Only rank 0 decides, also about the NaN of rank 1's fifth batch. In a save of Lightning's all ranks meet."""
    store, trainings = job
    run = open_store(store).run(trainings[training][0]["run_id"])

    assert [rank["step"] for rank in trainings[training]] == [5, 5]
    assert (run.status, run.info.last.steps, [event.step for event in events(run, "save")]) == ("stopped", 5, [3])


def test_a_resumed_job_decides_as_an_unsplit_one(job: Any) -> None:
    """The cut is at the end of an epoch: within one, Lightning begins its data again."""
    store, trainings = job
    unsplit, resumed = (open_store(store).run(trainings[name][0]["run_id"]) for name in ("unsplit", "resumed"))

    assert [attempt.from_step for attempt in resumed.info.attempts] == [None, 14]
    assert [rank["losses"] for rank in trainings["resumed"]] == [rank["losses"][14:] for rank in trainings["unsplit"]]
    assert values(resumed, "loss") == values(unsplit, "loss")
    assert decisions(resumed) == decisions(unsplit) != []
    assert verify(resumed).identical


def test_a_sharded_strategy_records_no_norm(job: Any) -> None:
    """That of a rank's part would be wrong."""
    store, trainings = job
    run = open_store(store).run(trainings["sharded"][0]["run_id"])

    assert {name for event in events(run) for name in event.metrics} == {"loss", "lr"}
    assert run.status == "completed"


def test_a_backtest_of_a_training_says_when_it_stops_live(tmp_path: Path) -> None:
    """Last step, evaluations and their values."""
    rules = rule("loss < 1.5", trigger="on_step_end")
    free, live = tmp_path / "free", tmp_path / "live"
    free.mkdir()
    live.mkdir()
    _, recorded = fit(free)
    (predicted,) = backtest(parse_policy(f"controllers:\n{rules}"), [recorded]).results
    trainer, run = fit(live, rules)

    assert predicted.predicted is not None
    assert predicted.predicted.steps == trainer.global_step == run.info.last.steps != 42
    assert verify(run).identical


def test_a_recorder_that_fails_changes_no_weight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the sixth step no file may grow."""

    class Filling(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))

    free, recorded, limits = tiny_module(), tiny_module(), resource.getrlimit(resource.RLIMIT_FSIZE)
    torch.manual_seed(5)
    tiny_trainer(tmp_path, []).fit(free, loader(), loader(4))
    torch.manual_seed(5)
    try:
        trainer, run = fit(tmp_path, module=recorded, callbacks=[Filling()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert recorded.losses == free.losses
    assert all(torch.equal(one, other) for one, other in zip(free.parameters(), recorded.parameters(), strict=True))
    assert 5 <= len(events(run)) < trainer.global_step == 42
    assert "File too large" in caplog.text


@pytest.mark.parametrize("has_norm", [True, False])
def test_the_norm_is_recorded_unless_it_is_switched_off(tmp_path: Path, has_norm: bool) -> None:
    """The other values stay."""
    callback = SteptapeCallback(tmp_path / "runs", grad_norm=has_norm)
    tiny_trainer(tmp_path, [callback], max_epochs=1).fit(tiny_module(), loader())

    assert set(events(newest(tmp_path))[0].metrics) == {"loss", "lr", *(["grad_norm"] if has_norm else [])}


def lacking_trainer(trainer: Any, callback: Any, lacking: str) -> None:
    """Have a callback's hooks see a trainer without one of its properties."""

    class Lacking:
        def __getattr__(self, name: str) -> Any:
            if name == lacking:
                raise AttributeError(f"'Trainer' object has no attribute '{name}'")
            return getattr(trainer, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(trainer, name, value)

    for name in [name for name in dir(callback) if name.startswith("on_") or name == "teardown"]:
        hook = getattr(callback, name)
        setattr(callback, name, lambda _, *arguments, hook=hook, **named: hook(Lacking(), *arguments, **named))


@pytest.mark.parametrize(
    "lacking",
    [
        "num_training_batches",
        "callback_metrics",
        "optimizers",
        "strategy",
        "sanity_checking",
        "current_epoch",
        "callbacks",
        "max_epochs",
    ],
)
def test_what_an_unknown_version_lacks_is_named_and_the_rest_works(
    tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer without one of its properties, as our hooks see it."""
    module = tiny_module()
    callback = SteptapeCallback(tmp_path / "runs", rules=policy(tmp_path, rule("step == 20")))
    trainer = tiny_trainer(tmp_path, [callback])

    lacking_trainer(trainer, callback, lacking)
    trainer.fit(module, loader(), loader(4))

    run = newest(tmp_path)
    assert (run.status, values(run, "loss")) == ("stopped", module.losses)
    assert caplog.text.count(lacking) >= 1


@pytest.mark.parametrize("lacking", ["global_step", "accumulate_grad_batches", "should_stop"])
def test_a_trainer_that_lacks_what_matters_trains_to_its_end(
    tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends with it, if one began; what is lacking is named."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback], max_epochs=1)
    lacking_trainer(trainer, callback, lacking)
    trainer.fit(tiny_module(), loader())

    assert trainer.global_step == 14
    runs = [open_run(path.parent) for path in tmp_path.glob("runs/*/run.json")]
    assert [(run.status, len(events(run))) for run in runs] == [("completed", 14)] * (lacking != "global_step")
    assert lacking in caplog.text


@pytest.mark.parametrize("argument", [{"rules": "no_such_policy"}, {"total_step": 3}])
def test_what_the_recorder_refuses_ends_the_training_at_its_start(tmp_path: Path, argument: dict[str, Any]) -> None:
    """A mistake in an argument must not cost a night without a log."""
    trainer = tiny_trainer(tmp_path, [SteptapeCallback(tmp_path / "runs", **argument)])

    with pytest.raises((TelemetryError, TypeError), match=r"no_such_policy|total_step"):
        trainer.fit(tiny_module(), loader())


def test_the_logger_shares_the_recorder_of_its_callback(tmp_path: Path) -> None:
    """What modules log are ``log`` events; a validation's values are in its ``evaluate`` event alone."""
    tape = SteptapeLogger(tmp_path / "runs", rules=["stop if step == 20"])
    trainer = tiny_trainer(tmp_path, [tape.callback()], logger=tape)
    tape.log_hyperparams({"note": "first"})
    trainer.fit(tiny_module(), loader(), loader(4))

    (run,) = open_store(tmp_path / "runs")
    assert [(event.step, set(event.metrics)) for event in events(run, "log")] == [
        (step, {"train_loss"}) for step in range(2, 21, 2)
    ]
    assert [event.step for event in events(run, "evaluate")] == [14, 20]
    assert (run.status, run.info.config["lr"], run.info.config["note"]) == ("stopped", 0.1, "first")


def test_a_logger_alone_records_what_is_logged_at_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No step is counted, and no rule decides, which a warning says. What is logged after the training resumes it."""
    tape = SteptapeLogger(tmp_path / "runs", rules=policy(tmp_path, rule("step >= 1", trigger="on_log")))
    trainer = tiny_trainer(tmp_path, [], logger=tape, max_epochs=1)
    trainer.fit(tiny_module(), loader())
    (run,) = open_store(tmp_path / "runs")

    assert run.status == "completed"
    assert {event.kind for event in run.events()} == {"train_begin", "log", "train_end"}
    assert [event.step for event in events(run, "log")] == list(range(2, 15, 2))
    assert "Trainer(callbacks=[tape.callback()])" in caplog.text
    trainer.validate(tiny_module(), loader(4), verbose=False)
    (run,) = open_store(tmp_path / "runs")
    assert (len(run.info.attempts), run.status, "val_loss" in events(run, "log")[-1].metrics) == (2, "completed", True)


def test_a_logger_alone_ends_its_run_as_failed_with_the_training(tmp_path: Path) -> None:
    """Whatever the program does with the exception."""

    class Failing(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise RuntimeError("lost")

    tape = SteptapeLogger(tmp_path / "runs")
    with pytest.raises(RuntimeError, match="lost"):
        tiny_trainer(tmp_path, [Failing()], logger=tape).fit(tiny_module(), loader())

    (run,) = open_store(tmp_path / "runs")
    assert (run.status, run.info.last.reason) == ("failed", "the training failed")


def test_the_example_trains_until_a_rule_stops_it(tmp_path: Path) -> None:
    """It takes the policy as its argument, and has at most 45 lines. Its folder can run further programs."""
    script = TESTS.parent / "examples" / "scripts" / "lightning_training.py"
    command = [sys.executable, "-W", "ignore", str(script), str(policy(tmp_path, rule("step == 20")))]
    subprocess.run(command, cwd=tmp_path, timeout=PATIENCE_S, check=True)
    subprocess.run([sys.executable, "-c", "from steptape import open_store"], cwd=tmp_path, check=True)

    (run,) = open_store(tmp_path / "runs")
    assert (run.status, run.info.last.steps, len(script.read_text().splitlines()) <= 45) == ("stopped", 20, True)
    assert len(list(tmp_path.glob("steptape_logs/*/checkpoints/*.ckpt"))) == 1


def test_the_page_trains_as_it_shows(tmp_path: Path) -> None:
    """Its blocks that need lightning run here."""
    assert run_page(TESTS.parent / "docs" / "how-to" / "lightning.md", tmp_path) == []

    assert [run.status for run in open_store(tmp_path / "runs")] == ["completed"] * 3
    ids = newest(tmp_path).samples()["sample_id"].to_pylist()
    assert sorted(map(int, ids)) == [*range(32)]


def classifier(*, returns: str = "samples") -> Any:
    """Return a module that classifies, with dropout, and returns sample losses with or without ids, or none."""

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            ids, inputs, labels = batch
            logits = self.layer(inputs)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            if returns == "nothing":
                return loss
            found = {"loss": loss, "sample_ids": ids, **sample_losses(logits, labels)}
            return {name: value for name, value in found.items() if name != "sample_ids" or returns == "samples"}

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    torch.manual_seed(3)
    return Classifier()


def classes(poisoned: int | None = None) -> Any:
    """Return shuffled batches of 4 of 48 samples that are easy to learn, but for a poisoned one."""
    torch.manual_seed(5)
    labels = torch.arange(48) % 3
    inputs = 3.0 * torch.nn.functional.one_hot(labels, 4).float()
    if poisoned is not None:
        labels[poisoned] = (labels[poisoned] + 1) % 3
    data = torch.utils.data.TensorDataset(torch.arange(48), inputs, labels)
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)


def test_sample_losses_that_a_module_returns_are_recorded_with_their_ids(tmp_path: Path) -> None:
    """Those of all micro-batches of an update, and the weights stay as without them."""
    weights = []
    for returns in ("samples", "nothing"):
        callback = SteptapeCallback(tmp_path / "runs", quiet=True)
        module = classifier(returns=returns)
        tiny_trainer(tmp_path, [callback], accumulate_grad_batches=3, max_epochs=2).fit(module, classes())
        weights.append([each.detach().clone() for each in module.parameters()])
    first = min(open_store(tmp_path / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    rows = first.samples().to_pylist()
    by_step = {step: [row["loss"] for row in rows if row["step"] == step] for step in range(1, 9)}
    means = [sum(each) / len(each) for each in by_step.values()]

    assert sorted(int(row["sample_id"]) for row in rows) == sorted([*range(48)] * 2)
    assert means == pytest.approx(values(first, "loss"), rel=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_poisoned_sample_is_named_by_bad_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As soon as the others have been learned."""
    callback = SteptapeCallback(tmp_path / "runs", rules="bad_batches", quiet=True)
    tiny_trainer(tmp_path, [callback], max_epochs=5).fit(classifier(), classes(poisoned=29))
    said = [entry.getMessage() for entry in caplog.records if "samples carry" in entry.getMessage()]

    assert {text.rsplit(": ", 1)[1] for text in said} == {"['29']"}
    assert verify(newest(tmp_path)).identical


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        (
            "nothing",
            "the rules read sample losses, and training_step returns none. Return {'loss': loss, **sample_losses",
        ),
        ("no ids", "training_step returns no sample_ids"),
    ],
)
def test_what_a_module_does_not_return_is_said_once(
    tmp_path: Path, returns: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first update, with what to change."""
    callback = SteptapeCallback(tmp_path / "runs", rules="bad_batches", quiet=True)
    tiny_trainer(tmp_path, [callback], max_epochs=1).fit(classifier(returns=returns), classes())

    assert caplog.text.count(said) == 1
