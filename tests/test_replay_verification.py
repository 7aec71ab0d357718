"""Verify compares a run's recorded decisions with its replay, and finds and shows any tampering."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import call as steptape
from flipped_bytes import FILES, flipped_bytes, run_of_all_tables

from steptape import Recorder, TelemetryError, backtest, open_run, verify
from steptape.rules.policy_file.controllers import TRIGGERS
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import DamagedLog, UnsupportedVersion
from steptape.store.run import Run

POLICY = """
controllers:
  - name: high
    triggers: [on_step_end]
    rule: loss > mean(loss, 3)
    operations: [hfcontrols.should_save]
  - name: fails
    triggers: [on_step_end]
    rule: 1 / (loss - 2) > 5
    operations: [hfcontrols.should_log]
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A sealed run with decisions and a rule error."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with Recorder(tmp_path / "runs", rules=policy) as rec:
        for loss in (1.0, 3.0, 2.0, 5.0, math.nan, 1.0, 4.0):
            rec.step(loss=loss)
    rec.close(seal=True)
    return open_run(rec.folder)


@pytest.fixture(scope="module")
def sealed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sealed run with all files that there are."""
    folder = run_of_all_tables(tmp_path_factory.mktemp("runs"))
    assert verify(open_run(folder)).identical
    return folder


def tampered(run: Run, change: Callable[[pa.Table], pa.Table]) -> Run:
    """Return a copy of the run whose events were changed and rewritten as valid Parquet."""
    copy = run.folder.parent / "copy"
    shutil.copytree(run.folder, copy)
    (path,) = copy.glob("events-*.parquet")
    pq.write_table(change(pq.read_table(path)), path)
    return open_run(copy)


def with_attrs(table: pa.Table, change: Callable[[dict[str, object]], None]) -> pa.Table:
    """Return the table with changed attributes of its second decision."""
    rows = [i for i, kind in enumerate(table["kind"].to_pylist()) if kind == "decision"]
    attrs = table["attrs"].to_pylist()
    document = json.loads(attrs[rows[1]])
    change(document)
    attrs[rows[1]] = json.dumps(document)
    return table.set_column(table.column_names.index("attrs"), "attrs", pa.array(attrs, pa.string()))


def test_an_untouched_run_verifies(run: Run) -> None:
    """Decisions, rule errors and their values agree."""
    verdict = verify(run)

    assert verdict.identical
    assert verdict.outcomes == 3
    assert len(verdict.digest) == 64


def test_a_run_in_which_every_trigger_decided_and_failed_verifies(tmp_path: Path) -> None:
    """Also what a callback records when a rule asks for a checkpoint at the very end."""
    controllers = "".join(
        f"  - {{name: {trigger}, triggers: [{trigger}], rule: 'True', operations: [hfcontrols.should_save]}}\n"
        f"  - {{name: {trigger}_fails, triggers: [{trigger}], rule: 1 / (loss - loss) > 0, "
        "operations: [hfcontrols.should_log]}\n"
        for trigger in TRIGGERS
    )
    (tmp_path / "policy.yaml").write_text("controllers:\n" + controllers)

    begun: list[Recorder] = []

    def save() -> None:
        for rec in begun:
            rec.save("checkpoint", is_final=True)

    with Recorder(tmp_path / "runs", rules=tmp_path / "policy.yaml", callbacks={"save": save}) as rec:
        begun.append(rec)
        rec.epoch_begin()
        for loss in (1.0, 2.0):
            rec.step(loss=loss)
        rec.log(loss=3.0)
        rec.evaluate(loss=4.0)
        rec.epoch_end()

    kinds = [event.kind for event in open_run(rec.folder).events()]
    assert {"decision", "rule_error", "save"} <= set(kinds[kinds.index("train_end") :])
    assert verify(open_run(rec.folder)).identical


@pytest.mark.parametrize("cut", [1, 2])
def test_a_log_that_lacks_what_was_decided_at_its_end_is_not_taken_for_whole(tmp_path: Path, cut: int) -> None:
    """The end event, or the decision behind it, was removed."""
    (tmp_path / "policy.yaml").write_text(
        "controllers:\n"
        "  - {name: last, triggers: [on_train_end], rule: loss > 0, operations: [hfcontrols.should_save]}\n"
    )
    rec = Recorder(tmp_path / "runs", rules=tmp_path / "policy.yaml")
    rec.step(loss=1.0)
    rec.close(seal=True)

    assert verify(open_run(rec.folder)).identical
    assert not verify(tampered(open_run(rec.folder), lambda table: table.slice(0, table.num_rows - cut))).identical


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("controller", "low"),
        ("operations", ["hfcontrols.should_training_stop"]),
        ("values", {"loss": 5.0, "mean(loss, 3)": 3.3333333333333331}),
        ("event_seq", 3),
        ("trigger", "on_log"),
        ("messages", [{"operation": "hfcontrols.should_save", "level": "INFO", "text": "nothing"}]),
        ("event_epoch", 0.5),
    ],
)
def test_a_decision_that_was_changed_is_the_first_difference(run: Run, key: str, value: object) -> None:
    """The changed field does not matter."""
    copy = tampered(run, lambda table: with_attrs(table, lambda attrs: attrs.update({key: value})))

    difference = verify(copy).difference

    assert difference is not None
    assert difference.recorded != difference.replayed


def test_a_decision_that_was_removed_is_missed(run: Run) -> None:
    """Its place is empty, and the replay has one more."""

    def drop_last(table: pa.Table) -> pa.Table:
        last = [i for i, kind in enumerate(table["kind"].to_pylist()) if kind == "decision"][-1]
        return pa.concat_tables([table.slice(0, last), table.slice(last + 1)])

    assert not verify(tampered(run, drop_last)).identical


def test_a_loss_that_was_changed_changes_the_replay(run: Run) -> None:
    """The facts and the decisions no longer fit."""

    def lower(table: pa.Table) -> pa.Table:
        loss = pc.if_else(pc.equal(table["loss"], 5.0), 0.5, table["loss"])
        return table.set_column(table.column_names.index("loss"), "loss", loss)

    assert not verify(tampered(run, lower)).identical


@pytest.mark.parametrize(
    "cut",
    [
        lambda table: table.slice(0, table.num_rows - 3),
        lambda table: table.slice(0, 0),
        lambda table: pa.concat_tables([table.slice(0, 2), table.slice(3)]),
    ],
    ids=["end", "all", "one event"],
)
def test_a_log_that_was_cut_is_not_taken_for_whole(run: Run, cut: Callable[[pa.Table], pa.Table]) -> None:
    """A run with a recorded end has an end in its log, and no gap."""
    verdict = verify(tampered(run, cut))

    assert verdict.fault
    assert not verdict.identical


def test_a_log_without_its_files_is_not_taken_for_whole(run: Run) -> None:
    """An empty record does not mean that nothing was decided."""
    for path in run.folder.glob("events-*.parquet"):
        path.unlink()

    assert "its log has no end" in verify(run).fault


@pytest.mark.parametrize("column", ["step", "seq"])
def test_a_decision_s_own_step_or_place_cannot_be_changed(run: Run, column: str) -> None:
    """Queries show these columns."""

    def change(table: pa.Table) -> pa.Table:
        row = table["kind"].to_pylist().index("decision")
        values = table[column].to_pylist()
        values[row] += 1
        return table.set_column(table.column_names.index(column), column, pa.array(values, pa.int64()))

    assert not verify(tampered(run, change)).identical


def test_a_policy_that_was_changed_cannot_be_verified_by(run: Run) -> None:
    """The text stored with the run must have the recorded digest."""
    path = run.folder / "run.json"
    path.write_text(path.read_text().replace("loss > mean", "loss >= mean"))

    with pytest.raises(TelemetryError, match="digest"):
        verify(run)


def test_other_semantics_are_refused_rather_than_compared(run: Run) -> None:
    """Another version of the engine may rightly decide otherwise. All else of the run reads as before."""
    path = run.folder / "run.json"
    document = json.loads(path.read_text())
    document["attempts"][0]["policy"]["semantics_version"] = 5
    path.write_text(json.dumps(document))
    recorded = open_run(run.folder).decisions().num_rows

    with pytest.raises(UnsupportedVersion) as refused:
        verify(run)

    assert str(refused.value) == (
        f"{run.folder}, rule file of attempt 0: this steptape supports rule semantics 8; got 5. "
        "Use the steptape that wrote it, or record or import the run anew"
    )
    assert recorded == run.decisions().num_rows > 0
    assert len(backtest(parse_policy(POLICY), [run]).results) == 1


def test_a_run_without_rules_has_nothing_to_differ_in(tmp_path: Path) -> None:
    """The verdict says so."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)

    verdict = verify(open_run(rec.folder))

    assert (verdict.identical, verdict.outcomes, verdict.note) == (True, 0, "no rules were live")


