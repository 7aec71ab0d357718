"""Scripts that log to W&B record with ``import steptape.integrations.wandb as wandb``, without a real W&B."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

import steptape.integrations.wandb as wandb
from steptape import TelemetryError, open_store, verify
from steptape.integrations.step_rows import warn_once
from steptape.rules.errors import PolicyError
from steptape.store.run import Run

STOP = """
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: loss > 2
    operations: [hfcontrols.should_training_stop]
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record into ``runs`` of an own folder, warn anew in each test, and end a run that a test leaves open."""
    monkeypatch.chdir(tmp_path)
    warn_once.cache_clear()
    yield
    wandb.finish()


def recorded() -> Run:
    """Return the only run of the store."""
    (run,) = open_store("runs")
    return run


def events_of(run: Run) -> list[tuple[str, int, dict[str, float]]]:
    """Return kind, step and values of the events between begin and end."""
    kinds = ("step_end", "log", "evaluate")
    return [(event.kind, event.step, dict(event.metrics)) for event in run.events() if event.kind in kinds]


def test_the_last_line_names_the_newest_step_and_calls_no_call_a_step(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three calls are W&B's steps 0 to 2."""
    monkeypatch.setenv("STEPTAPE_QUIET", "0")
    wandb.init(dir="runs", name="n")
    for _ in range(3):
        wandb.log({"loss": 1.0})
    wandb.finish()

    assert "'n' completed at step 2: loss 1. " in capfd.readouterr().err


def test_a_rule_stops_a_script_that_asks_after_it_has_logged() -> None:
    """To ask commits the row of the step, so that no rule decides one call late."""
    Path("stop.yaml").write_text(STOP)
    run = wandb.init(project="p", name="n", rules="stop.yaml")
    for step in range(1, 10):
        wandb.log({"loss": 3.0 if step == 5 else 1.0}, step=step)
        wandb.log({"lr": 0.1}, step=step)
        if wandb.run is not None and wandb.run.should_stop:
            break
    wandb.finish()

    assert (step, wandb.run, run.should_stop) == (5, None, True)
    assert events_of(recorded()) == [
        ("step_end", step, {"loss": 3.0 if step == 5 else 1.0, "lr": 0.1}) for step in range(1, 6)
    ]
    assert (recorded().info.group, recorded().status, recorded().info.last.steps) == ("p", "stopped", 5)
    assert verify(recorded()).identical


def test_a_model_that_a_script_logs_is_a_checkpoint_of_its_step(caplog: pytest.LogCaptureFixture) -> None:
    """It serves the order of a rule, also one that comes together with a stop."""
    Path("save.yaml").write_text(STOP.replace("[hf", "[hfcontrols.should_save, hf"))
    Path("model.pt").write_bytes(b"12345")
    run = wandb.init(rules="save.yaml")
    wandb.log({"loss": 1.0}, step=1)
    wandb.log({"loss": 3.0}, step=2)
    assert run.control.should_save
    wandb.log_model("model.pt")
    wandb.finish()
    saves = [event for event in recorded().events() if event.kind == "save"]

    assert [(event.step, event.attrs["path"], event.attrs["size_bytes"]) for event in saves] == [(2, "model.pt", 5)]
    assert caplog.messages == []


def test_rules_that_do_not_load_end_the_script_at_init() -> None:
    """A policy with a mistake is no failure to train on with; afterwards a run can begin."""
    Path("stop.yaml").write_text("controllers: 1")

    with pytest.raises(PolicyError):
        wandb.init(rules="stop.yaml")

    assert wandb.run is None


