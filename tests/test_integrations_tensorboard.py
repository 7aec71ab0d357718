"""Scripts that write for TensorBoard record with steptape's ``SummaryWriter``. No TensorBoard is installed here."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import open_store
from steptape.integrations import wandb
from steptape.integrations.step_rows import warn_once
from steptape.integrations.tensorboard import SummaryWriter
from steptape.store.run import Run


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record into ``runs`` of an own folder, and warn anew in each test."""
    monkeypatch.chdir(tmp_path)
    warn_once.cache_clear()


def recorded() -> Run:
    """Return the only run of the store."""
    (run,) = open_store("runs")
    return run


def events_of(run: Run) -> list[tuple[str, int, dict[str, float]]]:
    """Return kind, step and values of the events between begin and end."""
    kinds = ("step_end", "log", "evaluate")
    return [(event.kind, event.step, dict(event.metrics)) for event in run.events() if event.kind in kinds]


def test_the_values_of_a_step_are_one_event_that_a_rule_judges() -> None:
    """One tag a call. To read ``control`` ends the step, so that the rule has all of its values."""
    Path("stop.yaml").write_text(
        """
controllers:
  - name: both
    triggers: [on_step_end]
    rule: series("losses/value") > 2 and series("losses/kl") > 2
    operations: [hfcontrols.should_training_stop]
"""
    )
    with SummaryWriter("runs/ppo__1", rules="stop.yaml") as writer:
        for step in range(128, 1280, 128):
            writer.add_scalar("losses/value", 3.0, step)
            writer.add_scalar("losses/kl", 3.0 if step == 512 else 1.0, global_step=step, walltime=0.0)
            if writer.control.should_stop:
                break

    assert events_of(recorded()) == [
        ("step_end", at, {"losses/value": 3.0, "losses/kl": 3.0 if at == 512 else 1.0}) for at in range(128, 640, 128)
    ]
    assert (recorded().info.name, recorded().status, step) == ("ppo__1", "stopped", 512)


def test_a_second_writer_of_a_folder_ends_the_run_of_the_first_and_loses_no_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cell that runs twice records two runs, of which one goes on."""
    first = SummaryWriter("logs")
    first.add_scalar("loss", 1.0, 1)
    second = SummaryWriter("logs")
    second.add_scalar("loss", 2.0, 1)
    first.add_scalar("late", 3.0, 2)
    statuses = [run.status for run in open_store("runs")]
    first.close()
    second.close()
    values = [[dict(event.metrics) for event in run.events() if event.kind == "step_end"] for run in open_store("runs")]

    assert sorted(statuses) == ["completed", "running"]
    assert sorted(values, key=len) == [[{"loss": 1.0}], [{"loss": 2.0}, {"late": 3.0}]]
    assert [message.partition(":")[0] for message in caplog.messages] == ["a second writer for logs"]


def test_warnings_name_calls_of_the_writer(caplog: pytest.LogCaptureFixture) -> None:
    """No script has a recorder of the name ``rec``: what rules lack, ask for in vain or may order is the writer's."""
    Path("all.yaml").write_text(
        """
controllers:
  - {name: logged, triggers: [on_log], rule: loss > 0, operations: [hfcontrols.should_save]}
  - {name: evaluated, triggers: [on_evaluate], rule: val_loss > 0 and epoch > 1, operations: [hfcontrols.should_save]}
  - {name: sleeps, triggers: [on_sleep], rule: loss > 0, operations: [hfcontrols.should_save]}
  - {name: lowers, triggers: [on_step_end], rule: loss > 5, operations: [lr.scale(0.5)]}
  - {name: saves, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_save]}
  - {name: stops, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_training_stop]}
"""
    )
    with SummaryWriter(rules="all.yaml", total_steps=20) as writer:
        for step in range(20):
            writer.add_scalar("loss", 1.0, step)
            writer.add_scalar("loss", 1.0, step)
            writer.add_scalar("step", step, step)
    writer.add_scalar("loss", 1.0, 21)
    writer.close()

    for fix in (
        "Call SummaryWriter with log_every=1",
        "Call add_scalar with a tag such as 'Loss/val'",
        "Call writer.recorder.event('sleep')",
        "Call add_scalar('epoch', ...)",
        "Call writer.recorder.learning_rate(optimizer, scheduler)",
        "Save one when writer.control.should_save is true and call writer.recorder.save(path)",
        "End it when writer.control.should_stop is true",
        "Give add_scalar the step i + 1",
        "Close the writer after the last value",
    ):
        assert fix in caplog.text
    assert "rec." not in caplog.text.replace("writer.rec", "")
    assert "go backwards" not in caplog.text


def test_the_same_tag_again_is_another_event_of_the_step() -> None:
    """Several episodes may end in one step; validation is an evaluation; without a step the newest holds."""
    with SummaryWriter() as writer:
        writer.add_scalar("return", 1.0, 5)
        writer.add_scalar("return", 2.0, 5)
        writer.flush()
        writer.add_scalar("Loss/val", 3.0, 5)
        writer.add_scalar("return", 4.0)
        writer.add_scalars("losses", {"a": 1, "b": 2}, 6)

    assert events_of(recorded()) == [
        ("step_end", 5, {"return": 1.0}),
        ("step_end", 5, {"return": 2.0}),
        ("evaluate", 5, {"Loss/val": 3.0}),
        ("step_end", 5, {"return": 4.0}),
        ("step_end", 6, {"losses/a": 1.0, "losses/b": 2.0}),
    ]