@pytest.mark.parametrize(
    ("rules", "note"),
    [
        ((POLICY, None), "no rules were live in attempt 1"),
        ((None, POLICY, None), "no rules were live in attempts 0, 2"),
        ((None, None), "no rules were live"),
        ((POLICY, POLICY), ""),
    ],
    ids=["resumed without", "only in the middle", "never", "always"],
)
def test_the_note_names_the_attempts_without_rules(tmp_path: Path, rules: tuple[str | None, ...], note: str) -> None:
    """The others decided live, and their decisions were compared."""
    resume = None
    for text in rules:
        policy = None if text is None else parse_policy(text)
        with Recorder(tmp_path, rules=policy, resume=resume) as rec:
            rec.step(loss=9.0)
            resume = rec.state_dict()
    rec.close(seal=True)

    assert verify(open_run(rec.folder)).note == note


def test_the_digest_is_the_same_before_and_after_sealing(run: Run) -> None:
    """It covers the decisions, not their storage."""
    assert dataclasses.asdict(verify(run)) == dataclasses.asdict(verify(open_run(run.folder)))


def test_rows_in_another_order_are_the_same_log(run: Run) -> None:
    """Events are ordered by ``seq``, not by row: a file that a tool rewrote reads as before."""
    copy = tampered(run, lambda table: table.take(pa.array(sorted(range(table.num_rows), key=lambda i: (i * 7) % 11))))

    assert [event.seq for event in copy.events()] == [event.seq for event in run.events()]
    assert (verify(copy).difference, verify(copy).fault) == (None, "")