def test_values_of_an_evaluation_are_an_evaluation_of_their_step() -> None:
    """Names decide, as in an import; nested names have dots, as in W&B; None is no value and text no number."""
    wandb.init()
    wandb.log({"train": {"loss": 1.0}, "val/loss": 2.0, "none": None, "note": "text"}, step=3)
    wandb.log({"eval_acc": 0.5}, step=4)
    wandb.finish()

    assert events_of(recorded()) == [
        ("step_end", 3, {"train.loss": 1.0}),
        ("evaluate", 3, {"val/loss": 2.0}),
        ("evaluate", 4, {"eval_acc": 0.5}),
    ]
    assert [event.attrs["note"] for event in recorded().events() if "note" in event.attrs] == ["text"]


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_key_among_the_values_counts_the_steps(is_declared: bool) -> None:
    """Rows without it belong to the newest step. ``define_metric`` also says it of rows before the first with it."""
    wandb.init()
    if is_declared:
        wandb.define_metric("trainer/global_step")
        wandb.define_metric("*", step_metric="trainer/global_step", summary="min")
        wandb.define_metric("val/*", step_metric="epoch")
    wandb.log({"parameters": 3})
    wandb.log({"seconds": 3})
    for step in (100, 200):
        wandb.log({"trainer/global_step": step, "val/bpb": 1.0})
        wandb.log({"trainer/global_step": step, "loss": 1.0, "epoch": 1})
        wandb.log({"sample": 1.0})
    wandb.finish()

    first, second, *others = events_of(recorded())
    assert (first, second[1]) == (("step_end", 0, {"parameters": 3.0}), 0 if is_declared else 1)
    assert others == [
        entry
        for step in (100, 200)
        for entry in (
            ("evaluate", step, {"val/bpb": 1.0}),
            ("step_end", step, {"loss": 1.0, "epoch": 1.0}),
            ("step_end", step, {"sample": 1.0}),
        )
    ]


