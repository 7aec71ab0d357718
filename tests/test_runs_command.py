"""``steptape runs`` lists the newest runs page by page, and all as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptape.cli.app import app
from steptape.store.run_info import Attempt, RunInfo


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """A store of five runs, the oldest called run-0."""
    for number in range(5):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        started_ns = (number + 1) * 10**18
        attempts = (Attempt(0, "completed", started_ns, started_ns + 2 * 10**9, steps=number),)
        info = RunInfo(folder.name, folder.name, attempts, config={"lr": 10.0 ** -(number % 3)})
        (folder / "run.json").write_bytes(info.to_json())
    return tmp_path


def listed(*arguments: object) -> tuple[list[str], str]:
    """Return the first column of the printed rows, and the standard error."""
    result = CliRunner().invoke(app, ["runs", "--store", *map(str, arguments)])
    return [line.split()[0] for line in result.stdout.splitlines()], result.stderr


@pytest.mark.parametrize(
    ("arguments", "shown", "told"),
    [
        ((), ["run-0", "run-1", "run-2", "run-3", "run-4"], ""),
        (("--limit", 2), ["run-3", "run-4"], "3 older runs: --limit 5 lists all\n"),
        (("--limit", 5), ["run-0", "run-1", "run-2", "run-3", "run-4"], ""),
    ],
)
def test_a_limit_lists_the_newest_runs_oldest_first(
    five: Path, arguments: tuple[object, ...], shown: list[str], told: str
) -> None:
    """What it leaves out is said on standard error."""
    assert listed(five, *arguments) == (["run_id", *shown], told)


@pytest.mark.parametrize(("arguments", "count"), [((), 5), (("--limit", 2), 2)])
def test_json_lists_all_runs_unless_a_limit_is_given(five: Path, arguments: tuple[object, ...], count: int) -> None:
    """A program must not miss a run because it did not ask for more."""
    result = CliRunner().invoke(app, ["runs", "--store", str(five), "--json", *map(str, arguments)])

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["run_id"] for row in rows] == [f"run-{number}" for number in range(5)][-count:]


def test_columns_are_aligned_as_plain_text(five: Path) -> None:
    """Numbers to the right, text to the left, without spaces at the end of a line."""
    result = CliRunner().invoke(app, ["runs", "--store", str(five), "--limit", "1"])

    assert result.stdout == (
        "run_id  name   group  status     started (UTC)        duration_s  steps  planned_steps\n"
        "run-4   run-4  -      completed  2128-06-11 08:53:20           2      4              -\n"
    )


@pytest.mark.parametrize(
    ("arguments", "shown", "told"),
    [
        (("--where", "lr<1"), ["run-1", "run-2", "run-4"], ""),
        (("--where", "lr<1", "--limit", 2), ["run-2", "run-4"], "1 older run: --limit 3 lists all\n"),
        (("--sort", "lr"), ["run-2", "run-4", "run-1", "run-3", "run-0"], ""),
        (("--sort=-lr", "--limit", 2), ["run-3", "run-0"], "3 more runs: --limit 5 lists all\n"),
        (("--where", "lr>5"), [], ""),
    ],
)
def test_a_question_and_an_order_choose_what_is_listed(
    five: Path, arguments: tuple[object, ...], shown: list[str], told: str
) -> None:
    """Without an order the newest run is the last, with one the first of it is the first."""
    rows, said = listed(five, *arguments)

    assert ([row for row in rows if row.startswith("run-")], said) == (shown, told)


def test_columns_that_are_asked_for_follow_id_and_name(five: Path) -> None:
    """In JSON they are ``values`` beside the row."""
    asked = ["runs", "--store", str(five), "--columns", "lr,steps", "--where", "steps>=3"]
    table, lines = (CliRunner().invoke(app, [*asked, *more]).stdout for more in ([], ["--json"]))

    assert table == "run_id  name    lr  steps\nrun-3   run-3    1      3\nrun-4   run-4  0.1      4\n"
    assert [json.loads(line)["values"] for line in lines.splitlines()] == [
        {"lr": 1.0, "steps": 3},
        {"lr": 0.1, "steps": 4},
    ]


def test_a_question_that_is_none_says_where(five: Path) -> None:
    """The exit status is that of wrong usage."""
    found = CliRunner().invoke(app, ["runs", "--store", str(five), "--where", "lrr<1"]).exception

    assert str(found) == "where:1: no run has this field; got 'lrr'. Did you mean lr?"
