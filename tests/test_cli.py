"""Commands print text or JSON, set their exit status, and refuse wrong input without a stack trace."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call

from steptape import Recorder, open_store
from steptape.cli.app import EXAMPLES, GROUPS
from steptape.store.journal.writer import JournalWriter
from steptape.store.run import Run


def steptape(*arguments: object, status: int = 0, given: str | None = None) -> str:
    """Run the command, check its exit status and return its stdout."""
    result = call(*arguments, given=given or "")
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def call_apart(
    *arguments: object, given: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process."""
    command = [sys.executable, "-m", "steptape", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=given, env=environment)


def lines(text: str) -> list[Any]:
    """Parse JSON lines strictly."""

    def refuse(token: str) -> None:
        raise AssertionError(f"bare token {token}")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture(scope="module")
def live(demo_store: Path) -> Run:
    """The demo's run under the Fig. 4 policy."""
    return open_store(demo_store).run("clusters under trac_fig4")


@pytest.mark.only_one
def test_the_demo_shows_that_live_runs_went_as_the_backtest_said(demo_output: tuple[Path, str]) -> None:
    """Stop steps, checkpoints and decisions in the store agree with the backtest; planted samples are found."""
    store, printed = demo_output
    rows = {row["name"]: row for row in lines(steptape("runs", "--store", store, "--json"))}

    for policy in ("trac_fig4", "overfitting"):
        (report,) = lines(steptape("backtest", policy, "clusters uncontrolled", "--store", store, "--json"))
        predicted = report["runs"][0]["predicted"]["steps"]
        assert rows[f"clusters under {policy}"]["steps"] == predicted
        assert rows[f"clusters under {policy}"]["status"] == "stopped"
        assert f"{policy} " in printed
    assert "11 of the 12 mislabelled samples" in printed


def test_the_demo_in_torch_goes_as_its_backtest_said(tmp_path: Path) -> None:
    """This is what ``make demo`` runs; its exit status says whether predictions and replays agree."""
    result = call_apart("demo", "--store", tmp_path / "runs", "--torch")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 of the 12 mislabelled samples" in result.stdout


def test_show_prints_one_run_on_a_page(demo_store: Path, live: Run) -> None:
    """The run is given by path, id or name; JSON works too."""
    by_path = steptape("show", live.folder)

    assert by_path == steptape("show", live.run_id, "--store", demo_store)
    assert by_path == steptape("show", "clusters under trac_fig4", "--store", demo_store)
    assert "save_when_eval_drop_15" in by_path
    (document,) = lines(steptape("show", live.folder, "--json"))
    assert document["status"] == "stopped"
    assert {metric["metric"] for metric in document["metrics"]} == {"loss", "grad_norm", "eval_loss", "eval_accuracy"}


def test_show_names_a_shipped_rule_file_and_the_path_of_another(tmp_path: Path) -> None:
    """The path of an installation says nothing to a reader."""
    own = tmp_path / "rules" / "policies" / "own.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("controllers: [{name: a, triggers: [on_step_end], rule: loss > 1, operations: []}]")
    shown = []
    for rules in ("loss_spike", own):
        with Recorder(tmp_path / "runs", rules=rules) as rec:
            rec.step(loss=1.0)
        shown += [line for line in steptape("show", rec.folder).splitlines() if line.startswith("rules: ")]

    assert [line.partition(" (digest")[0] for line in shown] == ["rules: loss_spike", f"rules: {own}"]


def test_show_has_the_orders_of_rules_and_what_the_loop_answered(tmp_path: Path) -> None:
    """A receipt says whether an operation was applied. A decision shows its first values; JSON has all."""
    (tmp_path / "cut.yaml").write_text(
        "define: {a: loss, b: loss + 1, c: loss + 2, d: loss + 3, e: loss + 4, f: loss + 5, g: loss + 6}\n"
        "controllers: [{name: cut, triggers: [on_step_end], rule: a + b + c + d + e + f + g > 50,"
        " operations: [lr.reduce(0.5), epochs.set(2)]}]\n"
    )
    with Recorder(tmp_path / "runs", rules=tmp_path / "cut.yaml") as rec:
        rate = rec.learning_rate()
        for loss in (1.0, 9.0):
            rate(0.1)
            rec.step(loss=loss)

    page = steptape("show", rec.folder)
    assert " and 2 more" in page
    assert "lr.reduce(0.5)  applied" in page
    assert "epochs.set(2)   refused  the loop has no handler for it" in page
    (document,) = lines(steptape("show", rec.folder, "--json"))
    assert len(document["decisions"][0]["values"]) == 8
    assert [receipt["answer"] for receipt in document["receipts"]] == ["applied", "refused"]


