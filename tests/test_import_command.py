"""``steptape import`` prints a summary, returns a status, and follows logs that grow."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call as steptape
from event_files import losses, write_events

from steptape import open_store
from steptape.store.run_info import FORMAT

Call = Callable[..., subprocess.CompletedProcess[str]]

COMMAND = (sys.executable, "-m", "steptape")
NAME = "events.out.tfevents.1767323045.host"


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run ``steptape`` with the arguments in the test's folder."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return steptape(*arguments, folder=tmp_path)

    return run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder of two logs and a file that is not a log."""
    folder = tmp_path / "logs"
    write_events(folder / "a" / NAME, losses([1.0, 0.5]))
    (folder / "metrics.csv").write_text("step,loss\n1,0.5\n")
    (folder / "notes.md").write_text("nothing")
    return folder


def documents(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Parse the output of ``--json``."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_folder_of_logs_becomes_runs_and_a_summary(call: Call, logs: Path, tmp_path: Path) -> None:
    """The output has one line per run and the number of runs."""
    result = call("import", "auto", logs, "--store", "runs")

    assert (result.returncode, result.stderr) == (0, "")
    assert "2 runs: 2 new" in result.stdout.splitlines()
    assert [run.info.name for run in open_store(tmp_path / "runs")] == ["logs", "a"]  # Without a clock, it is first.


def test_imported_runs_are_verified_though_their_sources_tell_of_no_end(call: Call, logs: Path) -> None:
    """The imported log is complete; once a row is missing, verification fails."""
    assert call("import", "auto", logs, "--store", "runs").returncode == 0
    whole = call("verify", "--store", "runs")
    (events,) = open_store(logs.parent / "runs").run("a").folder.glob("events-*.parquet")
    table = pq.read_table(events)
    pq.write_table(table.slice(0, table.num_rows - 1), events)
    cut = call("verify", "--store", "runs")

    assert (whole.returncode, whole.stdout.count("identical")) == (0, 2)
    assert (cut.returncode, cut.stdout.count("identical"), cut.stdout.count("DAMAGED")) == (1, 1, 1)


def test_a_run_whose_source_has_no_clock_is_not_said_to_be_of_1970(call: Call, logs: Path) -> None:
    """The list and the run's page show no time; in JSON and SQL it is null."""
    call("import", "table", logs / "metrics.csv", "--store", "runs")

    listed, shown = call("runs").stdout, call("show", "logs", "--store", "runs").stdout
    row = json.loads(call("runs", "--json").stdout)
    queried = json.loads(call("query", "SELECT started, ended FROM runs", "--json").stdout)

    assert re.search(r"logs +- +completed +- ", listed)
    assert "\nCompleted after 1 step (assumed: its source does not say)" in shown
    assert "\nstart time unknown\n" in shown
    assert "1970" not in listed + shown
    assert (row["started"], queried) == (None, {"started": None, "ended": None})


@pytest.mark.parametrize(
    ("total", "said"),
    [
        ("", r"Completed after 2 steps \(assumed: its source does not say\)[.]"),
        ("/30", r"Interrupted at step 2 of 30 \(ends before its plan\)[.] Last checkpoint: none[.]"),
    ],
)
def test_a_run_s_page_says_what_its_source_does_not(call: Call, tmp_path: Path, total: str, said: str) -> None:
    """The status of a run is no invention."""
    (tmp_path / "x.log").write_text(f"step:1{total} loss:2.5\nstep:2{total} loss:2.25\n")
    call("import", "auto", "x.log", "--store", "runs")

    assert re.fullmatch(said, call("show", "x", "--store", "runs").stdout.splitlines()[1])


def test_importing_again_says_that_nothing_changed(call: Call, logs: Path) -> None:
    """With ``--json`` each run is one object."""
    call("import", "auto", logs, "--store", "runs")

    result = call("import", "auto", logs, "--store", "runs", "--json")

    assert [(doc["state"], doc["events"], doc["kind"]) for doc in documents(result)] == [
        ("unchanged", 0, "table"),
        ("unchanged", 0, "tensorboard"),
    ]


def test_what_cannot_be_read_is_named_and_the_rest_is_imported(call: Call, logs: Path) -> None:
    """The warning is on stderr, and the status is 1."""
    (logs / "trainer_state.json").write_text('{"log_history": [')

    result = call("import", "auto", logs, "missing", "--store", "runs")

    assert result.returncode == 1
    assert "warning: missing: no such file or folder" in result.stderr
    assert "logs: not JSON" in result.stderr.replace("/trainer_state.json", "")
    assert "2 runs: 2 new, 2 failed" in result.stdout.splitlines()


@pytest.mark.parametrize("arguments", ["import auto begun.csv --store runs", "backtest loss_spike --history begun.csv"])
def test_a_log_that_holds_no_row_is_told_of(call: Call, tmp_path: Path, arguments: str) -> None:
    """It does not become a run, and the command says so."""
    (tmp_path / "begun.csv").write_text("step,loss\n")

    result = call(*arguments.split())

    assert result.returncode != 0
    assert "begun.csv: the source holds no events" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_was_left_out_is_told_once_of_an_unchanged_source_too(call: Call, tmp_path: Path) -> None:
    """Importing again repeats the warnings of the first import; only the summary differs."""
    (tmp_path / "cut.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    first = call("import", "auto", "cut.jsonl", "--store", "runs")
    again = call("import", "auto", "cut.jsonl", "--store", "runs")

    assert again.stderr == first.stderr != ""
    assert again.returncode == first.returncode == 1
    assert "1 run: 1 unchanged, 1 read only in part" in again.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense", "."), "no reader for this kind; got 'nonsense'"),
        (("auto", ".", "--pattern", "x"), "give the kind 'text', not 'auto'"),
        (("text", "logs/metrics.csv", "--pattern", "("), "--pattern is not a valid regular expression"),
    ],
)
def test_a_wrong_command_line_is_told(call: Call, logs: Path, arguments: tuple[str, ...], said: str) -> None:
    """The error names the correction."""
    result = call("import", *arguments, "--store", "runs")

    assert logs.is_dir()
    assert result.returncode != 0
    assert said in result.stderr.replace("\n", " ").replace("│ ", "")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("notes.md",), "logs: no reader recognises notes.md. If you know the kind of a file, name it"),
        (("notes.md", "picture.png"), "logs: no reader recognises notes.md and 1 more. If you know the kind"),
        (
            (".a.csv",),
            "logs: its files are hidden, or in hidden folders; got '.a.csv'. Name a file itself to import it",
        ),
        ((), "logs: it holds no files"),
        (
            ("a.csv",),
            "logs/a.csv: no column holds the step; got 'tokens, loss'. Name the step column with --step COLUMN",
        ),
        (("a.csv", "b.csv"), "logs/a.csv: no column holds the step; 1 more file alike; got 'tokens, loss'. Name"),
        (("a.txt",), "logs/a.txt: no two lines hold a step and a value. Describe its lines: steptape import text"),
        (("a.jsonl",), "logs/a.jsonl: no column holds the step; got 'tokens, loss'. Name"),
    ],
)
def test_nothing_to_import_is_no_success_and_says_why(
    call: Call, tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    """The status is 1, with what the nearest reader misses in a file, or the files that no reader resembles."""
    (tmp_path / "logs").mkdir()
    for name in names:
        is_json = name.endswith(".jsonl")
        (tmp_path / "logs" / name).write_text('{"tokens": 1, "loss": 2}\n' if is_json else "tokens,loss\n1,2\n")

    result = call("import", "auto", "logs", "--store", "runs")

    assert result.returncode == 1
    assert result.stderr.startswith(f"warning: {said}")


def test_what_is_passed_over_beside_logs_is_told_with_what_it_lacks(call: Call, logs: Path) -> None:
    """It is no failure; with --json it is an object of its own."""
    (logs / "tokens.csv").write_text("tokens,loss\n1,0.5\n")

    result = call("import", "auto", logs, "--store", "runs")
    again = call("import", "auto", logs, "--store", "runs", "--json")

    said = f"{logs}/tokens.csv: no column holds the step; got 'tokens, loss'. Name the step column with --step COLUMN"
    assert (result.returncode, result.stderr) == (0, f"skipped: {said}\n")
    assert "2 runs: 2 new" in result.stdout.splitlines()
    assert next((doc["state"], doc["problem"]) for doc in documents(again)) == ("skipped", said)


def test_auto_hands_the_step_s_name_to_its_readers(call: Call, logs: Path, tmp_path: Path) -> None:
    """Files with a step of a known name are read by the named one, too."""
    (logs / "tokens.csv").write_text("tokens,loss\n1,0.5\n")
    (logs / "tokens.jsonl").write_text('{"tokens": 1, "loss": 0.5}\n')
    pq.write_table(pa.table({"tokens": [1], "loss": [0.5]}), logs / "tokens.parquet")
    (logs / "metrics.csv").unlink()

    result = call("import", "auto", *logs.glob("tokens.*"), "--step", "tokens", "--store", "runs")

    assert (result.returncode, result.stderr) == (0, "")
    runs = list(open_store(tmp_path / "runs"))
    assert sorted((run.info.source or {})["kind"] for run in runs) == ["jsonl", "parquet", "table"]
    assert [[(event.step, dict(event.metrics)) for event in run.events()] for run in runs] == [[(1, {"loss": 0.5})]] * 3


def test_runs_that_may_have_been_read_wrongly_are_told_by_name(call: Call, tmp_path: Path) -> None:
    """Runs with the same doubt share a line; a run that holds most of its training raises none."""
    for name in "abcd":
        (tmp_path / f"{name}.csv").write_text("step,val_loss\n1,0.5\n")
    (tmp_path / "back.csv").write_text("step,loss\n0,5\n50,4\n60,3\n70,2\n1,1\n")
    (tmp_path / "good.csv").write_text("step,loss\n0,5\n50,4\n40,3\n")

    result = call("import", "auto", *(tmp_path / f"{name}.csv" for name in ("a", "b", "c", "d")), "--store", "runs")
    more = call("import", "auto", tmp_path / "back.csv", tmp_path / "good.csv", "--store", "runs", "--json")

    said = "no value of the training in 4 runs, such as a, b, c: rules that on_step_end triggers never run there"
    assert (result.returncode, result.stderr) == (0, f"note: {said}\n")
    assert more.stderr.startswith(
        "note: most of the training was rolled back in run back (3 of 5 updates): their steps"
    )
    assert [(doc["updates"], doc["rolled_back"]) for doc in documents(more)] == [(5, 3), (3, 1)]


def test_an_import_ends_with_the_names_of_the_evaluation_losses(call: Call, tmp_path: Path) -> None:
    """Those that shipped rules read by another name come with the option that renames them."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, column in enumerate(["val_loss", "Val Loss", "val_loss", "eval_loss", "val/box_loss", "val_acc"]):
        (logs / f"{name}.csv").write_text(f"step,loss,{column}\n1,0.5,0.5\n")

    first = call("import", "auto", logs, "--store", "runs")
    again = call("import", "auto", logs, "--store", "runs")
    shipped = call("import", "auto", logs / "3.csv", "--store", "runs")

    ending = [
        "Evaluation losses: val_loss (2 runs), Val Loss (1), eval_loss (1), val/box_loss (1). "
        "Shipped rules read eval_loss.",
        "To judge these runs by them, add to 'steptape backtest': "
        "--rename val_loss=eval_loss --rename 'Val Loss=eval_loss'",
    ]
    assert first.stdout.splitlines()[-3:] == ["6 runs: 6 new", *ending]
    assert again.stdout.splitlines()[-3:] == ["6 runs: 6 unchanged", *ending]
    assert shipped.stdout.splitlines()[-1] == "1 run: 1 unchanged"


def test_the_only_evaluation_loss_of_all_runs_comes_with_a_rename_whatever_its_name(call: Call, tmp_path: Path) -> None:
    """Of several, none is preferred."""
    for name, column in enumerate(["validation/avg loss", "val_ce_loss"]):
        (tmp_path / f"{name}.csv").write_text(f"step,loss,{column}\n1,0.5,0.5\n")

    alone = call("import", "auto", tmp_path / "0.csv", "--store", "alone")
    both = call("import", "auto", tmp_path / "0.csv", tmp_path / "1.csv", "--store", "both")

    assert alone.stdout.splitlines()[-1].endswith("backtest': --rename 'validation/avg loss=eval_loss'")
    assert both.stdout.splitlines()[-1].endswith("Shipped rules read eval_loss.")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"loss": [1, 2], "val_loss": [3, 4]}\n', "(name one with --step KEY). Nothing was imported"),
        ('{"step": 1, "loss": 2}\n{"loss": 2}\n', ". Everything else was imported"),
    ],
)
def test_everything_else_was_imported_only_if_something_was(
    call: Call, tmp_path: Path, content: str, said: str
) -> None:
    """A file whose one row is no step is left out as a whole."""
    (tmp_path / "history.jsonl").write_text(content)

    result = call("import", "jsonl", "history.jsonl", "--store", "runs")

    assert result.returncode == 1
    assert result.stderr.endswith(f"{said}\n")


def test_follow_keeps_up_with_a_log_that_grows(tmp_path: Path, logs: Path) -> None:
    """It runs until Ctrl-C."""
    command = [*COMMAND, "import", "auto", str(logs), "--store", str(tmp_path / "runs"), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        with open(logs / "metrics.csv", "a") as file:
            file.write("2,0.4\n3,0.")
        grown = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)

    assert process.returncode == 0
    assert [doc["state"] for doc in first] == ["new", "new"]
    assert (grown["state"], grown["events"], grown["steps"]) == ("grown", 1, 2)


READER = """
from steptape.importers.source import Fact, ImportedRun, SingleFile

class MyReader(SingleFile):
    kind = "mine"
    title = "files of mine"

    def recognises(self, path, head):
        return head.startswith(b"MINE")

    def read(self, files, options):
        numbers = files[0].read_text().split()[1:]
        yield ImportedRun(Fact("step_end", step, {"loss": float(text)}) for step, text in enumerate(numbers, start=1))
"""


def install_reader(package: Path, name: str, code: str) -> None:
    """Install a package whose class ``MyReader`` is a reader."""
    (package / f"{name}-1.dist-info").mkdir(parents=True)
    (package / f"{name}.py").write_text(code)
    (package / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (package / f"{name}-1.dist-info" / "entry_points.txt").write_text(
        f"[steptape.importers]\n{name} = {name}:MyReader\n"
    )


def test_a_reader_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """Both its kind and ``auto`` find it."""
    package = tmp_path / "site"
    install_reader(package, "mine", READER)
    (tmp_path / "x.log").write_text("MINE 0.5 0.25")

    results = [
        subprocess.run(
            [*COMMAND, "import", kind, "x.log", "--store", "runs", "--json"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package)},
        )
        for kind in ("auto", "mine")
    ]

    assert [(doc["kind"], doc["state"], doc["steps"]) for result in results for doc in documents(result)] == [
        ("mine", "new", 2),
        ("mine", "unchanged", 2),
    ]


def test_readers_that_cannot_be_had_are_told_of_and_stop_nothing(tmp_path: Path) -> None:
    """One reader fails to load, another claims an existing kind. Requested by name, the first is an error."""
    package = tmp_path / "site"
    install_reader(package, "broken", "raise RuntimeError('no such database driver')")
    install_reader(package, "second", READER.replace('"mine"', '"table"'))
    (tmp_path / "x.csv").write_text("step,loss\n1,0.5\n2,0.25\n")

    auto, broken, table = (
        subprocess.run(
            [*COMMAND, "import", kind, "x.csv", "--store", f"runs-{kind}", "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package)},
        )
        for kind in ("auto", "broken", "table")
    )

    assert (auto.returncode, table.returncode, broken.returncode) == (0, 0, 2)
    assert [(doc["kind"], doc["steps"]) for doc in [*documents(auto), *documents(table)]] == [("table", 2)] * 2
    assert "no such database driver" in auto.stderr
    assert "no such database driver" in broken.stderr
    assert "steptape.importers: second: another reader already reads this kind" in auto.stderr
    assert table.stderr == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_named_file_that_may_not_be_read_is_told_of_and_stops_nothing(call: Call, logs: Path) -> None:
    """A file in a folder is treated alike."""
    (logs / "closed.csv").touch(mode=0o000)

    result = call("import", "auto", logs / "closed.csv", logs / "metrics.csv", "--store", "runs")

    assert result.returncode == 1
    assert "1 run: 1 new, 1 failed" in result.stdout.splitlines()
    assert result.stderr.startswith(f"warning: {logs / 'closed.csv'}: cannot be read (Permission denied)")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("leaves", "raise SystemExit('no licence')", "no licence"),
        ("hollow", "class MyReader: kind = title = 'hollow'", "it lacks methods or attributes of a reader"),
        ("hy-phen", READER, "hy-phen"),
    ],
)
def test_whatever_is_no_reader_is_told_of_and_stops_nothing(tmp_path: Path, name: str, code: str, said: str) -> None:
    """The cases: a package that exits Python at import, an incomplete reader, a module with an impossible name."""
    package = tmp_path / "site"
    install_reader(package, name, code)
    (tmp_path / "x.csv").write_text("step,loss\n1,0.5\n")

    result = subprocess.run(
        [*COMMAND, "import", "auto", "x.csv", "--store", "runs", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package)},
    )

    assert (result.returncode, [doc["kind"] for doc in documents(result)]) == (0, ["table"])
    assert result.stderr.startswith(f"warning: steptape.importers: {name}: this reader cannot be loaded")
    assert said in result.stderr


def test_a_reader_that_fails_while_it_reads_is_told_of_and_stops_nothing(tmp_path: Path) -> None:
    """The error has a type that ends the import if the store raises it."""
    package = tmp_path / "site"
    install_reader(package, "mine", READER.replace("numbers =", "raise OSError('no such database')\n        numbers ="))
    (tmp_path / "a.log").write_text("MINE 0.5 0.25")
    (tmp_path / "b.csv").write_text("step,loss\n1,0.5\n")

    result = subprocess.run(
        [*COMMAND, "import", "auto", "a.log", "b.csv", "--store", "runs"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package)},
    )

    assert (result.returncode, result.stdout.splitlines()[-2]) == (1, "1 run: 1 new, 1 failed")
    assert result.stderr.startswith("warning: a.log: the reader 'mine' failed (OSError('no such database') in mine.py:")


def test_history_is_imported_into_the_cache_and_backtested_at_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command suffices for a folder of event files; a second run finds the logs unchanged."""
    values = [*(1.0 / step for step in range(1, 60)), *([9.0] * 20)]
    write_events(tmp_path / "logs" / "a" / NAME, losses(values))
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))

    result = call("backtest", "loss_spike", "--history", "logs", "--json")

    (run,) = json.loads(result.stdout)["runs"]
    assert run["stop"]["step"] == 64
    assert len(list((tmp_path / "cache").glob("history*/*"))) == 1


