"""The planned length in the configuration of an imported run is its plan, unless the run itself says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call

from steptape.importers.run_writing import Course, Courses
from steptape.importers.source import Fact, ImportedRun
from steptape.store.plan import Plan
from steptape.store.run_info import read_run_info


def planned(config: dict[str, object], steps: int, **about: object) -> tuple[str, Plan]:
    """Return the plan of a run with a fact for every tenth step, and the key that it is from."""
    epochs = about.pop("epochs", None)
    run = ImportedRun(iter(()), config=config, **about)  # type: ignore[arg-type]
    course = Course(0)
    for step in range(10, steps + 1, 10):
        epoch = step * epochs / steps if isinstance(epochs, float) else None
        course.add(Fact("step_end", step, {"loss": 1.0}, epoch=epoch), 0)
    return Courses({0: course}).planned(run)


@pytest.mark.parametrize(
    ("config", "about", "plan"),
    [
        ({"max_steps": 100}, {}, Plan(total_steps=100)),
        ({"total_steps": "100"}, {}, Plan(total_steps=100)),
        ({"max_train_steps": 105.0}, {}, Plan(total_steps=105)),
        ({"max_steps": 400}, {"status": "crashed"}, Plan(total_steps=400)),
        ({"max_steps": -1, "num_train_epochs": 3.0}, {"epochs": 3.0}, Plan(total_epochs=3)),
        ({"epochs": 8}, {"epochs": 3.0, "status": "running"}, Plan(total_epochs=8)),
        ({"epochs": 100}, {"step_unit": "epochs"}, Plan(total_steps=100)),
        ({"max_steps": 100}, {"plan": Plan(total_steps=120)}, Plan(total_steps=120)),
        ({"trainer": {"max_steps": 100, "lr": 0.1}}, {}, Plan(total_steps=100)),
        ({"trainer.max_steps": 100, "scheduler": {"max_steps": "100"}}, {}, Plan(total_steps=100)),
        ({"training/total_steps": 100}, {}, Plan(total_steps=100)),
        ({"run": {"training/total_steps": 100}}, {}, Plan(total_steps=100)),
        ({"optim": {"epochs": 3}}, {"epochs": 3.0}, Plan(total_epochs=3)),
        ({"a": {"max_steps": 100}, "b": {"max_steps": 110}, "total_steps": 105}, {}, Plan(total_steps=105)),
        ({"max_steps": 100, "warmup": {"max_steps": -1}}, {}, Plan(total_steps=100)),
    ],
)
def test_the_configuration_says_how_long_a_run_was_meant_to_be(
    config: dict[str, object], about: dict[str, object], plan: Plan
) -> None:
    """A number may be text, and its key nested; a plan of the source itself comes first."""
    assert planned(config, 100, **about)[1] == plan


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({"max_steps": 400}, {}),
        ({"max_steps": 400}, {"status": "completed"}),
        ({"max_steps": 50}, {"status": "crashed"}),
        ({"epochs": 8}, {}),
        ({"epochs": 8}, {"epochs": 3.0}),
        ({"max_steps": 100}, {"step_unit": "epochs"}),
        ({"max_steps": True}, {}),
        ({"trainer": {"max_steps": 100}, "scheduler.max_steps": 110}, {}),
        ({"max_steps": 100, "pretraining": {"max_steps": 110}}, {}),
        ({"trainer": {"warmup_max_steps": 100, "max_steps_": 100}}, {}),
        ({"max_steps": 99.5}, {}),
        ({"max_steps": None, "epochs": "ten"}, {"epochs": 10.0}),
    ],
)
def test_a_number_that_the_run_contradicts_is_no_plan(config: dict[str, object], about: dict[str, object]) -> None:
    """It counts something else, such as updates where the log counts its own entries; of two numbers, none counts."""
    assert planned(config, 100, **about) == ("", Plan())


def test_an_import_says_from_where_the_plan_is(tmp_path: Path) -> None:
    """A rule on progress then has what it needs."""
    log = tmp_path / "run.jsonl"
    rows: list[dict[str, object]] = [{"step": step, "loss": 1.0 / step} for step in range(1, 11)]
    header: dict[str, object] = {"config": {"trainer": {"max_steps": 10}}}
    log.write_text("\n".join(map(json.dumps, [header, *rows, {}]))[:-2], encoding="utf-8")

    imported = call("import", "auto", log, "--store", tmp_path / "runs")
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    info = read_run_info(folder)

    assert "note: the plan of run run is 'trainer.max_steps' of the configuration" in imported.stderr
    assert (info.last.plan, (info.source or {})["plan_from"]) == (Plan(total_steps=10), "trainer.max_steps")
