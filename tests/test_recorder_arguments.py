"""Wrong arguments neither end a training run nor spoil the log, and they are never silent."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steptape import Plan, Ranks, Recorder, TelemetryError, open_run, open_store, verify
from steptape.recorder.arguments import GROUPS, completed
from steptape.store.errors import InvalidEvent
from steptape.store.events import Event


def recorded(store: Path, *calls: Callable[[Recorder], object]) -> list[Event]:
    """Record these calls and one ordinary step; check that the whole store reads, and return the run's events."""
    with Recorder(store) as rec:
        for call in calls:
            call(rec)
        rec.step(loss=1.0)
    assert open_store(store).rows("SELECT count(*) AS runs FROM runs") == [{"runs": 1}]
    return list(open_run(rec.folder).events())[1:-1]


@pytest.mark.parametrize("key", [1, None, ("a", "b"), "\ud800", "name with\nnewline"])
def test_metric_names_that_are_no_plain_text_become_text(tmp_path: Path, key: Any) -> None:
    """A number as a key must not make a store unreadable."""
    first, _ = recorded(tmp_path, lambda rec: rec.step({key: 2.0}))

    assert list(first.metrics.values()) == [2.0]
    assert list(first.metrics) == [str(key).encode("utf-8", "backslashreplace").decode()]


def test_a_loop_whose_steps_are_all_wrong_is_told_of_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each step is wrong with another value."""
    with Recorder(tmp_path) as rec:
        for step in range(10):
            rec.step(step=2**62 + step, loss=1.0)

    assert [message.partition(";")[0] for message in caplog.messages] == ["step must be a whole number from 0 to 2**53"]


@pytest.mark.parametrize("step", [np.int64(5), torch.tensor(5), 5.0, np.int32(5), True + 4])
def test_a_step_may_be_any_whole_number(tmp_path: Path, step: Any) -> None:
    """Numpy integers, integer tensors and whole floats are accepted."""
    first, second = recorded(tmp_path, lambda rec: rec.step(step=step, loss=2.0))

    assert (first.step, second.step) == (5, 6)


@pytest.mark.parametrize("step", ["7", 2.5, 2**70, -1, math.nan, object(), torch.ones(3)])
def test_a_step_that_is_no_whole_number_is_counted_on_instead(
    tmp_path: Path, step: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The event is kept with the next step in order, and the user is warned."""
    first, second = recorded(tmp_path, lambda rec: rec.step(step=step, loss=2.0))

    assert (first.step, first.metrics["loss"], second.step) == (1, 2.0, 2)
    assert "step must be a whole number" in caplog.text


def test_an_epoch_or_micro_step_that_is_none_costs_nothing_but_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps before and after are correct."""
    first, begin, second = recorded(
        tmp_path,
        lambda rec: rec.step(loss=2.0, epoch="x", micro_step="y"),  # type: ignore[arg-type]
        lambda rec: rec.epoch_begin("z"),  # type: ignore[arg-type]
    )

    assert (first.epoch, first.micro_step, begin.epoch, second.epoch) == (None, 0, 0.0, 0.0)
    assert "epoch must be a finite number" in caplog.text


@pytest.mark.parametrize("epoch", [math.nan, math.inf, 10**400], ids=["nan", "inf", "huge"])
def test_an_epoch_that_is_not_finite_is_unknown_live_as_in_the_log(tmp_path: Path, epoch: float) -> None:
    """Otherwise rules would see a number live and none in the log, and the run could not be resumed."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("controllers: [{name: e, triggers: [on_step_end], rule: not epoch < 3, operations: []}]")
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        rec.step(loss=1.0, epoch=epoch)
        rec.save("checkpoint", size_bytes=1)
    with Recorder(tmp_path / "runs", rules=rules, resume=rec.run_id) as again:
        again.step(loss=1.0)

    run = open_run(rec.folder)

    assert [event.epoch for event in run.events() if event.kind == "step_end"] == [None, None]
    assert verify(run).identical


@pytest.mark.parametrize("path", [b"/p", None, 5, Path("/p"), "/p"])
def test_a_checkpoint_is_recorded_whatever_its_path_came_as(tmp_path: Path, path: Any) -> None:
    """Bytes are decoded; other values become text."""
    save, _ = recorded(tmp_path, lambda rec: rec.save(path, size_bytes=np.int64(3)))  # type: ignore[arg-type]

    assert save.attrs["path"] == {b"/p": "/p", None: "None", 5: "5"}.get(path, "/p")
    assert save.attrs["size_bytes"] == 3


