"""The guard of integrations: which failures reach a training, and how a run that is lost begins anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptape import Plan, Push, Ranks, Recorder, TelemetryError, open_store
from steptape.integrations.guard import Guard, guarded
from steptape.integrations.hugging_face import exported_arguments, with_groups
from steptape.rules.policy_file.policy import triggering_kinds


class Adapter:
    """An integration with hooks that fail."""

    def __init__(self, store: Path, **arguments: Any) -> None:
        self._store, self._arguments = store, arguments
        self._guard = Guard(strict=bool(arguments.get("strict")))

    @guarded
    def on_step(self, lacking: object) -> object:
        """Ask a framework for what it may lack."""
        return lacking.step  # type: ignore[attr-defined]

    @guarded
    def on_begin(self, state: dict[str, Any] | None = None) -> Recorder:
        """Open a recorder."""
        return self._guard.opened(self._store, state, self._arguments)

    @guarded
    def on_save(self) -> None:
        """Have the framework save, in which it fails."""
        self._failing_save()

    @guarded
    def _failing_save(self) -> None:
        with self._guard.passing():
            raise OSError("disk full")


def test_a_failure_of_a_hook_is_one_warning_with_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A strict recorder's reaches the training."""
    adapter = Adapter(tmp_path)

    assert adapter.on_step(object()) is adapter.on_step(object()) is None
    (record,) = caplog.records
    assert record.getMessage().startswith("on_step failed, and training continues: AttributeError(")
    with pytest.raises(AttributeError):
        Adapter(tmp_path, strict=True).on_step(object())


@pytest.mark.parametrize(
    ("arguments", "error"), [({"rules": "no_such"}, TelemetryError), ({"total_step": 3}, TypeError)]
)
def test_what_the_recorder_refuses_reaches_the_training(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """A mistyped argument must not cost a night without a log."""
    with pytest.raises(error, match=r"no_such|total_step"):
        Adapter(tmp_path, **arguments).on_begin()


def test_what_the_framework_raises_reaches_the_training(tmp_path: Path) -> None:
    """In a job, other ranks wait for a save that failed; guarded calls within one another do not hide it."""
    with pytest.raises(OSError, match="disk full"):
        Adapter(tmp_path).on_save()


def test_a_run_that_cannot_be_resumed_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning; a strict recorder refuses."""
    with Recorder(tmp_path / "first") as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    Adapter(tmp_path / "first").on_begin(state).close()
    Adapter(tmp_path / "second").on_begin(state).close()

    assert [len(run.info.attempts) for name in ("first", "second") for run in open_store(tmp_path / name)] == [2, 1]
    assert caplog.text.count("cannot be resumed, so a new one begins") == 1
    with pytest.raises(TelemetryError):
        Adapter(tmp_path / "third", strict=True).on_begin(state)


def test_the_kinds_of_a_policy_are_those_of_its_triggers() -> None:
    """By the name of a shipped policy."""
    assert triggering_kinds("overfitting") == {"evaluate", "step_end"}
    assert triggering_kinds(None) == set()


def test_the_groups_among_a_callback_s_arguments_survive_json() -> None:
    """The Hugging Face trainer keeps a callback's arguments in the checkpoint as JSON; functions are lost."""
    given = {"plan": Plan(total_epochs=2), "ranks": Ranks(agree_timeout_s=4.0), "push": Push("archive", 5.0)}
    kept = exported_arguments("runs", "loss_spike", "all", {**given, "name": "a", "callbacks": {"save": print}})

    restored = with_groups(json.loads(json.dumps(kept)))

    own = {"store": "runs", "rules": "loss_spike", "kinds": "all"}
    assert restored == {**own, **given, "name": "a"}
    assert all(type(restored[name]) is type(group) for name, group in given.items())
