"""A run resumed from a checkpoint becomes a new attempt, rolls back later events, and decides as an unbroken run."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from steptape import Plan, Recorder, TelemetryError, open_run, verify
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import UnsupportedVersion
from steptape.store.run import Run

RULES = """
controllers:
  - name: high
    triggers: [on_step_end]
    rule: loss > mean(loss, 4)
    for: 3
    operations: [hfcontrols.should_save]
  - name: falling
    triggers: [on_evaluate]
    rule: eval_loss < min(loss, 3)
    operations: [hfcontrols.should_log]
  - name: raised
    triggers: [on_step_end]
    rule: loss > mean(calm, 3, min=1)
    clear: loss < 2
    escalate:
      stages: [{operations: []}, {operations: [hfcontrols.should_log]}]
      cycle: true
      forget_after: 5
define:
  calm: {value: loss, admit: not fired_now("raised")}
"""


def steps(run: Run) -> list[tuple[int, int]]:
    """Return attempt and step of each effective update."""
    return [(event.attempt, event.step) for event in run.events() if event.kind == "step_end"]


def test_a_resumed_run_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """The run id suffices: events after the checkpoint are rolled back and kept."""
    with Recorder(tmp_path, name="first", config={"lr": 0.1}) as rec:
        for step in range(1, 8):
            rec.step(loss=1.0 / step)
            if step in (3, 5):
                rec.save(f"checkpoint-{step}", size_bytes=10)

    with Recorder(tmp_path, resume=rec.run_id, config={"lr": 0.1}) as again:
        again.step(loss=0.5)

    run = open_run(rec.folder)

    assert again.folder == rec.folder
    assert steps(run) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 6)]
    assert [event.step for event in run.events(attempts="all") if event.kind == "step_end"] == [1, 2, 3, 4, 5, 6, 7, 6]
    assert (run.info.name, run.info.last.parent, run.info.last.from_step, run.info.last.steps) == ("first", 0, 5, 6)


def test_what_was_rolled_back_once_is_never_resurrected(tmp_path: Path) -> None:
    """The run reaches 212, resumes at 100, dies at 105, and resumes at 100 again."""
    with Recorder(tmp_path) as rec:
        for step in range(1, 213):
            rec.step(loss=float(step))
            if step == 100:
                state = rec.state_dict()
                rec.save("checkpoint", size_bytes=1)
    with Recorder(tmp_path, resume=state) as second:
        for _ in range(5):
            second.step(loss=-1.0)
    with Recorder(tmp_path, resume=state) as third:
        for _ in range(3):
            third.step(loss=-2.0)

    run = open_run(rec.folder)

    assert steps(run) == [(0, step) for step in range(1, 101)] + [(2, 101), (2, 102), (2, 103)]
    assert {event.attempt for event in run.events(attempts="all")} == {0, 1, 2}


def test_a_state_belongs_to_the_attempt_that_made_it(tmp_path: Path) -> None:
    """Another attempt has a newer checkpoint at the same step."""

    def two_states(resume: dict[str, Any] | None) -> list[dict[str, Any]]:
        with Recorder(tmp_path, resume=resume) as rec:
            states = []
            for _ in range(2):
                rec.step(loss=1.0)
                rec.save("checkpoint.pt")
                states.append(rec.state_dict())
        return states

    at_1, at_2 = two_states(None)
    two_states(at_1)
    with Recorder(tmp_path, resume=at_2) as rec:
        rec.step(loss=1.0)

    assert steps(open_run(rec.folder)) == [(0, 1), (0, 2), (2, 3)]


def test_the_state_is_plain_and_travels_in_a_torch_checkpoint(tmp_path: Path) -> None:
    """It loads with torch's weights-only loader and as JSON."""
    with Recorder(tmp_path, plan=Plan(steps_per_epoch=4)) as rec:
        rec.epoch_begin()
        for _ in range(6):
            rec.step(loss=1.0)
        torch.save({"recorder": rec.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["recorder"]

    with Recorder(tmp_path, resume=json.loads(json.dumps(state)), plan=Plan(steps_per_epoch=4)) as again:
        again.step(loss=1.0)
        again.epoch_begin()

    last = [event for event in open_run(rec.folder).events() if event.attempt == 1]

    assert [(event.kind, event.step, event.epoch) for event in last[:3]] == [
        ("train_begin", 6, 1.5),
        ("step_end", 7, 1.75),
        ("epoch_begin", 7, 1.0),
    ]


def test_rules_of_other_semantics_are_not_resumed(tmp_path: Path) -> None:
    """The attempt is refused before anything is written; without rules it resumes."""
    policy = parse_policy(RULES)
    with Recorder(tmp_path, run_id="r", rules=policy) as rec:
        rec.step(loss=1.0)
        rec.save("checkpoint", size_bytes=1)
    path = rec.folder / "run.json"
    document = json.loads(path.read_text())
    document["attempts"][0]["policy"]["semantics_version"] = 5
    path.write_text(json.dumps(document))

    with pytest.raises(UnsupportedVersion, match="of attempt 0: this steptape supports rule semantics 8; got 5"):
        Recorder(tmp_path, resume="r", rules=policy)

    assert json.loads(path.read_text()) == document
    with Recorder(tmp_path, resume="r") as again:
        again.step(loss=2.0)
    assert open_run(rec.folder).info.last.attempt == 1


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    """A SIGKILL leaves a journal; the next attempt starts from the checkpoint in it."""
    script = """
        import sys, time
        from steptape import Recorder
        rec = Recorder(sys.argv[1])
        for step in range(1, 11):
            rec.step(loss=float(step))
            if step == 8:
                rec.save("checkpoint", size_bytes=1)
        print(rec.run_id, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)

    with Recorder(tmp_path, resume=run_id) as rec:
        rec.step(loss=0.0)

    assert [step for _, step in steps(open_run(rec.folder))] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert open_run(rec.folder).info.attempts[0].status == "running"
    assert open_run(rec.folder).status == "completed"


def test_allow_begins_a_run_and_continues_it_from_the_beginning_then_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """A job that is restarted has one line for its recorder, whether or not it has saved anything yet."""
    began = []
    for _ in range(4):
        with Recorder(tmp_path, run_id="job-1", resume="allow") as rec:
            began.append(rec.progress.updates)
            rec.step(loss=1.0)
            if len(began) > 1:
                rec.save("newest.pt", size_bytes=1)
            rec.step(loss=2.0)

    run = open_run(tmp_path / "job-1")
    assert began == [0, 0, 1, 2]
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 0, 1, 2]
    assert steps(run) == [(1, 1), (2, 2), (3, 3), (3, 4)]


def test_a_state_may_be_given_with_the_id_of_its_run(tmp_path: Path) -> None:
    """A restarted job gives its id in any case, and the state once its checkpoint has one."""
    with Recorder(tmp_path, run_id="job-1", resume="allow") as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
        rec.step(loss=2.0)
    with Recorder(tmp_path, run_id="job-1", resume=state) as rec:
        rec.step(loss=3.0)

    assert open_run(tmp_path / "job-1").series("loss")["value"].to_pylist() == [1.0, 3.0]


def test_a_run_that_is_being_written_is_not_resumed(tmp_path: Path) -> None:
    """Two writers of one run would each take themselves for the last."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        rec.save("checkpoint", size_bytes=1)

        with pytest.raises(TelemetryError, match="still being written"):
            Recorder(tmp_path, resume=rec.run_id)

    assert len(open_run(rec.folder).info.attempts) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": "nowhere"}, "no such run"),
        ({"resume": "../escape"}, "not a valid run id"),
        ({"resume": "my loop"}, "resume takes a run's id; got 'my loop'. The newest run of this name is a-run"),
        ({"resume": 3}, "resume must be a run id, "),
        ({"resume": {"format": 2}}, "resume must be a run id, "),
        ({"resume": {"format": 1}}, "resume: this steptape supports recorder state format 2; got 1. Resume with the"),
        ({"resume": "RUN"}, "recorded no checkpoint"),
        ({"resume": ("a-run", 9)}, "reached only step 2; got 9"),
        ({"resume": ("a-run", -1)}, r"the step to resume from must be a whole number from 0 to 2\*\*53; got -1"),
        ({"resume": ("a-run", "1")}, "the step to resume from must be a whole number; got '1'"),
        ({"resume": ("a-run", True)}, "the step to resume from must be a whole number.*; got True"),
        ({"resume": ("a-run", 1, 2)}, "resume must be a run id, "),
        ({"resume": "RUN", "run_id": "another"}, "run_id and resume name two runs, and resume= names 'a-run'; got 'an"),
        ({"resume": "allow"}, "resume='allow' needs the id of the run. Give run_id="),
        ({"resume": "allow", "run_id": "../escape"}, "a run id starts with"),
        ({"run_id": "RUN"}, "a run with this id already"),
        ({"run_id": ".hidden"}, "a run id starts with"),
    ],
    ids=str,
)
def test_what_cannot_be_resumed_is_told_and_changes_nothing(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    """The error comes before anything is written."""
    with Recorder(tmp_path, run_id="a-run", name="my loop") as rec:
        rec.step(loss=1.0)
        rec.step(loss=1.0)
    rec.close(seal=True)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    given_ = {key: "a-run" if value == "RUN" else value for key, value in arguments.items()}

    with pytest.raises(TelemetryError, match=message):
        Recorder(tmp_path, **given_)  # type: ignore[arg-type]

    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert rec.run_id == "a-run"


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
    ids=["dropped", "kept", "never", "added"],
)
def test_a_resume_without_the_rules_of_its_checkpoint_is_warned_of(
    tmp_path: Path, first: bool, second: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rules do not continue by themselves. It may be meant, so ``strict`` does not raise."""
    policy = parse_policy(RULES, source="my.yaml")
    with Recorder(tmp_path, rules=policy if first else None) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    caplog.clear()

    with Recorder(tmp_path, resume=state, rules=policy if second else None, strict=True):
        said = [message for message in caplog.messages if "my.yaml" in message and "rules=" in message]

    assert said == (
        ["this attempt has no rules, but attempt 0, which it resumes, had my.yaml. Give rules= to continue them"]
        if warned
        else []
    )


def test_a_step_alone_says_where_a_run_without_checkpoints_goes_on(tmp_path: Path) -> None:
    """The loop stores its checkpoints elsewhere."""
    with Recorder(tmp_path) as rec:
        for _ in range(5):
            rec.step(loss=1.0)

    with Recorder(tmp_path, resume=(rec.run_id, 3)) as again:
        again.step(loss=2.0)

    assert steps(open_run(rec.folder)) == [(0, 1), (0, 2), (0, 3), (1, 4)]


def test_another_config_at_a_resume_is_written_down(tmp_path: Path) -> None:
    """The run keeps its first config; the change is a note in its log."""
    with Recorder(tmp_path, config={"lr": 0.1}) as rec:
        rec.step(loss=1.0)
        rec.save("checkpoint", size_bytes=1)

    with Recorder(tmp_path, resume=rec.run_id, config={"lr": 0.01, "api_key": "abc"}):
        pass

    run = open_run(rec.folder)
    (note,) = [event for event in run.events() if event.kind == "annotation"]

    assert run.info.config == {"lr": 0.1}
    assert note.attrs["config"] == {"lr": 0.01, "api_key": "[redacted]"}


def test_a_resume_that_describes_the_run_anew_is_warned_of_what_it_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A script that resumes itself with the same arguments, or with none, is not. ``strict`` does not raise."""
    config = {"lr": 0.1, "layers": [1, 2]}
    with Recorder(tmp_path, name="a", group="g", tags=["t"], config=config) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    with Recorder(tmp_path, resume=state, name="a", group="g", tags="t", config=config, strict=True):
        pass
    with Recorder(tmp_path, resume=state, strict=True):
        pass
    with Recorder(tmp_path, resume=state, config={**config, "resume_from_step": 1, "init_checkpoint": "1.pt"}):
        pass  # Every start of a script says anew where it begins.
    assert caplog.messages == []

    with Recorder(tmp_path, resume=state, name="b", group="h", tags=["t", "u"], config={**config, "lr": 0.01}):
        pass

    assert caplog.messages == [
        "a resumed run keeps its name, group, tags and config; got {'name': 'b', 'group': 'h', 'tags': ['t', 'u'], "
        "'config': {'lr': 0.01}}. A note of this attempt holds the new config. For another name, record a new run"
    ]


LOSSES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 9.0, math.nan]), min_size=2, max_size=20)