@pytest.mark.parametrize(
    ("rows", "steps", "said"),
    [
        ([{"loss": 1.0}, {"loss": 1.0}, {"val/loss": 2.0, "step": 9}], [0, 1, 2], "'step' is a value, not the step"),
        ([{"iter": i, "loss": 1.0} for i in (0, 10, 20, 0, 10)], [0, 10, 20, 30, 40], "'iter' begins again at 0"),
        ([{"step": i, "loss": 1.0} for i in (0, 10, 20, 10, 30)], [0, 10, 20, 20, 30], "steps of 'loss' lie"),
        ([{"step": i / 2, "loss": 1.0} for i in (1, 3)], [0, 1], None),
        ([{"val/step": i, "val/loss": 1.0} for i in (1, 3)], [0, 1], None),
    ],
)
def test_a_key_that_does_not_count_the_steps_is_warned_of(
    rows: list[dict[str, float]], steps: list[int], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes late, counts within epochs, goes back, is no whole number, or belongs to an evaluation."""
    wandb.init()
    for row in rows:
        wandb.log(row)
    wandb.finish()

    assert [step for _, step, _ in events_of(recorded())] == steps
    assert [record.message.startswith(said or "-") for record in caplog.records] == [True] * (said is not None)


def test_a_step_that_goes_backwards_keeps_its_values_at_the_newest_step(caplog: pytest.LogCaptureFixture) -> None:
    """W&B drops them. They are no second row of the newest step, whose values they would replace."""
    wandb.init()
    wandb.log({"loss": 1.0}, step=10)
    for step in (3, 4):
        wandb.log({"loss": 2.0}, step=step)
    wandb.log({"loss": 3.0}, step=11)
    wandb.finish()

    assert events_of(recorded()) == [
        ("step_end", 10, {"loss": 1.0}),
        ("log", 10, {"loss": 2.0}),
        ("log", 10, {"loss": 2.0}),
        ("step_end", 11, {"loss": 3.0}),
    ]
    assert [record.message for record in caplog.records] == [
        "steps of 'loss' lie behind those of other values; they are recorded at the newest step"
    ]


def test_what_is_no_step_and_no_value_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    """Each is said once; the values that are numbers are recorded."""

    class Broken:
        item = None

        def detach(self) -> None:
            raise OSError("gone")

    wandb.init()
    for _ in range(2):
        wandb.log({"loss": 1.0, "broken": Broken(), 3: 4.0}, step="seven")  # type: ignore[arg-type, dict-item]
        wandb.log({"loss": 1.0}, step=float("inf"))  # type: ignore[arg-type]
    wandb.finish()

    assert events_of(recorded()) == [("step_end", 0, {"loss": 1.0, "3": 4.0})]
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "a step must be a whole number",
        "a step must be a whole number",
        "metric 'broken' is not a number but a Broken",
    ]


def test_a_tensor_has_the_value_that_it_had_when_it_was_logged() -> None:
    """A loop may add to a running loss while its row is not over."""
    torch = pytest.importorskip("torch")
    loss = torch.zeros((), requires_grad=True) + 1.0
    wandb.init()
    wandb.log({"loss": loss}, step=1)
    loss.data += 1.0
    wandb.finish()

    assert events_of(recorded()) == [("step_end", 1, {"loss": 1.0})]


def test_what_has_no_meaning_here_is_accepted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Media, tables, artifacts and plots are left out of the row, and any method of theirs can be called."""
    run = wandb.init(project="p", entity="e", save_code=True, settings=wandb.Settings(silent=True))
    for step in range(3):
        table = wandb.Table(columns=["x"])
        table.add_data(1)
        artifact = wandb.Artifact("model", type="model")
        artifact.add_file("x.pt").save()
        run.log_artifact(artifact).wait()
        wandb.watch(None, log="all")
        wandb.log({"loss": 1.0, "table": table, "pictures": [wandb.Image(b"")]}, step=step)
        wandb.log({"curve": wandb.plot.line(table, "x", "x")}, step=step)
    wandb.save("x.pt")
    run.name = "another"
    wandb.alert("title", text="text", level=wandb.AlertLevel.WARN)
    wandb.finish()

    assert isinstance(table, wandb.Table)
    assert events_of(recorded()) == [("step_end", step, {"loss": 1.0}) for step in range(3)]
    assert [event.attrs["text"] for event in recorded().events() if event.kind == "annotation"] == ["title: text"]
    said = [record.message.partition(":")[0] for record in caplog.records if record.levelno == logging.WARNING]
    left_out = ("Artifact", "Image", "Settings", "Table", "log_artifact", "plot", "save", "watch")
    assert sorted(said) == sorted(["init", "run.name = ...", *(f"{name} is left out" for name in left_out)])


def test_what_a_stand_in_cannot_do_is_an_error_that_names_the_way_out() -> None:
    """A script that reads back from W&B cannot go on with nothing."""
    with pytest.raises(AttributeError, match=r"'Api'\. After init\(passthrough=True\)"):
        _ = wandb.Api
    with pytest.raises(TelemetryError, match=r"wandb.log: no run has begun. Call wandb.init first"):
        wandb.log({"loss": 1.0})
    with pytest.raises(TelemetryError, match=r"wandb.config: "):
        _ = wandb.config.lr
    wandb.init()
    with pytest.raises(AttributeError, match="'use_artifact'"):
        _ = wandb.run.use_artifact  # type: ignore[union-attr]
    with pytest.raises(AttributeError, match="lr"):
        _ = wandb.config.lr


def test_what_scripts_read_of_wandb_without_a_service_is_there() -> None:
    """The version, the errors that they catch, the config as a dict, and facts of a run that has no account."""
    with pytest.raises(wandb.Error), contextlib.suppress(wandb.errors.CommError, wandb.errors.UsageError):
        raise wandb.errors.Error("offline")
    run = wandb.init(project="p", entity="me", config={"lr": 0.1})

    assert wandb.__version__
    assert wandb.config.as_dict() == {"lr": 0.1}
    assert (run.project, run.project_name(), run.entity, run.sweep_id, run.path) == ("p", "p", None, None, None)
    assert (run.offline, run.disabled) == (True, False)
    for name in ("start_time", "settings"):
        assert getattr(run, name) is None


def test_warnings_name_calls_of_wandb(caplog: pytest.LogCaptureFixture) -> None:
    """No script has a recorder of the name ``rec``."""
    Path("all.yaml").write_text(
        """
controllers:
  - {name: logged, triggers: [on_log, on_evaluate], rule: epoch > 1, operations: [hfcontrols.should_save]}
  - {name: skips, triggers: [on_step_begin], rule: loss > 5, operations: [batch.skip()]}
  - {name: evaluates, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_evaluate]}
  - {name: stops, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_training_stop]}
"""
    )
    run = wandb.init(rules="all.yaml", total_steps=20)
    for step in range(20):
        wandb.log({"step": step, "loss": 1.0})
        wandb.log({"step": step, "lr": 1.0})
    wandb.finish()
    run.log({"loss": 1.0})

    for fix in (
        "Call wandb.init with log_every=1 or wandb.log with names such as 'val/loss'",
        "Log it as 'epoch'",
        "Call wandb.run.recorder.handle('batch.skip')",
        "Evaluate when wandb.run.control.should_evaluate is true and call wandb.log with names such as 'val/loss'",
        "End it when wandb.run.control.should_stop is true",
        "Log with step=i + 1",
        "Call wandb.finish after the last call",
    ):
        assert fix in caplog.text
    assert "rec." not in caplog.text.replace("wandb.run.rec", "")
    assert "go backwards" not in caplog.text


def test_a_script_that_names_a_folder_records_into_the_store_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dir`` is where W&B writes. It holds the store only if none is named."""
    monkeypatch.setenv("STEPTAPE_STORE", str(tmp_path / "named"))
    wandb.init(dir="elsewhere")
    wandb.finish()
    monkeypatch.delenv("STEPTAPE_STORE")
    wandb.init(dir="elsewhere")
    wandb.finish()

    assert [len([*open_store(folder)]) for folder in (tmp_path / "named", Path("elsewhere/runs"))] == [1, 1]


def test_the_configuration_is_that_of_the_end_and_the_summary_a_note() -> None:
    """Both are mappings with attributes. The summary also has the newest values."""
    run = wandb.init(config={"lr": 0.1, "deep": {"a": 1}})
    wandb.config.update({"batch": 8}, allow_val_change=True)
    wandb.config.seed = 3
    wandb.config.setdefaults({"lr": 9, "late": True})
    wandb.log({"loss": 0.5})
    wandb.summary["best"] = 0.25
    assert (run.summary.loss, run.summary["best"], wandb.config.lr, wandb.config["deep"]) == (0.5, 0.25, 0.1, {"a": 1})
    assert (run.step, run.id, run.url) == (1, recorded().folder.name, recorded().folder.absolute().as_uri())
    wandb.finish()

    assert recorded().info.config == {"lr": 0.1, "deep": {"a": 1}, "batch": 8, "seed": 3, "late": True}
    notes = [dict(event.attrs) for event in recorded().events() if event.kind == "annotation"]
    assert notes == [{"text": "summary", "values": {"best": 0.25}}]


@pytest.mark.parametrize(
    ("end", "status", "summary"),
    [("", "completed", True), ("wandb.finish(exit_code=3)", "failed", True), ("1 / 0", "failed", True)],
)
def test_a_script_that_ends_has_its_last_row(end: str, status: str, summary: bool) -> None:
    """Also without ``finish``, and with an exception."""
    script = f"""
        import steptape.integrations.wandb as wandb
        wandb.init()
        wandb.log({{"loss": 1.0}}, step=7)
        wandb.run.summary["best"] = 1
        {end}
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, timeout=PATIENCE_S)

    assert (recorded().status, events_of(recorded())) == (status, [("step_end", 7, {"loss": 1.0})])
    assert any(event.attrs.get("text") == "summary" for event in recorded().events()) is summary