def test_attributes_that_are_no_json_are_an_error_that_names_the_event(run: Run) -> None:
    """A backtest excludes such a run, with the reason."""

    def spoil(table: pa.Table) -> pa.Table:
        attrs = ["{" if text else None for text in table["attrs"].to_pylist()]
        return table.set_column(table.column_names.index("attrs"), "attrs", pa.array(attrs, pa.string()))

    copy = tampered(run, spoil)

    with pytest.raises(DamagedLog, match="decision 0/0/3: attributes must be a JSON object"):
        verify(copy)
    assert len(backtest(parse_policy(POLICY), [copy, run]).excluded) == 1


def test_a_change_that_no_rule_reads_is_found_by_the_digest_of_the_log(run: Run) -> None:
    """A clock is an example: the decisions agree, but the log is not the original."""

    def later(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index("time_ns"), "time_ns", pc.add(table["time_ns"], 1))

    verdict = verify(tampered(run, later))

    assert verdict.difference is None
    assert verdict.fault == "attempt 0: the log of rank 0 has changed since its digest was computed at the end"


def test_a_policy_of_which_a_comment_was_changed_is_not_the_one_that_was_kept(run: Run) -> None:
    """Its meaning and its digest are unchanged, but the file was edited."""
    path = run.folder / "run.json"
    path.write_text(path.read_text().replace('"text": "', '"text": "# harmless'))

    assert verify(run).fault == "attempt 0: its entry in run.json has changed since the attempt ended"