def train(store: Path, losses: Sequence[float], rules: Path, splits: Sequence[int]) -> Run:
    """Train over these losses, evaluate at every third step, and resume after each of these steps."""
    ends = [*sorted(set(splits)), len(losses)]
    state, done = None, 0
    for end in ends:
        with Recorder(store, rules=rules, resume=state) as rec:
            for step in range(done + 1, end + 1):
                rec.step(loss=losses[step - 1])
                if step % 3 == 0:
                    rec.evaluate(eval_loss=losses[step - 1] / 2)
            state, done = rec.state_dict(), end
            rec.save("checkpoint", size_bytes=1)
            if end < len(losses):
                # Work after the checkpoint is lost with the process.
                rec.step(loss=7.0)
    return open_run(rec.folder)


def decided(run: Run) -> list[tuple[str, int, str]]:
    """Return the rules' decisions, without positions that depend on attempts."""
    rows = run.decisions().to_pylist()
    return [(row["controller"], row["step"], f"{row['values']} {row['stage']}") for row in rows]


@examples(6)
@given(losses=LOSSES, data=st.data())
def test_a_run_that_is_split_anywhere_decides_as_one_that_is_not(
    losses: list[float], data: st.DataObject, tmp_path: Path
) -> None:
    """This holds live, for windows and patience, and each attempt is verified."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    splits = data.draw(st.lists(st.integers(1, len(losses) - 1), max_size=3))

    whole, split = (train(tmp_path / "runs", losses, rules, places) for places in ((), splits))

    assert decided(split) == decided(whole)
    assert verify(split).identical


def test_the_next_recorder_seals_what_dead_runs_left(tmp_path: Path) -> None:
    """A journal is sealed without a user's command."""
    script = """
        import os, sys
        from steptape import Recorder
        rec = Recorder(sys.argv[1])
        rec.step(loss=1.0)
        print(rec.folder, flush=True)
        os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    dead = subprocess.run(command, capture_output=True, text=True, check=False)
    folder = Path(dead.stdout.strip())
    left = os.listdir(folder)

    with Recorder(tmp_path) as rec:
        rec.step(loss=2.0)

    assert any(name.startswith("journal-") for name in left)
    until(lambda: not list(folder.glob("journal-*")))
    assert open_run(folder).series("loss")["value"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", "6"), ("step", None), ("epoch", math.nan), ("epochs_begun", "one"), ("attempt", -1), ("seq", 0.5)],
)
def test_a_state_that_was_changed_on_the_way_is_told_and_changes_nothing(
    tmp_path: Path, name: str, value: object
) -> None:
    """A number that became text, for example, would make the run unreadable."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    rec.close(seal=True)
    before = sorted(path.name for path in rec.folder.iterdir())

    with pytest.raises(TelemetryError, match=f"{name} must be"):
        Recorder(tmp_path, resume={**state, name: value})

    assert sorted(path.name for path in rec.folder.iterdir()) == before


@pytest.mark.parametrize("steps", [2, 5, 9])
def test_a_checkpoint_of_another_recording_resumes_no_run_of_its_id(steps: int, tmp_path: Path) -> None:
    """The first recording was deleted, and its id used again."""
    with Recorder(tmp_path / "first", run_id="nightly") as first:
        for _ in range(5):
            first.step(loss=1.0)
        state = first.state_dict()
    with Recorder(tmp_path / "second", run_id="nightly") as second:
        for _ in range(steps):
            second.step(loss=2.0)
    before = {path.name: path.read_bytes() for path in second.folder.iterdir() if path.is_file()}

    with pytest.raises(
        TelemetryError, match=r"the checkpoint is of another recording.* begin a run with another run_id="
    ):
        Recorder(tmp_path / "second", resume=state)
    assert {path.name: path.read_bytes() for path in second.folder.iterdir() if path.is_file()} == before