def test_show_tells_a_pause_between_attempts_from_training(tmp_path: Path) -> None:
    """A job that waits in a queue after a crash does not train."""
    with Recorder(tmp_path / "runs", name="requeued") as rec:
        rec.step(loss=1.0)
    with Recorder(tmp_path / "runs", resume=(rec.run_id, 1)) as resumed:
        resumed.step(loss=1.0)
        resumed.close(seal=True)
    path = rec.folder / "run.json"
    document = json.loads(path.read_text())
    start_ns = 1_700_000_000 * 10**9
    for attempt, (begin_s, end_s) in zip(document["attempts"], ((0, 6), (172, 176)), strict=True):
        attempt |= {"started_ns": start_ns + begin_s * 10**9, "ended_ns": start_ns + end_s * 10**9}
    path.write_text(json.dumps(document))

    page = steptape("show", rec.folder)

    assert "\nstarted 2023-11-14 22:13:20 UTC, took 10 s, paused 2 min 46 s between attempts\n" in page


def test_show_lists_the_phases_of_a_run(tmp_path: Path) -> None:
    """The longest comes first; those that an exception ended are counted."""
    with Recorder(tmp_path) as rec:
        for step in range(3):
            with rec.span("eval"):
                rec.step(loss=1.0)
            with contextlib.suppress(OSError), rec.span("checkpoint"):
                if step == 2:
                    raise OSError

    (document,) = lines(steptape("show", rec.folder, "--json"))
    spans = {span["name"]: span for span in document["spans"]}
    assert {name: (span["count"], span["failed"]) for name, span in spans.items()} == {
        "eval": (3, 0),
        "checkpoint": (3, 1),
    }
    assert spans["eval"]["total_s"] > 0
    page = steptape("show", rec.folder)
    assert "span eval: 3 times, " in page
    assert [line for line in page.splitlines() if line.endswith(", 1 failed")]


def test_query_joins_steps_with_decisions(demo_store: Path) -> None:
    """Each row is an object on its own line."""
    sql = """
        SELECT s.step, s.loss, d.controller FROM steps s
        JOIN decisions d ON (s.run_id, s.attempt, s.seq) = (d.run_id, d.attempt, d.event_seq) ORDER BY s.step
    """
    rows = lines(steptape("query", sql, "--store", demo_store, "--json"))

    assert rows
    assert {"step", "loss", "controller"} == set(rows[0])


def test_query_reaches_a_metric_that_was_logged_after_600_others(tmp_path: Path) -> None:
    """No view shows it, unless the statement names it; help lists every view and macro."""
    with Recorder(tmp_path / "runs", name="wide") as rec:
        rec.step({**{f"w/{index}": 0.0 for index in range(600)}, "loss": 2.0})

    assert lines(steptape("query", "SELECT avg(loss) AS loss FROM steps", rec.folder, "--json")) == [{"loss": 2.0}]
    assert "spiking_samples(step)" in steptape("query", "--help")


def test_query_prints_a_table_that_is_never_cut(demo_store: Path) -> None:
    """Names are complete, in a pipe too."""
    printed = steptape("query", "SELECT 'x' AS a, repeat('y', 300) AS b", "--store", demo_store)

    assert "y" * 300 in printed


def test_query_prints_values_of_any_type(demo_store: Path) -> None:
    """The table and the JSON lines hold the text of what has no counterpart."""
    sql = "SELECT *, 'infinity'::DATE AS never, TIME_NS '12:00:00.123456789' AS fine FROM test_all_types()"

    table = steptape("query", sql, "--store", demo_store).splitlines()
    rows = lines(steptape("query", sql, "--store", demo_store, "--json"))

    assert len(table) == 4
    assert (rows[0]["never"], rows[0]["fine"], rows[0]["interval"]) == ("infinity", "12:00:00.123456789", "00:00:00")


