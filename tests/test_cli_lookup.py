"""A command line's reference to a run is resolved, or the error shows how to name the run."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptape import Recorder, TelemetryError, open_store
from steptape.cli.app import app
from steptape.cli.lookup import admitted, run_named, runs_asked, the_run_named
from steptape.cli.options import RunsOptions
from steptape.store.events import Event
from steptape.store.run import Run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of runs; two of them share a name."""
    path = tmp_path_factory.mktemp("store")
    for name in ("digits", "digits uncontrolled", "digits under rules", "twice", "twice"):
        with Recorder(path, name=name) as rec:
            rec.step(loss=1.0)
    return path


def test_a_folder_that_is_not_there_is_said_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store, no name is known either."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TelemetryError, match=r"runs: no such run folder, and no such store; got 'lr/0\.1'") as caught:
        run_named("lr/0.1", None)

    assert caught.value.fix == "Name one with --store or STEPTAPE_STORE; 'steptape import' makes one"


@pytest.fixture
def imported(tmp_path: Path, store_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of a run named as its log's folder, and that folder, in the working directory."""
    (tmp_path / "tb" / "lr-0.1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return store_folder("run-1", root=tmp_path / "runs", name="tb/lr-0.1")


@pytest.mark.parametrize(
    "command", ["show", "tail", "export", "verify", "seal", "doctor", "note --text x", "replay overfitting"]
)
def test_each_command_takes_a_name_with_a_separator(imported: Path, command: str) -> None:
    """A folder of that name that holds no run does not hide the run."""
    name, *options = command.split()
    key = [*options, "tb/lr-0.1"] if name == "replay" else ["tb/lr-0.1", *options]
    found = CliRunner().invoke(app, [name, *key])

    assert not isinstance(found.exception, TelemetryError), imported


@pytest.mark.parametrize("named", [run_named, the_run_named])
def test_a_folder_that_holds_a_run_goes_before_a_run_of_that_name(
    imported: Path, store_folder: Callable[..., Path], named: Callable[[str, str | None], Run]
) -> None:
    """A shell may complete the name as a path."""
    root = imported.parents[1]
    shutil.rmtree(root / "tb" / "lr-0.1")
    store_folder("lr-0.1", root=root / "tb", name="other")

    assert named("tb/lr-0.1", None).info.name == "other"
    assert named("run-1", None).info.name == "tb/lr-0.1"


def test_a_name_with_a_separator_that_is_none_may_be_another_one(imported: Path) -> None:
    """The command accepts the name that its error suggests."""
    with pytest.raises(TelemetryError, match="no such run folder, and no run has this id or name") as caught:
        the_run_named("tb/lr-0.01", None)

    assert caught.value.fix.startswith("Did you mean 'tb/lr-0.1'? ")
    assert the_run_named("tb/lr-0.1", None).folder.resolve() == imported.resolve()


def test_a_folder_without_a_run_is_said_to_hold_none(imported: Path) -> None:
    """No run has its name."""
    (imported.parents[1] / "tb" / "empty").mkdir()
    with pytest.raises(TelemetryError, match=r"got 'tb/empty'\. tb/empty holds no run"):
        run_named("tb/empty", None)


def test_a_run_that_there_is_not_may_be_another_one(store: Path) -> None:
    """The error suggests the nearest name and a copyable command that lists all names."""
    with pytest.raises(TelemetryError, match="no run has this id or name; got 'dgits'") as caught:
        run_named("dgits", str(store))

    assert caught.value.fix == f"Did you mean 'digits'? 'steptape runs --store {store}' lists them"


def test_a_part_of_a_name_brings_up_the_names_that_hold_it(store: Path) -> None:
    """The length of the names does not matter."""
    with pytest.raises(TelemetryError) as caught:
        run_named("Digits u", str(store))

    assert caught.value.fix.startswith("Did you mean 'digits uncontrolled' or 'digits under rules'? ")


def test_a_name_that_runs_share_opens_the_newest_and_names_the_others(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every rerun of a script repeats its name."""
    opened = run_named("twice", str(store))

    said = "2 runs are called 'twice'; this is the newest, twice@2. Older ones: twice@1\n"
    assert (opened.run_id, capsys.readouterr().err) == (list(open_store(store))[-1].run_id, said)


def test_a_name_with_its_number_opens_that_run_without_a_word(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The oldest one is number 1."""
    opened = run_named("twice@1", str(store))

    assert (opened.run_id, capsys.readouterr().err) == (list(open_store(store))[-2].run_id, "")


def test_many_older_runs_are_named_by_the_first_and_the_last(
    tmp_path: Path, store_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The line stays short."""
    for number in range(30):
        store_folder(f"run-{number:02d}", root=tmp_path, name="often")
    run_named("often", str(tmp_path))

    told = "30 runs are called 'often'; this is the newest, often@30. Older ones: often@29 to often@1\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("key", ["twice", "twice@1"])
def test_a_command_that_destroys_takes_a_name_that_one_run_has(store: Path, key: str) -> None:
    """A number is refused as well: the numbers change when a run is deleted."""
    with pytest.raises(TelemetryError, match=f"; got '{key}'. Name an id: ") as caught:
        the_run_named(key, str(store))
    (first, *_) = caught.value.fix.removeprefix("Name an id: ").split(", ")

    assert the_run_named(first, str(store)).run_id == list(open_store(store))[-2].run_id
    assert the_run_named("digits", str(store)).info.name == "digits"


def test_a_refused_name_lists_ten_ids_at_most(tmp_path: Path, store_folder: Callable[..., Path]) -> None:
    """The rest is counted."""
    for number in range(30):
        store_folder(f"run-{number:02d}", root=tmp_path, name="often")

    with pytest.raises(TelemetryError, match="30 runs have this name") as caught:
        the_run_named("often", str(tmp_path))
    assert caught.value.fix.endswith("run-08, run-09 and 20 more")


def test_a_store_without_runs_has_nothing_to_suggest(tmp_path: Path) -> None:
    """The error says that there are no runs."""
    with pytest.raises(TelemetryError, match="no run has this id or name; got 'digits'") as caught:
        run_named("digits", str(tmp_path))

    assert caught.value.fix == "There are no runs"


@pytest.fixture
def dated(store_record: Callable[..., Path]) -> list[Run]:
    """Five runs, of which one failed: three of today, one of long ago, and one whose log does not say when it began."""
    kinds = [(0, "completed"), (0, "completed"), (0, "failed"), (90, "completed"), (None, "completed")]
    runs = []
    for number, (age_days, status) in enumerate(kinds):
        events = [Event("evaluate", 1, metrics={"eval_loss": 1.0 + number})]
        folder = store_record(events, run_id=f"run-{number}", status=status)
        document = json.loads((folder / "run.json").read_text())
        began_ns = 0 if age_days is None else time.time_ns() - age_days * 86_400 * 10**9
        document["attempts"][0]["started_ns"] = began_ns
        (folder / "run.json").write_text(json.dumps(document))
        runs.append(Run(folder))
    return runs


def test_runs_are_chosen_by_a_question(dated: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    """How many are left out is on stderr."""
    recent = admitted(dated, "started:30d")
    whole = admitted(dated, "started:30d status:completed")

    assert [run.run_id for run in recent] == ["run-0", "run-1", "run-2"]
    assert [run.run_id for run in whole] == ["run-0", "run-1"]
    assert capsys.readouterr().err == (
        "note: 2 runs left out by --where started:30d\n"
        "note: 3 runs left out by --where 'started:30d status:completed'\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["backtest", "overfitting"],
        ["sweep", "overfitting", "--set", "patience=1,2"],
        ["certify", "overfitting", "--set", "patience=1,2"],
        ["recommend"],
    ],
)
def test_each_command_that_judges_takes_the_same_question(command: list[str], dated: list[Run]) -> None:
    """Runs that are all left out are an error."""
    asked = [*command, "--store", str(dated[0].folder.parent), "--where", "started:30d status:crashed"]
    found = CliRunner().invoke(app, asked).exception

    assert str(found).startswith("--where: no run matches; got 'started:30d status:crashed'. 'steptape runs --where")


def test_named_runs_are_asked_too(dated: list[Run]) -> None:
    """A question leaves out some of the runs that positions name."""
    store = str(dated[0].folder.parent)

    chosen = runs_asked(RunsOptions(["run-0", "run-2"], store, where="-status:failed"))
    assert [run.run_id for run in chosen] == ["run-0"]


@pytest.mark.parametrize(
    ("option", "fix"), [("--since", "Write --where started:AGE"), ("--status", "Write --where status:STATUS")]
)
def test_an_option_that_a_question_replaces_says_so(option: str, fix: str) -> None:
    """The message shows what to write."""
    found = CliRunner().invoke(app, ["backtest", "overfitting", option, "x"]).exception

    assert isinstance(found, TelemetryError)
    assert found.fix == fix