def test_a_note_that_json_cannot_hold_is_lost_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A structure that contains itself is endless; the loop continues."""
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic

    gap, step = recorded(tmp_path, lambda rec: rec.annotate("x", data=cyclic))

    assert (gap.kind, gap.attrs["lost_events"], step.kind) == ("gap", 1, "step_end")
    assert "RecursionError" in caplog.text


@pytest.mark.parametrize("ids", [np.array(["a", "b"]), np.array(["a", "b"], dtype=object)])
def test_sample_ids_may_be_a_numpy_array_of_text(tmp_path: Path, ids: Any) -> None:
    """Data sets often have such arrays."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0, samples=[1.0, 2.0], sample_ids=ids)

    assert open_run(rec.folder).samples()["sample_id"].to_pylist() == ["a", "b"]


def test_bytes_are_no_number(tmp_path: Path) -> None:
    """``b"12"`` is not twelve."""
    first, _ = recorded(tmp_path, lambda rec: rec.step(loss=b"12"))

    assert (first.metrics, first.attrs) == ({}, {"loss": "b'12'"})


class Silent(Exception):
    """An exception whose ``__str__`` raises."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [ValueError("x\ud800"), Silent()], ids=["surrogate", "no message"])
def test_the_loop_s_own_exception_is_the_one_that_comes_out(tmp_path: Path, error: Exception) -> None:
    """Odd exceptions are re-raised too, and the run is recorded as failed."""
    rec = Recorder(tmp_path)
    with pytest.raises(type(error)) as caught, rec:
        raise error

    assert caught.value is error
    assert open_run(rec.folder).status == "failed"


@pytest.mark.parametrize(
    "arguments",
    [{"total_steps": -1}, {"total_steps": "5"}, {"plan": Plan(steps_per_epoch=2.5)}, {"log_every": 0}],  # type: ignore[arg-type]
    ids=lambda arguments: str(arguments),
)
def test_a_plan_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """At the start the user can still read the error."""
    with pytest.raises(TelemetryError, match="must be a whole number"):
        Recorder(tmp_path / "runs", **arguments)

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("order", ["save", "evaluate", "stop"])
@pytest.mark.parametrize("callback", [3, "save", lambda control: control], ids=["number", "text", "takes an argument"])
def test_a_callback_that_cannot_be_called_is_refused_before_anything_is_written(
    tmp_path: Path, order: str, callback: Any
) -> None:
    """The rule that calls it may fire hours later."""
    with pytest.raises(TelemetryError, match=f"the callback {order!r} must be a function without arguments; got "):
        Recorder(tmp_path / "runs", callbacks={order: callback})

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("callback", [print, dict, lambda: None], ids=["optional", "without a signature", "none"])
def test_a_callback_may_be_any_function_that_needs_no_argument(tmp_path: Path, callback: Any) -> None:
    """Python does not know the arguments of some built-in functions."""
    with Recorder(tmp_path, callbacks={"save": callback}) as rec:
        rec.step(loss=1.0)

    assert open_run(rec.folder).status == "completed"


def test_tags_and_configs_of_no_kind_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The errors are steptape's own."""
    cycle: dict[str, Any] = {"lr": 0.1}
    cycle["self"] = cycle

    with pytest.raises(TelemetryError, match=r"tags must be texts; got 3\. Write tags=\["):
        Recorder(tmp_path / "runs", tags=3)  # type: ignore[arg-type]
    with pytest.raises(TelemetryError, match="config cannot be recorded: it holds itself, or is nested too deeply"):
        Recorder(tmp_path / "runs", config=cycle)

    assert not (tmp_path / "runs").exists()


def test_names_and_configs_may_hold_what_utf_8_cannot(tmp_path: Path) -> None:
    """Half a surrogate pair is escaped; numpy integers in a plan are whole numbers; a text is one tag."""
    steps: Any = np.int64(7)
    with Recorder(
        tmp_path, name="\ud800", group="g\ud800", tags="abc", config={"\ud800": "\ud800"}, total_steps=steps
    ) as rec:
        pass

    info = open_run(rec.folder).info

    assert (info.name, info.group, info.tags) == ("\\ud800", "g\\ud800", ("abc",))
    assert info.config == {"\\ud800": "\\ud800"}
    assert info.last.plan.max_steps() == 7


def test_strict_raises_for_a_wrong_argument(tmp_path: Path) -> None:
    """``strict=True`` turns the warning into an error."""
    with Recorder(tmp_path, strict=True) as rec, pytest.raises(InvalidEvent, match="step must be a whole number"):
        rec.step(step="7", loss=1.0)  # type: ignore[arg-type]