@pytest.mark.parametrize(
    "sql",
    [
        "CONNECT 'x'",
        "PIVOT steps ON step USING max(loss)",
        "DROP VIEW runs",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM runs",
        "COPY runs TO 'x'",
    ],
)
def test_sql_that_is_not_one_readable_statement_is_refused(demo_store: Path, sql: str) -> None:
    """The exit status is 2 and the reason is on stderr."""
    result = call("query", sql, "--store", demo_store)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_verify_passes_every_run_of_the_demo(demo_store: Path) -> None:
    """The exit status is 0."""
    verdicts = lines(steptape("verify", "--store", demo_store, "--json"))

    assert [verdict["identical"] for verdict in verdicts] == [True] * 3


def test_verify_shows_the_first_difference_of_a_tampered_copy(live: Run, tmp_path: Path) -> None:
    """One recorded decision names another controller: the exit status is 1, and both sides are shown."""
    copy = tmp_path / "copy"
    shutil.copytree(live.folder, copy)
    (path,) = copy.glob("events-*.parquet")
    table = pq.read_table(path)
    attrs = table["attrs"].to_pylist()
    row = table["kind"].to_pylist().index("decision")
    attrs[row] = attrs[row].replace("save_when_eval_drop_15", "somebody_else")
    pq.write_table(table.set_column(table.column_names.index("attrs"), "attrs", pa.array(attrs)), path)

    printed = steptape("verify", copy, status=1)

    assert "DIFFERS" in printed
    assert "somebody_else" in printed
    assert "save_when_eval_drop_15" in printed


def test_verify_cannot_open_what_is_no_run(tmp_path: Path) -> None:
    """The exit status is 2."""
    result = call("verify", tmp_path)

    assert result.returncode == 2
    assert "holds no run" in result.stderr


def test_backtest_prints_the_table_and_what_it_assumes_of_the_objective(demo_store: Path) -> None:
    """The table lists run by run, then the sum in sentences."""
    printed = steptape("backtest", "trac_fig4", "--store", demo_store)

    assert "clusters u" in printed
    assert "Runs are judged by eval_loss, lower is better (guessed; change with --objective)." in printed
    assert "prefix-exact" in printed


def test_seal_turns_the_journal_of_a_dead_run_into_parquet(tmp_path: Path) -> None:
    """The events are the same before and after; a second seal has nothing to do."""
    loop = f"""
import os
from steptape import Recorder
rec = Recorder({str(tmp_path)!r})
rec.step(loss=1.0)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", loop], check=False)
    (run,) = list(open_store(tmp_path))
    before = steptape("export", run.folder)

    first = steptape("seal", run.folder)
    second = steptape("seal", "--store", tmp_path)

    assert (first, second) == (f"{run.run_id}: 2 events sealed\n", "1 run is sealed already\n")
    assert steptape("export", run.folder) == before
    assert not list(run.folder.glob("journal-*"))


def test_seal_leaves_another_machine_s_journal_alone_unless_told(store_folder: Callable[..., Path]) -> None:
    """This machine cannot see whether the writer is alive."""
    folder = store_folder(status="running")
    journal = JournalWriter(folder, run_id="run-1", writer={"host": "elsewhere", "boot_id": "another", "pid": 1})
    journal.append("step_end", ("loss",), (1.0,), step=1, time_ns=0, elapsed_ns=0)
    journal.close()

    first = call("seal", folder)
    left, told = first.stdout, first.stderr
    sealed = steptape("seal", folder, "--other-hosts")

    assert (left, sealed) == ("run-1: 0 events sealed\n", "run-1: 1 event sealed\n")
    assert "another machine wrote it" in told
    assert "--other-hosts" in told


def test_params_of_a_policy_can_be_set(demo_store: Path) -> None:
    """A tighter tolerance stops earlier; an unknown param is an error."""
    run = "clusters uncontrolled"
    (loose,) = lines(steptape("backtest", "overfitting", run, "--store", demo_store, "--json"))
    (tight,) = lines(
        steptape("backtest", "overfitting", run, "--store", demo_store, "--set", "tolerance=1.0001", "--json")
    )

    assert tight["runs"][0]["stop"]["step"] < loose["runs"][0]["stop"]["step"]
    assert tight["policy"]["digest"] != loose["policy"]["digest"]
    assert call("backtest", "overfitting", run, "--store", demo_store, "--set", "tolerence=2").returncode == 2


def test_exported_events_replay_to_the_same_decisions(live: Run, tmp_path: Path) -> None:
    """The source may be the run, a file or a pipe. A line with the plan comes first."""
    exported = steptape("export", live.folder, "--format", "jsonl")
    path = tmp_path / "events.jsonl"
    steptape("export", live.folder, "--output", path)
    policy = live.info.last.policy
    assert policy is not None

    assert path.read_text() == exported
    assert len(lines(exported)) == 1 + len(list(live.events()))
    from_run = steptape("replay", policy.source, live.folder, "--json")
    assert lines(from_run)
    assert from_run == steptape("replay", policy.source, path, "--json")
    assert from_run == steptape("replay", policy.source, "-", "--json", given=exported)


def test_replay_reads_a_bare_stream_of_events(tmp_path: Path) -> None:
    """Every key except ``event`` is optional; a bare NaN is accepted; non-finite values are printed as text."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("""
