"""A mistake on a command line is answered with what is wrong and how to go on."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import call as steptape
from waiting import PATIENCE_S, until

from steptape import Recorder, TelemetryError, backtest, load_policy, open_run, open_store, sweep
from steptape.cli.removed import OPTIONS
from steptape.replay.reports.diff import diff_policies

POLICY = """
params:
  spike: 3.0
  unit: steps
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: isfinite(loss) and loss > spike * mean(loss, 5) and len(eval_loss) > 1
    operations: [hfcontrols.should_training_stop]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy, and a store of four runs: two have one name, three lack what the policy reads."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "policy.yaml").write_text(POLICY)
    for name, loss, eval_loss in (
        ("baseline", "train_loss", "val_loss"),
        ("twice", "loss", "eval_loss"),
        ("twice", "loss", "val_loss"),
        ("wide", "loss", "validation/loss"),
    ):
        with Recorder(folder / "runs", name=name) as rec:
            for step in range(1, 11):
                rec.step({loss: 1.0 / step})
                if step % 2 == 0:
                    rec.evaluate({eval_loss: 1.0 / step})
    return folder


def call(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return steptape(*arguments, folder=folder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("backtest", "policy.yaml", "--objective", "evalloss"),
            "no run recorded an evaluation of this metric; got 'evalloss'. Did you mean 'eval_loss'?",
        ),
        (
            ("sweep", "policy.yaml", "--set", "spike=1,2", "--objective", "evalloss"),
            "no run recorded an evaluation of this metric; got 'evalloss'. Did you mean 'eval_loss'?",
        ),
        (
            ("diff", "policy.yaml", "policy.yaml", "--objective", "accuracy"),
            "got 'accuracy'. They evaluated: eval_loss, val_loss, validation/loss",
        ),
        (("sweep", "policy.yaml", "--set", "spike=1,2", "--split", "families=1"), "with =N of at least 2 or without"),
        (("backtest", "policy.yaml", "--saves", "kep"), "'--saves': 'kep' is not one of 'keep', 'replace'"),
        (
            ("backtest", "policy.yaml", "--objective", "eval_loss:maxx"),
            "the mode of an objective is min or max; got 'maxx'. Write eval_loss:min or eval_loss:max",
        ),
        (
            ("backtest", "policy.yaml", "b.csv", "--history", "a.csv"),
            "name a RUN or a STORE, or give --history PATH; not both. With several logs, write --history before each",
        ),
        (("sweep", "policy.yaml", "--set", "spike=1-2"), "a range FIRST..LAST..STEP, such as 1..2..0.5; got '1-2'"),
        (("sweep", "policy.yaml", "--set", "spike=1:20:1"), "got '1:20:1'. Write 1..20."),
        (("show", "twice@3"), "no such run: 2 runs called 'twice'; got 'twice@3'. Count from twice@1"),
        (("delete", "twice", "--yes"), "2 runs have this name; got 'twice'. Name an id: "),
        (("delete", "twice@1", "--yes"), "this number changes when a run is deleted; got 'twice@1'. Name an id: "),
    ],
)
def test_a_value_that_names_nothing_is_refused_with_what_to_write(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """The exit status is 2, and nothing is printed on stdout."""
    result = call(folder, *arguments, "--store", "runs")

    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("command", [("show",), ("tail",), ("backtest", "policy.yaml"), ("verify",), ("export",)])
def test_a_store_in_place_of_a_run_is_said_to_be_one(folder: Path, command: tuple[str, ...]) -> None:
    """By name or by path, the error says how to name a store."""
    named, by_path = call(folder, *command, "runs"), call(folder, *command, "./runs")

    assert {(result.returncode, result.stdout) for result in (named, by_path)} == {(2, "")}
    assert "got 'runs'. This is a store: write --store runs, and a run's id or name" in named.stderr
    assert "got './runs'. This is a store: write --store ./runs, and a run's id or name" in by_path.stderr


def test_a_store_that_is_not_there_is_said_to_be_none(folder: Path) -> None:
    """The command that lists runs does not name itself as the cure."""
    result = call(folder, "runs", "--store", "nowhere")

    assert result.returncode == 2
    assert result.stderr.startswith("error: nowhere: no such store. A store is a folder of runs; 'steptape demo' makes")


def test_a_store_opened_as_a_run_is_said_to_be_one(folder: Path) -> None:
    """The error names the function that opens it."""
    with pytest.raises(TelemetryError, match=r"runs: this is a store, not a run\. Open it with open_store"):
        open_run(folder / "runs").events()


def test_a_run_that_is_being_written_is_neither_sealed_nor_deleted_and_the_word_says_so(tmp_path: Path) -> None:
    """It is no run that is sealed already, and no empty store."""
    with Recorder(tmp_path / "runs", quiet=True) as rec:
        rec.step(loss=1.0)
        sealed = call(tmp_path, "seal", "--store", "runs")
        deleted = call(tmp_path, "delete", "--store", "runs", "--keep-last", "0", "--yes")

    assert sealed.stdout == f"{rec.run_id}: a process is writing to this run. It is sealed at its end\n"
    assert deleted.stdout == "no run to delete: a process is writing to 1 run\n"


def test_a_passing_test_of_a_series_that_no_rule_reads_is_warned_of(tmp_path: Path) -> None:
    """A misspelt series makes no rule fire, so a test that expects nothing passes for no reason."""
    test = "policy: loss_spike\ntests:\n  - {name: calm, series: {los: 2.0x40 nan}, expect: []}\n"
    (tmp_path / "a.test.yaml").write_text(test)

    result = call(tmp_path, "test", "a.test.yaml")

    assert (result.returncode, result.stdout) == (0, "a.test.yaml: the test passes\n")
    word = "warning: a.test.yaml:3:5: test 'calm' passes, but: No rule reads the series 'los'. Did you mean 'loss'?\n"
    assert result.stderr == word


def test_a_rename_hint_can_be_pasted(tmp_path: Path) -> None:
    """A metric's name may hold a blank."""
    with Recorder(tmp_path / "runs", quiet=True) as rec:
        for step in range(1, 11):
            rec.step(loss=1.0)
            rec.evaluate({"val loss": 1.0 / step})

    said = call(tmp_path, "backtest", "overfitting", "--store", "runs").stdout
    (hint,) = re.findall("To replay over these: (--rename .*)", said)
    renamed = call(tmp_path, "backtest", "overfitting", "--store", "runs", *shlex.split(hint))

    assert (renamed.returncode, renamed.stderr) == (0, "")


@pytest.mark.parametrize("function", [backtest, sweep, diff_policies])
def test_a_function_given_names_in_place_of_policy_or_runs_says_what_to_write(
    folder: Path, function: Callable[..., object]
) -> None:
    """They take what other functions open."""
    policy = load_policy(folder / "policy.yaml")
    more: list[Any] = [{"spike": [1.0]}] if function is sweep else [policy] if function is diff_policies else []

    with pytest.raises(TelemetryError, match=r"takes a policy; got 'p.yaml'\. Write load_policy\(\.\.\.\)"):
        function("p.yaml", *more, open_store(folder / "runs"))
    with pytest.raises(TelemetryError, match=r"takes runs; got 'runs'\. Write open_store\(\.\.\.\), or \[open_run"):
        function(policy, *more, "runs")
    with pytest.raises(TelemetryError, match=r"takes runs; got 'runs/a'\. Write"):
        function(policy, *more, ["runs/a"])
    with pytest.raises(TelemetryError, match=r"takes runs; got Run\("):
        function(policy, *more, next(iter(open_store(folder / "runs"))))


@pytest.mark.parametrize("command", [("show",), ("verify",), ("replay", "policy.yaml"), ("tail", "-n", "0")])
def test_a_repeated_name_is_the_newest_run_and_said_on_stderr(folder: Path, command: tuple[str, ...]) -> None:
    """Output for programs stays as it is."""
    by_name = call(folder, *command, "twice", "--store", "runs")
    by_number = call(folder, *command, "twice@2", "--store", "runs")

    said = "2 runs are called 'twice'; this is the newest, twice@2. Older ones: twice@1\n"
    assert by_name.stderr == said + by_number.stderr
    assert (by_name.returncode, by_name.stdout) == (by_number.returncode, by_number.stdout)


def test_check_says_how_many_runs_lack_what_rules_read(folder: Path) -> None:
    """It names the commonest similar metrics of these runs; a lack in some runs is no warning."""
    text = call(folder, "check", "policy.yaml", "--store", "runs", "--ignore", "unused", "--ignore", "nan-guard")
    document = json.loads(call(folder, "check", "policy.yaml", "--store", "runs", "--json").stdout)
    by_window = call(folder, "check", "trac_fig4", "--store", "runs").stdout

    assert text.stdout.splitlines()[:2] == [
        "1 of 4 runs lacks 'loss'; nearest: train_loss (1 run)",
        "3 of 4 runs lack 'eval_loss'; nearest: val_loss (2 runs), validation/loss (1 run)",
    ]
    assert "3 of 4 runs lack 'eval_loss' of evaluate events; nearest: val_loss (2 runs), validation/loss" in by_window
    assert (text.returncode, "policy.yaml: fine against 4 runs" in text.stdout) == (0, True)
    assert document["lacked"][0] == {"name": "loss", "kind": None, "runs": 1, "nearest": {"train_loss": 1}}


def test_a_store_that_does_not_exist_yet_is_created_and_served(tmp_path: Path) -> None:
    """One starts the server before the first run, which then appears."""
    store = tmp_path / "later" / "runs"
    command = [sys.executable, "-m", "steptape", "serve", str(store), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        match = re.search(r"http://127\.0\.0\.1:\d+/api/v1/runs", said[1])
        assert match, said
        assert httpx.get(match[0], timeout=PATIENCE_S).json()["items"] == []
        with Recorder(store) as rec:
            rec.step(loss=1.0)
        until(lambda: len(httpx.get(match[0], timeout=PATIENCE_S).json()["items"]) == 1)
    finally:
        process.kill()
        process.communicate()

    assert said[0] == f"{store}: there was no such store, so an empty one was created\n"
    assert len(list(open_store(store))) == 1


def test_a_store_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """A file in its path is named."""
    (tmp_path / "file").touch()
    result = call(tmp_path, "serve", "file/runs")

    assert (result.returncode, result.stderr) == (
        2,
        "error: file/runs: the store cannot be created (Not a directory)\n",
    )


def test_a_misspelt_command_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """No command is imported for it."""
    done = call(tmp_path, "backtst")

    assert (done.returncode, "No such command 'backtst'. Did you mean 'backtest'?" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [("verify", "--store", ""), ("show", "twice", "--store", " "), ("runs", "--store", ""), ("serve", "")],
    ids=str,
)
def test_an_empty_store_name_is_not_the_current_folder(folder: Path, arguments: tuple[str, ...]) -> None:
    """An unset variable of a shell gives one."""
    result = call(folder / "runs", *arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert "the store must be the path of a folder" in result.stderr


def test_a_store_is_a_folder_of_runs_and_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library refuses an empty path as well."""
    monkeypatch.chdir(folder / "runs")
    run = next((folder / "runs").iterdir())

    with pytest.raises(TelemetryError, match="the store must be the path of a folder; got ''"):
        open_store("")
    with pytest.raises(TelemetryError, match=r"this is a run, not a store\. Open it with open_run"):
        open_store(run)
    assert "this is a run, not a store" in call(folder, "verify", "--store", run).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stop", "twice@2"), "steptape stop: this command is gone. Write 'steptape ask stop RUN'"),
        (
            ("retain", "runs", "keep.yaml", "--root", "."),
            "steptape retain: this command is gone. The how-to 'Free disk",
        ),
        (("runs", "runs"), "steptape runs: the store is named by --store; got 'runs'. Write --store runs"),
        (
            ("query", "runs", "SELECT 1"),
            "steptape query: the store is named by --store; got 'runs'. Write --store runs",
        ),
        (("doctor", "runs"), "runs: no run has this id or name; got 'runs'. This is a store: write --store runs, "),
        (
            ("backtest", "a", "--no-cache"),
            "steptape backtest: there is no --no-cache. Leave it out: results are no longer",
        ),
        (("serve", "--store", "runs"), "steptape serve: there is no --store. Name the store by position"),
        (("diff", "a", "b", "--mode=min"), "steptape diff: there is no --mode. Write --objective METRIC:min or "),
        (
            ("compare", "a", "b", "--unpaired"),
            "steptape compare: there is no --unpaired. Write --pairs KEY, or --pairs none",
        ),
        (
            ("verify", "--all"),
            "steptape verify: there is no --all. Leave it out: without RUN, every run of the store is",
        ),
    ],
)
def test_what_was_removed_is_answered_with_what_replaces_it(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """In one line, with exit status 2."""
    result = call(folder, *arguments)

    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"error: {said}")


def test_every_removed_option_is_none_that_the_command_has() -> None:
    """Otherwise it could not be given."""
    for command, option in OPTIONS:
        assert f" {option} " not in call(Path(), command, "--help").stdout, (command, option)


def test_every_command_reads_the_same_default_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ``STEPTAPE_STORE``, else the folder ``runs``."""
    commands = (
        ("runs",),
        ("show", "wide"),
        ("query", "SELECT count(*) FROM runs"),
        ("verify",),
        ("check", "policy.yaml"),
    )
    here = [call(folder, *command).stdout for command in commands]
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.setenv("STEPTAPE_STORE", str(folder / "runs"))
    elsewhere = [call(tmp_path, *command).stdout for command in commands]

    assert all(here)
    assert here == elsewhere
    monkeypatch.delenv("STEPTAPE_STORE")
    lost = call(tmp_path, "verify").stderr
    assert lost == "error: runs: no such store. Name one with --store or STEPTAPE_STORE; 'steptape import' makes one\n"


def test_a_run_with_a_separator_is_a_folder_and_no_name(folder: Path) -> None:
    """A name without one is looked up in the store, and the error says how to name a folder."""
    run = next((folder / "runs").iterdir())

    by_id, by_path = call(folder, "show", run.name), call(folder, "show", f"runs/{run.name}")
    inside = call(folder / "runs", "show", run.name, "--store", "../runs")
    bare = call(folder / "runs", "show", run.name)

    assert (by_id.returncode, by_id.stdout) == (0, by_path.stdout)
    assert inside.returncode == 0
    assert bare.stderr == f"error: runs: no such store; got '{run.name}'. To name the folder, write ./{run.name}\n"


@pytest.mark.parametrize("command", ["verify", "export"])
def test_a_damaged_file_points_to_the_doctor(folder: Path, tmp_path: Path, command: str) -> None:
    """One flipped bit is enough; the doctor says what it means."""
    with Recorder(tmp_path, name="one") as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)
    path = next(rec.folder.glob("events-*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    said = call(folder, command, rec.folder)

    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.endswith(f"'steptape doctor {rec.folder}' says what is damaged\n")