def test_history_that_another_format_cached_is_imported_anew(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of steptape needs no look into the cache."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.csv").write_text("step,loss,val_loss\n1,1,1\n2,2,1\n")
    call("backtest", "loss_spike", "--history", "a.csv", "--json")
    (info,) = (tmp_path / "cache").glob("history*/*/run.json")
    info.write_text(info.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT - 1}'))
    store = info.parents[1]
    store.rename(store.with_name(store.name.replace(str(FORMAT), str(FORMAT - 1))))

    result = call("backtest", "loss_spike", "--history", "a.csv", "--json")

    assert [run["recorded"]["steps"] for run in json.loads(result.stdout)["runs"]] == [2]


def test_a_rewritten_log_of_history_is_imported_again_into_the_cache_with_a_word(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training again into the same folder replaces the log: the newest one counts, and other logs are untouched."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))

    def judged(*names: str) -> tuple[list[int], str]:
        for name, values in zip(("a.csv", "b.csv"), names, strict=True):
            rows = "".join(f"{step},{value},1\n" for step, value in enumerate(values, start=1))
            (tmp_path / name).write_text(f"step,loss,val_loss\n{rows}")
        result = call("backtest", "loss_spike", "--history", "a.csv", "--history", "b.csv", "--json")
        return [run["recorded"]["steps"] for run in json.loads(result.stdout)["runs"]], result.stderr

    word = "a.csv: the log no longer holds what was imported from it; it is imported again"
    assert judged("123", "45678") == ([3, 5], "")
    assert judged("4321", "45678") == ([4, 5], f"warning: {word}\n")
    assert judged("4321", "45678") == ([4, 5], "")
    assert len(list((tmp_path / "cache").glob("history*/*"))) == 2


def test_metrics_of_history_are_renamed_as_policies_name_them(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other renames leave no trace of the first names."""
    (tmp_path / "a.csv").write_text("step,train,val\n" + "".join(f"{s},{1 / s},{1 / s}\n" for s in range(1, 41)))
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))

    def objective(*renames: str) -> str | None:
        result = call("backtest", "loss_spike", "--history", "a.csv", "--json", *renames)
        found: dict[str, str] = json.loads(result.stdout)["objective"] or {}
        return found.get("metric")

    assert objective() is None
    assert objective("--rename", "val=eval_loss", "--rename", "train=loss") == "eval_loss"
    assert objective("--rename", "val=eval_accuracy") == "eval_accuracy"


def test_a_rename_of_a_metric_that_no_log_of_history_has_is_refused(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be renamed, and no rule would fire for want of the metric."""
    (tmp_path / "a.csv").write_text("step,loss,val_loss\n" + "".join(f"{step},1,1\n" for step in range(1, 9)))
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))

    result = call("backtest", "overfitting", "--history", "a.csv", "--rename", "vall_loss=eval_loss")

    assert result.returncode == 2
    assert "no run recorded the metric to rename; got 'vall_loss=eval_loss'. Did you mean 'val_loss'" in result.stderr


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("mlp-lr0.003-s0.csv", "mlp-lr0.003-s0"),
        ("gpt.v2.lr0.003-s1.txt", "gpt.v2.lr0.003-s1"),
        ("a.b.TSV", "a.b"),
        ("deep/v1.5/lr1.5e-3.csv", "deep/v1.5/lr1.5e-3"),
        ("v1.5/metrics.csv", "v1.5"),
    ],
)
def test_a_run_has_the_whole_name_of_its_file_without_the_known_suffixes(
    call: Call, tmp_path: Path, file: str, name: str
) -> None:
    """Rates and versions hold dots: what is cut is the suffix that says what the file holds."""
    path = tmp_path / "logs" / file
    path.parent.mkdir(parents=True)
    path.write_text("step\tloss\n1\t0.5\n")
    outcomes = documents(call("import", "table", tmp_path / "logs", "--json"))

    assert [outcome["name"] for outcome in outcomes] == [name]