def test_decisions_must_have_the_digest_that_the_recorder_kept(run: Run) -> None:
    """It is stored in ``run.json`` and equals that of a replay."""
    path = run.folder / "run.json"
    kept = run.info.last.decision_digest

    assert kept == verify(run).digest
    path.write_text(path.read_text().replace(str(kept), "0" * 64))
    assert verify(run).fault == "attempt 0: its decisions do not match the digest that was taken at its end"


def test_a_sealed_run_without_digests_is_not_proven(run: Run) -> None:
    """The replay agrees, and nothing shows that the log is the one that was written."""
    (run.folder / "digests.json").unlink()

    verdict = verify(run)
    result = steptape("verify", run.folder)

    assert (verdict.identical, verdict.difference, verdict.fault, verdict.log_digest) == (False, None, "", "")
    assert verdict.unproven.endswith("attempt 0 in run.json, run.json: it is sealed, and no digest was kept")
    assert (result.returncode, f"{run.run_id}: NOT PROVEN: the log of rank 0" in result.stdout) == (1, True)


def test_a_file_that_was_rewritten_with_the_same_values_is_not_proven(run: Run) -> None:
    """Nothing shows who wrote it."""
    (path,) = run.folder.glob("events-*.parquet")
    pq.write_table(pq.read_table(path), path, compression="gzip")

    verdict = verify(run)

    assert (verdict.fault, verdict.identical) == ("", False)
    assert verdict.unproven == f"{path.name} has other bytes than when its digest was taken"


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_of_a_sealed_run_is_found(sealed_run: Path, name: str) -> None:
    """The result is an error, a fault, or a verdict of not proven; never identical."""
    unseen, count = flipped_bytes(sealed_run, name, parts=8)

    assert (unseen, count) == ([], 8)


def test_a_path_is_no_run() -> None:
    """The message says how to open one."""
    with pytest.raises(TelemetryError, match=r"verify takes a run; got 'runs'\. Write verify\(open_run\(\.\.\.\)\)"):
        verify("runs")  # type: ignore[arg-type]


def test_what_a_loop_learns_late_decides_alike_live_and_in_replay(tmp_path: Path) -> None:
    """Plans, skipped updates and kinds of the loop's own are facts of the log; a resumed run decides as well."""
    rules = tmp_path / "policy.yaml"
    rules.write_text("""
controllers:
  - {name: half, triggers: [on_step_end], rule: progress >= 0.5, once: true, operations: [hfcontrols.should_save]}
  - {name: skips, triggers: [on_step_end], rule: updates_skipped > 1, once: true, operations: [hfcontrols.should_log]}
  - {name: size, triggers: [on_step_end], rule: params > 1, once: true, operations: [hfcontrols.should_log]}
  - {name: reward, triggers: ["on_custom:reward"], rule: score < 0, operations: [hfcontrols.should_evaluate]}
""")
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for step in range(1, 7):
            rec.step(loss=1.0, applied=step % 3 > 0)
            if step == 4:
                rec.declare(total_steps=10, constants={"params": 2.0})
            if step == 5:
                rec.event("custom:reward", {"score": -1.0})
        rec.save("last")
    with Recorder(tmp_path / "runs", resume=rec.folder.name, rules=rules, total_steps=6) as again:
        again.step(loss=1.0)
    run = open_run(rec.folder)

    made = [(row["controller"], row["attempt"], row["step"]) for row in run.decisions().to_pylist()]
    assert made == [("half", 0, 5), ("size", 0, 5), ("reward", 0, 5), ("skips", 0, 6)]
    assert verify(run).identical
    assert (run.info.attempts[0].newest_plan.max_steps(), run.info.last.newest_plan.max_steps()) == (10, 6)