def test_an_exception_in_a_with_block_fails_the_run() -> None:
    """The row before it is recorded, and the exception passes."""
    run = wandb.init()
    run.log({"loss": 1.0}, step=0)
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0

    assert (recorded().status, events_of(recorded()), wandb.run) == ("failed", [("step_end", 0, {"loss": 1.0})], None)
    assert (recorded().info.last.failure or {})["type"] == "ZeroDivisionError"


def test_an_id_names_the_run_and_resumes_it_after_its_last_step() -> None:
    """``allow`` begins a run where there is none; characters that no folder has are replaced."""
    for attempt in range(2):
        run = wandb.init(id="a/b c", resume="allow")
        assert (run.id, run.resumed, run.step) == ("a_b_c", attempt == 1, attempt * 3)
        for _ in range(3):
            wandb.log({"loss": 1.0})
        wandb.finish()

    assert [(event[1]) for event in events_of(recorded())] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TelemetryError, match="already exists"):
        wandb.init(id="a_b_c", resume="never")
    with pytest.raises(TelemetryError):
        wandb.init(id="unknown", resume="must")


def test_the_loop_says_where_it_resumes() -> None:
    """Rows after the checkpoint are rolled back."""
    for first in (0, 3):
        wandb.init(id="r", resume="must" if first else None, resume_step=2 if first else None)
        for step in range(first, first + 5):
            wandb.log({"loss": float(first)}, step=step)
        wandb.finish()

    assert [(step, values["loss"]) for _, step, values in events_of(recorded())] == [
        *((step, 0.0) for step in range(3)),
        *((step, 3.0) for step in range(3, 8)),
    ]