def test_a_run_is_let_go_of_even_when_its_end_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a folder in place of ``run.json`` the journal is still closed. Two warnings tell of it."""
    rec = Recorder(tmp_path)
    rec.step(loss=1.0)
    (rec.folder / "run.json").unlink()
    (rec.folder / "run.json").mkdir()
    rec.close(seal=True)

    assert rec._live.event_log.journal._fd == -1
    assert "could not be recorded completely" in caplog.text
    assert "could not be sealed" in caplog.text


def test_a_callback_that_raises_at_the_very_end_leaves_the_run_ended(tmp_path: Path) -> None:
    """The loop gets the error; the run records its end once."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "controllers:\n  - {name: last, triggers: [on_train_end], rule: len(loss) > 0, "
        "operations: [hfcontrols.should_save]}\n"
    )

    def on_save() -> None:
        rec.close()
        raise ValueError("no room")

    rec = Recorder(tmp_path / "runs", rules=policy, callbacks={"save": on_save})
    with pytest.raises(ValueError, match="no room"), rec:
        rec.step(loss=1.0)

    run = open_run(rec.folder)
    assert run.status == "completed"
    assert [event.kind for event in run.events()][-2:] == ["train_end", "decision"]


def test_a_loop_in_a_folder_that_has_been_deleted_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers delete folders of running programs; the run then has no git commit."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    (event,) = recorded(tmp_path / "runs")

    assert event.metrics == {"loss": 1.0}


def test_the_commit_of_a_loop_is_kept_wherever_in_the_repository_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a subfolder and in another work tree as well; outside a repository there is none."""
    repository = tmp_path / "repository"
    (repository / "training").mkdir(parents=True)
    for command in (
        "init -q",
        "-c user.name=a -c user.email=a@example.org commit -q --allow-empty -m first",
        "worktree add -q ../tree",
    ):
        subprocess.run(["git", *command.split()], cwd=repository, check=True)
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()

    kept = []
    for folder in (repository, repository / "training", tmp_path / "tree", tmp_path):
        monkeypatch.chdir(folder)
        with Recorder(folder / "runs") as rec:
            rec.step(loss=1.0)
        kept.append(open_run(rec.folder).info.last.environment["git"])

    assert kept == [{"commit": head, "dirty": False}] * 3 + [None]


@pytest.mark.parametrize("argument", sorted(GROUPS))
@pytest.mark.parametrize("wrong", [7, {"every": 2}], ids=["number", "mapping"])
def test_a_group_of_another_type_is_refused_before_anything_is_written(
    tmp_path: Path, argument: str, wrong: Any
) -> None:
    """The error names the class of the group."""
    with pytest.raises(TelemetryError, match=GROUPS[argument].__name__):
        Recorder(tmp_path / "runs", **{argument: wrong})

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"total_steps": 5, "plan": Plan(total_steps=5)}, "total_steps is given twice; got .*Give it in total_steps="),
        ({"ranks": Ranks(world_size=1), "plan": Plan(world_size=1)}, r"world_size is given twice; got .*ranks=Ranks\("),
    ],
    ids=["total_steps", "world_size"],
)
def test_a_part_of_the_plan_that_is_given_twice_is_refused(tmp_path: Path, given: dict[str, Any], where: str) -> None:
    """Otherwise one of two numbers would be dropped without a word."""
    with pytest.raises(TelemetryError, match=where):
        Recorder(tmp_path / "runs", **given)

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("callbacks", [{"sve": print}, print], ids=["unknown order", "no mapping"])
def test_callbacks_for_no_order_are_refused(tmp_path: Path, callbacks: Any) -> None:
    """A misspelt order would never be served."""
    with pytest.raises(TelemetryError, match="callbacks must be a mapping of orders to functions; got "):
        Recorder(tmp_path / "runs", callbacks=callbacks)

    assert not (tmp_path / "runs").exists()


def test_the_loop_says_more_of_its_plan_than_the_number_of_steps(tmp_path: Path) -> None:
    """Both become the plan of the attempt."""
    plan = Plan(total_epochs=2, steps_per_epoch=5, constants={"n": 3})
    with Recorder(tmp_path, total_steps=9, plan=plan, ranks=Ranks(world_size=4)) as rec:
        pass

    assert open_run(rec.folder).info.last.plan == Plan(9, 2, 5, 4, {"n": 3.0})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"plan": Plan(9, 3)}),
        ({"plan": Plan(total_epochs=1)}, {"plan": Plan(9, 1)}),
        ({"total_steps": 5}, {"total_steps": 5, "plan": Plan(total_epochs=3)}),
        ({"plan": 7}, {"plan": 7}),
    ],
    ids=["nothing", "another length", "steps", "no plan"],
)
def test_a_framework_adds_to_a_group_what_the_user_left_out(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """The user's values win; the recorder refuses a value that is no group."""
    assert completed(given, Plan, total_steps=9, total_epochs=3) == expected