def test_runs_of_one_table_have_the_whole_name_of_their_file(call: Call, tmp_path: Path) -> None:
    """The table's name leads the name of each of its runs."""
    (tmp_path / "lr0.1.v2.csv").write_text("seed,step,loss\n0,1,0.5\n1,1,0.25\n")

    outcomes = documents(call("import", "auto", tmp_path / "lr0.1.v2.csv", "--json"))

    assert [outcome["name"] for outcome in outcomes] == ["lr0.1.v2/seed=0", "lr0.1.v2/seed=1"]


def test_an_imported_run_leads_back_to_its_log(call: Call, tmp_path: Path) -> None:
    """The page and its JSON, and SQL have the path; a recorded run has none."""
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,0.5\n")
    call("import", "auto", path, "--store", "runs")
    shown, as_json = call("show", "a", "--store", "runs"), call("show", "a", "--store", "runs", "--json")

    assert f"imported from {path}" in shown.stdout.splitlines()
    assert json.loads(as_json.stdout)["source"] == str(path)
    assert open_store(tmp_path / "runs").rows("SELECT source FROM runs") == [{"source": str(path)}]


def test_a_report_names_runs_of_one_name_by_their_logs(call: Call, tmp_path: Path) -> None:
    """Two folders are imported each by itself: their runs have one name, and the table shows the paths."""
    for seed in ("seed0", "seed1"):
        (tmp_path / seed).mkdir()
        rows = "".join(f"{step},{3 / step},1\n" for step in range(1, 9))
        (tmp_path / seed / "a.csv").write_text(f"step,eval_loss,loss\n{rows}")
        call("import", "auto", tmp_path / seed, "--store", "runs")
    (tmp_path / "p.yaml").write_text(
        "controllers:\n"
        "  - {name: s, triggers: [on_step_end], rule: loss > 0, operations: [hfcontrols.should_training_stop]}\n"
    )
    result = call("backtest", "p.yaml", "--store", "runs", "--html", "r.html")
    page = (tmp_path / "r.html").read_text()

    assert "seed0/a.csv" in result.stdout
    assert "seed1/a.csv" in result.stdout
    assert "import-" not in result.stdout
    assert f'title="{tmp_path}/seed0/a.csv"' in page
    assert '<span class="faint">seed0/a.csv</span>' in page


@pytest.mark.parametrize("is_table", [True, False])
def test_a_clock_that_is_set_back_is_told(is_table: bool, call: Call, tmp_path: Path) -> None:
    """A table is read by columns, a text by lines; also where a backtest reads them."""
    times = [f"2026-11-03 10:{minute:02}:00" for minute in (0, 5, 10, 2, 15, 20)]
    rows = [(step, 1 / step, time) for step, time in enumerate(times, start=1)]
    log = tmp_path / ("log.csv" if is_table else "log.txt")
    if is_table:
        log.write_text("step,loss,timestamp\n" + "".join(f"{step},{loss},{time}\n" for step, loss, time in rows))
    else:
        log.write_text("".join(f"{time} step {step} loss {loss}\n" for step, loss, time in rows))

    imported = call("import", "auto", log, "--store", "runs")
    judged = call("backtest", "overfitting", "--history", log)

    note = f"note: the clock is behind in 1 line of run {tmp_path.name}: hours there mean little"
    assert note in imported.stderr
    assert note in judged.stderr