@pytest.mark.parametrize(
    "given", [{"reinit": True}, {"reinit": "finish_previous"}, {}], ids=["true", "word", "notebook"]
)
def test_a_second_init_finishes_the_first_run_where_the_script_says_so_or_in_a_notebook(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in W&B: a cell may run twice, and a loop over settings may begin run after run."""
    if not given:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    for loss in (1.0, 2.0):
        wandb.init(**given)
        wandb.log({"loss": loss})
    wandb.finish()

    rows = [[values["loss"] for _, _, values in events_of(run)] for run in open_store("runs")]
    assert sorted(rows) == [[1.0], [2.0]]
    assert {run.status for run in open_store("runs")} == {"completed"}
    assert caplog.messages == []


def test_a_second_init_returns_the_run_that_has_not_finished(caplog: pytest.LogCaptureFixture) -> None:
    """As in W&B, with a warning."""
    first = wandb.init()

    assert wandb.init(project="other") is first
    assert [record.message for record in caplog.records] == [
        "init: a run has not finished; init returns it. Call wandb.finish() first, or give reinit=True"
    ]


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_disabled_script_records_nothing(by_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call works, and no file appears."""
    if by_environment:
        monkeypatch.setenv("WANDB_MODE", "disabled")
    run = wandb.init(config={"lr": 1}, mode=None if by_environment else "disabled")
    run.log({"loss": 1.0, "val/loss": 1.0}, step=1)
    run.config.update({"lr": 2})
    run.summary["best"] = 1
    assert run.should_stop is False
    wandb.finish()

    assert (wandb.run, [*Path().iterdir()]) == (None, [])
    assert "STEPTAPE_MODE" not in os.environ


def test_rank_0_alone_may_record_in_a_process_group() -> None:
    """Scripts call ``init`` on one rank. The recorder asks nothing of the others, which wait in the next collective."""
    pytest.importorskip("torch")
    script = """
        import datetime, sys
        import torch.distributed as dist
        import steptape.integrations.wandb as wandb
        rank, limit = int(sys.argv[1]), datetime.timedelta(minutes=10)
        dist.init_process_group("gloo", f"file://{sys.argv[2]}", timeout=limit, rank=rank, world_size=2)
        if rank == 0:
            wandb.init(rules="stop.yaml")
            wandb.log({"loss": 3.0}, step=1)
            assert wandb.run.should_stop
            wandb.finish()
        dist.barrier()
        dist.destroy_process_group()
        """
    Path("stop.yaml").write_text(STOP)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    processes = [subprocess.Popen([*command, str(rank), str(Path("meeting").absolute())]) for rank in range(2)]

    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0]
    assert events_of(recorded()) == [("step_end", 1, {"loss": 3.0})]