def test_a_tag_that_counts_epochs_among_steps_is_recorded_when_it_came(caplog: pytest.LogCaptureFixture) -> None:
    """A log has one order. Said once for each tag."""
    with SummaryWriter() as writer:
        for step in range(1, 7):
            writer.add_scalar("loss", 1.0, step * 100)
            if step % 3 == 0:
                writer.add_scalar("acc", 0.5, step // 3)

    assert [(step, values) for _, step, values in events_of(recorded())] == [
        *((step, {"loss": 1.0}) for step in (100, 200, 300)),
        (300, {"acc": 0.5}),
        *((step, {"loss": 1.0}) for step in (400, 500, 600)),
        (600, {"acc": 0.5}),
    ]
    assert [record.message for record in caplog.records] == [
        "steps of 'acc' lie behind those of other values; they are recorded at the newest step"
    ]


def test_text_and_hyper_parameters_are_notes_and_config_and_the_rest_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each kind that is left out is said once; a misspelled method is an error."""
    writer = SummaryWriter(log_dir="logs/exp/tb", comment="-b", config={"seed": 1})
    writer.add_text("hyperparameters", "|lr|0.1|", 0)
    for step in range(2):
        writer.add_histogram("weights", [1.0], step)
        writer.add_image("picture", None, step)
    writer.add_hparams({"lr": 0.1}, {"hparam/accuracy": 0.5})
    with pytest.raises(AttributeError, match="'write_scalar'"):
        writer.write_scalar("a", 1.0)
    writer.close()

    assert (recorded().info.name, recorded().info.config) == ("exp/tb-b", {"seed": 1, "lr": 0.1})
    assert (writer.log_dir, writer.get_logdir(), Path("logs/exp/tb").is_dir()) == ("logs/exp/tb", "logs/exp/tb", True)
    notes = [dict(event.attrs) for event in recorded().events() if event.kind == "annotation"]
    assert notes == [{"text": "|lr|0.1|", "tag": "hyperparameters"}]
    assert [values for _, _, values in events_of(recorded())] == [{"hparam/accuracy": 0.5}]
    assert [record.message.split()[0] for record in caplog.records] == ["add_histogram", "add_image"]


def test_a_writer_writes_into_the_wandb_run_that_asks_for_it() -> None:
    """The two are one run, which ends with the W&B run, and has its rules."""
    wandb.init(project="p", sync_tensorboard=True, config={"seed": 1})
    with SummaryWriter("runs/ppo") as writer:
        writer.add_scalar("loss", 1.0, 5)
    assert recorded().status == "running"
    wandb.finish()

    assert (events_of(recorded()), recorded().info.group) == ([("step_end", 5, {"loss": 1.0})], "p")
    assert recorded().status == "completed"


def test_the_folder_for_files_may_lie_in_the_store() -> None:
    """Scripts save models into ``runs/NAME``; the store lists its runs all the same."""
    for _ in range(2):
        with SummaryWriter("runs/exp") as writer:
            writer.add_scalar("loss", 1.0, 1)
        (Path(writer.log_dir) / "model.pt").write_bytes(b"x")

    assert [run.info.name for run in open_store("runs")] == ["exp", "exp"]


@pytest.mark.parametrize(("end", "status"), [("", "completed"), ("1 / 0", "failed")])
def test_a_script_that_ends_without_close_has_its_last_event(end: str, status: str) -> None:
    """The values of the last step are recorded at exit."""
    script = f"""
        from steptape.integrations.tensorboard import SummaryWriter
        writer = SummaryWriter()
        writer.add_scalar("loss", 1.0, 7)
        {end}
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, timeout=PATIENCE_S)

    assert (recorded().status, events_of(recorded())) == (status, [("step_end", 7, {"loss": 1.0})])


def test_an_exception_in_a_with_block_fails_the_run() -> None:
    """The event before it is recorded, and the exception passes."""
    writer = SummaryWriter()
    writer.add_scalar("loss", 1.0, 1)
    with pytest.raises(ZeroDivisionError), writer:
        _ = 1 / 0

    assert (recorded().status, events_of(recorded())) == ("failed", [("step_end", 1, {"loss": 1.0})])


@pytest.mark.parametrize("log_dir", [None, "logs"])
def test_a_disabled_writer_records_nothing(log_dir: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call works. The script's own folder is there for its files, and no other."""
    monkeypatch.setenv("STEPTAPE_MODE", "disabled")
    with SummaryWriter(log_dir, rules="no such policy") as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_hparams({"lr": 0.1}, {})
        assert writer.control.should_stop is False

    assert [path.name for path in Path().iterdir()] == [] if log_dir is None else [log_dir]


def test_purge_step_is_for_the_real_writer_alone() -> None:
    """A resumed script says where its run continues."""
    with SummaryWriter(run_id="ppo") as writer:
        for step in range(1, 6):
            writer.add_scalar("loss", 1.0, step)
    with SummaryWriter(purge_step=4, resume=("ppo", 3)) as writer:
        for step in (4, 5):
            writer.add_scalar("loss", 2.0, step)
    with SummaryWriter(purge_step=4) as writer:
        writer.add_scalar("loss", 3.0, 4)

    losses = {run.run_id: [values["loss"] for _, _, values in events_of(run)] for run in open_store("runs")}
    assert losses.pop("ppo") == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert [*losses.values()] == [[3.0]]