controllers:
  - {name: bad, triggers: [on_log], rule: not isfinite(loss), operations: [hfcontrols.should_training_stop]}
  - {name: broken, triggers: [on_log], rule: 1 / (loss - 1) > 0, operations: [hfcontrols.should_save]}
""")
    stream = '{"event": "log", "metrics": {"loss": 1}}\n{"event": "log", "step": 3, "metrics": {"loss": NaN}}\n'

    error, decision = lines(steptape("replay", policy, "-", "--json", given=stream))

    assert (error["event_index"], error["controller"]) == (0, "broken")
    assert "ZeroDivisionError" in error["error"]
    assert decision == {
        "event_index": 1,
        "event": "log",
        "step": 3,
        "controller": "bad",
        "operations": ["hfcontrols.should_training_stop"],
        "values": {"isfinite(loss)": False, "loss": "NaN"},
        "validity": "prefix-exact",
    }
    assert math.isnan(float(decision["values"]["loss"]))


def test_a_broken_line_of_a_stream_is_named(tmp_path: Path) -> None:
    """The error holds file, line and reason."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "log"}\n{"event": "lgo"}\n')

    result = call("replay", "trac_fig4", path)

    assert result.returncode == 2
    assert f"{path}:2: unknown kind of event; got 'lgo'. Did you mean 'log'?" in result.stderr


def test_check_reports_all_errors_of_a_file_with_their_places(tmp_path: Path) -> None:
    """The exit status is 1, with one ``path:line:column: message`` per line; a shipped policy is fine."""
    path = tmp_path / "policy.yaml"
    path.write_text("""controllers:
  - name: a
    triggers: [on_step_ned]
    rule: men(loss, 3) > 1
    operations: [hfcontrols.should_stop]
""")

    printed = steptape("check", path, "overfitting", status=1)

    assert f"{path}:3:16: " in printed
    assert f"{path}:4:11: " in printed
    assert f"{path}:5:18: " in printed
    assert "overfitting.yaml: fine" in printed


def test_check_of_a_file_that_is_not_there_is_exit_status_2(tmp_path: Path) -> None:
    """The other files do not matter."""
    result = call("check", tmp_path / "nowhere.yaml", "overfitting")

    assert result.returncode == 2
    assert "nowhere.yaml: no such file" in result.stderr
    assert "overfitting.yaml: fine" in result.stdout


@pytest.mark.parametrize("command", ["replay", "backtest"])
def test_a_policy_that_does_not_load_is_exit_status_2(command: str, live: Run, tmp_path: Path) -> None:
    """The error is on stderr, and stdout is empty."""
    path = tmp_path / "policy.yaml"
    path.write_text("controllers: [\n")

    result = call(command, path, live.folder, "--json")

    assert (result.returncode, result.stdout) == (2, "")
    assert f"{path}:" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "--store", "/nowhere/at/all"),
        ("show", "/nowhere/at/all"),
        ("query", "SELECT 1", "--store", "/nowhere/at/all"),
        ("show", "../../etc", "--store", "."),
        ("replay", "no-such-policy.yaml", "x"),
    ],
)
def test_what_cannot_be_opened_is_exit_status_2_without_a_trace(arguments: tuple[str, ...]) -> None:
    """One sentence is on stderr, and stdout is empty."""
    result = call(*arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_folder_that_is_no_run_does_not_hide_the_others(demo_store: Path, tmp_path: Path) -> None:
    """A broken run is named on stderr; the rest is listed."""
    store = tmp_path / "runs"
    shutil.copytree(demo_store, store)
    (store / "notes").mkdir()
    (store / "broken").mkdir()
    (store / "broken" / "run.json").write_text("{")

    result = call("runs", "--store", store, "--json")

    assert len(lines(result.stdout)) == 3
    assert "broken" in result.stderr


def test_verify_of_a_whole_store_says_when_a_run_cannot_be_opened(demo_store: Path, tmp_path: Path) -> None:
    """The exit status is 2, whatever the other runs give."""
    store = tmp_path / "runs"
    shutil.copytree(demo_store, store)
    (store / "broken").mkdir()
    (store / "broken" / "run.json").write_text("{")

    result = call("verify", "--store", store)

    assert (result.returncode, result.stdout.count("identical")) == (2, 3)
    assert "broken" in result.stderr


def test_a_stream_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors write one."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"event": "step_end", "metrics": {"loss": NaN}}\n')

    assert len(lines(steptape("replay", "overfitting", path, "--json"))) == 1


def test_a_stream_is_read_as_utf_8_in_any_locale(tmp_path: Path) -> None:
    """JSON is UTF-8; other bytes are reported."""
    policy = tmp_path / "policy.yaml"
    controller = "{name: high, triggers: [on_log], rule: series('größe') > 0, operations: [hfcontrols.should_log]}"
    policy.write_text(f"controllers: [{controller}]", encoding="utf-8")
    stream = '{"event": "log", "metrics": {"größe": 1}}\n'.encode()
    command = [sys.executable, "-m", "steptape", "replay", str(policy), "-", "--json"]
    no_locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    read = subprocess.run(command, input=stream, capture_output=True, env=no_locale, check=False)
    broken = subprocess.run(command, input=b"\xe4" + stream, capture_output=True, check=False)

    assert (read.returncode, read.stderr) == (0, b"")
    assert json.loads(read.stdout)["controller"] == "high"
    assert broken.returncode == 2
    assert broken.stderr.startswith(b"error: <stdin>: cannot be read (")


def test_names_that_hold_control_characters_do_not_break_a_table(tmp_path: Path) -> None:
    """They are escaped."""
    with Recorder(tmp_path, name="two\nlines") as rec:
        rec.step({"a\nb": 1.0})

    assert "two\\nlines" in steptape("runs", "--store", tmp_path)
    assert "a\\nb" in steptape("show", rec.folder)


def test_what_a_terminal_cannot_show_is_written_as_an_escape(tmp_path: Path) -> None:
    """In a locale other than UTF-8 text and JSON are escaped; in text an arrow becomes two characters."""
    with Recorder(tmp_path, name="größer → 😀") as rec:
        rec.annotate("größer → 😀")
        for step in range(3):
            rec.step(loss=1.0 - step)
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}

    shown = call_apart("runs", "--store", tmp_path, environment=ascii_only)
    told = call_apart("runs", "--store", tmp_path, "--json", environment=ascii_only)
    exported = call_apart("export", rec.folder, environment=ascii_only)
    sheet = call_apart("show", rec.folder, "--plot", "loss", environment=ascii_only)

    assert r"gr\u00f6\u00dfer -> \ud83d\ude00  -" in shown.stdout
    assert [row["name"] for row in lines(told.stdout)] == ["größer → 😀"]
    assert "größer → 😀" in [event["attrs"].get("text") for event in lines(exported.stdout)]
    assert "\n         1 |'" in sheet.stdout
    assert [done.stderr for done in (shown, told, exported, sheet)] == ["", "", "", ""]


def test_a_path_that_is_not_utf_8_is_refused_without_a_trace(tmp_path: Path) -> None:
    """Files of a run below such a path cannot be opened."""
    rec = Recorder(tmp_path / "runs")
    rec.step(loss=1.0)
    rec.close(seal=True)
    folder = (tmp_path / "runs").rename(os.fsdecode(os.fsencode(tmp_path) + b"/runs-\xe9"))

    done = call("backtest", "loss_spike", "--store", folder)

    assert done.returncode == 2
    assert "not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed() -> None:
    """Bug reports need it."""
    assert steptape("--version").startswith("steptape ")


def test_every_command_explains_itself() -> None:
    """``--help`` works for every command, and the overview lists all commands."""
    overview = steptape("--help")
    commands = [
        "demo",
        "runs",
        "show",
        "replay",
        "backtest",
        "verify",
        "check",
        "test",
        "query",
        "export",
        "seal",
        "delete",
        "serve",
    ]

    assert all(command in overview for command in commands)
    assert all(steptape(command, "--help") for command in commands[:3])


def test_delete_refuses_where_it_cannot_ask(demo_store: Path, tmp_path: Path) -> None:
    """``--keep-last`` deletes by count, and a name or id its run, both with ``--yes``; no selection is an error."""
    store = tmp_path / "runs"
    shutil.copytree(demo_store, store)

    refused = call("delete", "--store", store, "--keep-last", "1")
    before = len(list(open_store(store)))
    deleted = steptape("delete", "--store", store, "--keep-last", "1", "--yes")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.fullmatch(
        r"error: there is no terminal to ask whether to delete 2 runs \(.*\)\. Repeat the command with --yes .*\n",
        refused.stderr,
    )
    assert (before, deleted.count("deleted "), len(list(open_store(store)))) == (3, 2, 1)
    assert call("delete", "--store", store).returncode == 2
    assert call("delete", "--store", store, "--older-than", "soon").returncode == 2
    assert "deleted" in steptape("delete", "clusters under overfitting", "--store", store, "--yes")


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
def test_delete_asks_at_a_terminal(tmp_path: Path, answer: str, left: int) -> None:
    """It lists the runs first. Only a yes deletes them."""
    with Recorder(tmp_path / "runs", name="one") as rec:
        rec.step(loss=1.0)
    ours, its = os.openpty()
    command = [sys.executable, "-m", "steptape", "delete", "one", "--store", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(ours, answer.encode())
    _, told = process.communicate()
    os.close(ours)
    os.close(its)

    assert told.startswith(f"{rec.folder}\nDelete 1 run with all its files? [y/N]:")
    assert len(list(open_store(tmp_path / "runs"))) == left


def test_show_plots_what_is_looked_at_first_or_what_is_named(demo_store: Path) -> None:
    """The plot is made of dots; a metric that no event carries is an error."""
    run = ("clusters uncontrolled", "--store", demo_store)

    assert "loss (step_end) over steps" in steptape("show", *run)
    named = steptape("show", *run, "--plot", "eval_loss", "--plot", "grad_norm")
    assert "eval_loss (evaluate) over steps" in named
    assert "grad_norm (step_end) over steps" in named
    assert call("show", *run, "--plot", "nothing").returncode == 2


def test_a_metric_that_is_to_be_plotted_and_has_no_two_numbers_is_told_of(tmp_path: Path) -> None:
    """The message appears only for a metric named with ``--plot``, not for the default plot."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=math.nan)

    assert "\nloss: too few numbers to plot\n" in steptape("show", rec.folder, "--plot", "loss")
    assert "too few numbers" not in steptape("show", rec.folder)


def test_help_may_be_asked_for_in_short() -> None:
    """``-h`` works for the program and for each command."""
    assert steptape("-h") == steptape("--help")
    assert steptape("show", "-h") == steptape("show", "--help")


def test_an_empty_store_is_told_of(tmp_path: Path) -> None:
    """A command without work says so instead of staying silent."""
    assert steptape("seal", "--store", tmp_path) == f"no runs in {tmp_path}\n"
    assert steptape("delete", "--store", tmp_path, "--keep-last", "0") == "no run to delete\n"
    assert steptape("seal", "--store", tmp_path, "--json") == ""


def test_a_policy_that_there_is_not_may_be_another_one(live: Run) -> None:
    """A shipped policy is suggested."""
    said = "loss_spik: no such file, and steptape ships no rules of that name. Did you mean 'loss_spike'?"
    for command in (("replay", "loss_spik", live.folder), ("check", "loss_spik")):
        result = call(*command)

        assert (result.returncode, result.stderr) == (2, f"error: {said}\n")


def test_a_policy_may_come_through_a_pipe(live: Run, tmp_path: Path) -> None:
    """A shell's ``<(...)`` is a pipe; a folder is not a policy."""
    rules = "controllers: [{name: always, triggers: [on_step_end], rule: 'True', operations: [hfcontrols.should_log]}]"

    assert "always" in call_apart("replay", "/dev/stdin", live.folder, given=rules).stdout
    assert call("check", tmp_path).returncode == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_policy_that_may_not_be_read_is_exit_status_2(tmp_path: Path) -> None:
    """The exit status is that of a missing file."""
    path = tmp_path / "policy.yaml"
    path.touch(mode=0o000)

    result = call("check", path)

    assert (result.returncode, result.stderr) == (2, f"error: {path}: cannot be read (permission denied)\n")


def test_every_command_ends_its_help_with_examples() -> None:
    """Each example is an existing command with existing options."""
    for command, examples in EXAMPLES.items():
        printed = steptape(command, "--help")
        assert all(f"  {line}\n" in printed for line in examples)
        options = re.findall(r"(--[a-z-]+)", " ".join(line for line in examples if f"steptape {command} " in line))
        assert all(option in printed for option in options), (command, options)
    assert {name for summaries in GROUPS.values() for name in summaries} == set(EXAMPLES)


def test_the_list_of_commands_says_what_each_command_says_of_itself() -> None:
    """``--help`` loads no command, so the summaries are written twice; they are equal. Groups are in their order."""
    printed = steptape("--help")
    places = [printed.index(f"\n{group}:\n") for group in GROUPS]

    for command, summary in (entry for summaries in GROUPS.values() for entry in summaries.items()):
        assert " ".join(steptape(command, "--help").split("\n\n")[1].split()).startswith(summary)
        assert " ".join(f"{command} {summary}".split()) in " ".join(printed.split())
    assert places == sorted(places)


def test_the_demo_needs_neither_torch_nor_scikit_learn(tmp_path: Path) -> None:
    """Without --torch it trains with numpy, and everything else is the same."""
    script = (
        "import sys; sys.modules.update({'torch': None, 'sklearn': None})\n"
        "from steptape.cli.app import main\nsys.argv = ['steptape', 'demo', '--store', sys.argv[1]]\nmain()"
    )

    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert "11 of the 12 mislabelled samples are among them." in result.stdout
    assert len(re.findall(r"yes +identical, \d+ decisions", result.stdout)) == 2


def test_what_seal_and_delete_did_is_printed_as_json_too(demo_store: Path, tmp_path: Path) -> None:
    """Each run is one line."""
    store = tmp_path / "runs"
    shutil.copytree(demo_store, store)

    sealed = lines(steptape("seal", "--store", store, "--json"))
    deleted = lines(steptape("delete", "--store", store, "--keep-last", "2", "--yes", "--json"))

    assert [row["events_sealed"] for row in sealed] == [0, 0, 0]
    assert [row["deleted"] for row in deleted] == [True]


def test_shells_complete_commands() -> None:
    """The request is bash's after a tab."""
    asked = {"_STEPTAPE_COMPLETE": "complete_bash", "COMP_WORDS": "steptape ta", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("steptape")

    printed = subprocess.run([command], env={**os.environ, **asked}, capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["tail"]


def test_docs_names_files_that_come_with_the_package() -> None:
    """Each exists, and the rule language is one of them."""
    lines = steptape("docs").splitlines()

    assert all(Path(line).is_file() for line in lines[:-1])
    assert {"LANGUAGE.md", "FORMAT.md", "IMPORT.md"} <= {Path(line).name for line in lines[:-1]}
    assert lines[-1].startswith("site: https://")


def test_a_replay_in_which_no_rule_could_fire_says_what_the_run_lacks(tmp_path: Path) -> None:
    """No decision would else read as a rule that found nothing."""
    with Recorder(tmp_path, name="plain", quiet=True) as rec:
        rec.step(loss=1.0)

    result = call("replay", "early_stopping", "plain", "--store", tmp_path)

    assert result.returncode == 0
    lacks = "no rule could fire: the run has no 'eval_loss' of evaluate events"
    assert result.stderr.strip() == f"{lacks}. 'steptape check early_stopping --against {rec.run_id}' says more"
