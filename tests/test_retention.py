"""Retention keeps what a rule keeps and what a run needs to resume, and plans everything else with its cost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from retained_store import saved, trained

from steptape import Recorder, open_store
from steptape.retention.deleting import carry_out, check_deletable
from steptape.retention.keep_file import read_keep_file
from steptape.retention.plan import RetentionPlan, plan_retention
from steptape.retention.receipt import Receipt, interrupted_in
from steptape.store.annotations import Annotation, append_annotation
from steptape.store.errors import TelemetryError


def planned(folder: Path, rules: str, *, root: Path | None = None) -> RetentionPlan:
    """Plan with a keep file; ``rules`` without a section are rules for checkpoints."""
    path = folder / "keep.yaml"
    path.write_text(rules if ":\n" in rules or "keep" in rules else f"checkpoints: {{keep: [{rules}]}}\n")
    return plan_retention(open_store(folder / "runs"), read_keep_file(path), root=root or folder)


def names(plan: RetentionPlan) -> list[str]:
    """Return the names of what goes."""
    return sorted(doomed.path.name for doomed in plan.doomed)


def deleted(folder: Path, plan: RetentionPlan) -> list[str]:
    """Carry out a plan; return why things were not deleted."""
    with Receipt(folder / "receipt.jsonl") as receipt:
        return [outcome.why_not for outcome in carry_out(plan, receipt) if outcome.why_not]


def stays(folder: Path) -> set[str]:
    """Return the names of the checkpoints that are there."""
    return {path.name for path in (folder / "checkpoints").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ("best: 1", {2}),
        ("best: 2", {2, 4}),
        ("last: 1", {10}),
        ("last: 2", {8, 10}),
        ("powers_of: 2", {2, 4, 8}),
        ("powers_of: 3", {2, 8}),
        ("before_spike: {metric: loss, factor: 2.0, steps: 1}", {6}),
        ("before_spike: {steps: 2}", set()),
        ("best: 1, last: 1", {2, 10}),
        ("younger_than: 1h", {2, 4, 6, 8, 10}),
    ],
)
def test_each_rule_keeps_its_checkpoints(rules: str, kept: set[int], tmp_path: Path) -> None:
    """Powers of 3 up to step 10 are 1, 3 and 9: the first of the nearest checkpoints are at steps 2, 2 and 8."""
    evals = {2: 0.5, 4: 0.6, 6: 0.9, 8: 0.8, 10: 0.7}
    trained(tmp_path, "run", [2, 4, 6, 8, 10], evals, losses={7: 5.0})
    plan = planned(tmp_path, rules)

    assert names(plan) == sorted(f"run-{step}.pt" for step in {2, 4, 6, 8, 10} - kept)
    assert plan.size_bytes == sum({2, 4, 6, 8, 10} - kept)


def test_a_checkpoint_grows_old(tmp_path: Path) -> None:
    """Its age is that of its file, or that of its record where that is younger."""
    trained(tmp_path, "run", [1, 2], {1: 0.5})
    path = tmp_path / "checkpoints/run-1.pt"
    os.utime(path, (0, 0))
    time.sleep(0.02)

    assert names(planned(tmp_path, "younger_than: 1h")) == []
    assert names(planned(tmp_path, "younger_than: 0m")) == ["run-1.pt", "run-2.pt"]


def test_pinned_checkpoints_stay(tmp_path: Path) -> None:
    """By a tag, a note about the run, a note about steps, and a list of paths and runs."""
    trained(tmp_path, "tagged", [1, 2], tags=["pinned"])
    trained(tmp_path, "listed", [1, 2])
    noted = trained(tmp_path, "noted", [1, 2, 3])
    whole = trained(tmp_path, "whole", [1, 2])
    append_annotation(noted, Annotation("a", 1, "pinned", first_step=2, last_step=2))
    append_annotation(whole, Annotation("a", 1, "keep for the paper", attrs={"pinned": True}))
    (tmp_path / "list.txt").write_text("# for the paper\ncheckpoints/listed-1.pt\n")

    plan = planned(tmp_path, "pinned: list.txt")

    assert names(plan) == ["listed-2.pt", "noted-1.pt", "noted-3.pt"]


def test_a_run_that_nothing_judges_keeps_all_under_best(tmp_path: Path) -> None:
    """No evaluation is no reason to delete."""
    trained(tmp_path, "run", [1, 2, 3])

    assert names(planned(tmp_path, "best: 1")) == []
    assert names(planned(tmp_path, "last: 1")) == ["run-1.pt", "run-2.pt"]


def test_the_deployable_regret_of_a_plan_is_the_best_that_goes(tmp_path: Path) -> None:
    """The evaluation at step 3 has no checkpoint, and does not count."""
    trained(tmp_path, "run", [1, 2, 4], {1: 0.25, 2: 0.5, 3: 0.1, 4: 0.75})

    run = planned(tmp_path, "last: 1").runs[0]

    assert (run.best, run.best_kept, run.regret) == (0.25, 0.75, 0.5)


def test_the_newest_checkpoint_of_a_run_that_did_not_complete_stays(tmp_path: Path) -> None:
    """So do its log and, in a run that has completed, the checkpoint that it was resumed from."""
    resumed = trained(tmp_path, "resumed", [1, 2, 3], fails=True)
    with Recorder(tmp_path / "runs", resume=resumed.name, resume_step=2) as again:
        for step in (3, 4):
            again.step(loss=1.0)
            saved(again, tmp_path, f"checkpoints/again-{step}.pt", step)
    trained(tmp_path, "other", [1, 2], fails=True)

    plan = planned(tmp_path, "checkpoints: {keep: [younger_than: 0m]}\nruns: {keep: [younger_than: 0m]}\n")

    assert names(plan) == ["again-3.pt", "again-4.pt", "other-1.pt", "resumed-1.pt", "resumed-3.pt"]
    assert [run.kept for run in plan.runs] == ["has a point to resume from"] * 2


def test_a_live_run_is_never_touched(tmp_path: Path) -> None:
    """Nor is what it has loaded from another run."""
    trained(tmp_path, "past", [1, 2, 3])
    with Recorder(tmp_path / "runs", name="live") as rec:
        rec.event("load", path="checkpoints/past-1.pt")
        for step in (1, 2, 3):
            rec.step(loss=1.0)
            saved(rec, tmp_path, f"checkpoints/live-{step}.pt", step)
        plan = planned(tmp_path, "checkpoints: {keep: [last: 1]}\nruns: {keep: [younger_than: 0m]}\n")

    assert "live" not in "".join(names(plan))
    assert "past-1.pt" not in names(plan)
    assert "past-2.pt" in names(plan)


def test_a_run_that_began_again_after_the_plan_is_left_alone(tmp_path: Path) -> None:
    """Each deletion looks at the run once more."""
    folder = trained(tmp_path, "run", [1, 2])
    plan = planned(tmp_path, "last: 1")

    with Recorder(tmp_path / "runs", resume=folder.name, resume_step=1):
        said = deleted(tmp_path, plan)

    assert said == [f"its run {folder.name} has been continued or changed"]
    assert stays(tmp_path) == {"run-1.pt", "run-2.pt"}


def test_a_checkpoint_that_two_runs_name_stays_if_one_keeps_it(tmp_path: Path) -> None:
    """Also through a link, and also if the one names a folder in which the other's lies."""
    trained(tmp_path, "one", [5], at="checkpoints/shared.pt")
    (tmp_path / "alias").symlink_to(tmp_path / "checkpoints")
    with Recorder(tmp_path / "runs", name="two") as rec:
        rec.step(loss=1.0)
        rec.save("alias/shared.pt", size_bytes=5)
        rec.save("checkpoints", size_bytes=12)
        rec.step(loss=1.0)
        saved(rec, tmp_path, "checkpoints/two.pt", 7)

    plan = planned(tmp_path, "last: 1")

    assert names(plan) == []
    why = {one.path: one.kept for run in plan.runs for one in run.checkpoints}
    assert why["checkpoints"] == "holds, or is a part of, what stays"
    assert why["alias/shared.pt"] == "last: 1"


def test_what_lies_outside_the_root_is_refused(tmp_path: Path) -> None:
    """An absolute path, one with dots, and a link out of the root; a URL and a missing file are said."""
    home = tmp_path / "home"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.pt").write_bytes(b"a")
    home.mkdir()
    (home / "link").symlink_to(outside)
    with Recorder(home / "runs", name="run") as rec:
        for path in (str(outside / "a.pt"), "../outside/a.pt", "link/a.pt", "s3://bucket/a.pt", "gone.pt"):
            rec.step(loss=1.0)
            rec.save(path, size_bytes=1)
        rec.step(loss=1.0)
        saved(rec, home, "checkpoints/b.pt", 1)
    rules = "checkpoints: {keep: [last: 1]}"

    run = planned(home, rules).runs[0]

    assert names(planned(home, rules)) == []
    kept = [one.kept for one in run.checkpoints]
    assert kept == ["outside the root", "not a path on this machine", "last: 1"]
    assert run.missing == 1


def test_a_folder_that_became_a_link_after_the_plan_is_not_followed(tmp_path: Path) -> None:
    """The deletion opens each folder from the root on, without links."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    trained(home, "run", [1, 2])
    plan = planned(home, "last: 1")
    (home / "checkpoints").rename(outside)
    (home / "checkpoints").symlink_to(outside)

    said = deleted(home, plan)

    assert "cannot be deleted" in said[0]
    assert (outside / "run-1.pt").exists()


def test_a_file_that_is_not_what_was_recorded_stays(tmp_path: Path) -> None:
    """Its size differs when the plan is made, or it has changed since."""
    trained(tmp_path, "run", [1, 2, 3])
    (tmp_path / "checkpoints/run-1.pt").write_bytes(b"something else")
    plan = planned(tmp_path, "last: 1")
    (tmp_path / "checkpoints/run-2.pt").write_bytes(b"22")
    os.utime(tmp_path / "checkpoints/run-2.pt", (5, 5))

    said = deleted(tmp_path, plan)

    assert names(plan) == ["run-2.pt"]
    assert plan.runs[0].checkpoints[0].kept == "holds 14 bytes, not the 1 recorded"
    assert said == ["it has changed"]


def test_the_log_of_a_run_is_no_checkpoint(tmp_path: Path) -> None:
    """A run that names a log, or a folder with one, loses nothing."""
    with Recorder(tmp_path / "runs", name="run") as rec:
        for path in (rec.folder / "run.json", rec.folder, tmp_path / "runs", tmp_path):
            rec.step(loss=1.0)
            rec.save(path)
        rec.step(loss=1.0)
        saved(rec, tmp_path, "last.pt", 1)

    assert names(planned(tmp_path, "last: 1")) == []


def test_runs_go_by_age_number_and_merit_with_their_checkpoints(tmp_path: Path) -> None:
    """A run that stays may still lose checkpoints; a run that goes keeps none."""
    for name, value in (("good", 0.1), ("bad", 0.9), ("newest", 0.5)):
        trained(tmp_path, name, [1, 2], {1: value, 2: value})

    plan = planned(tmp_path, "runs: {keep: [best: 1, last: 1]}\ncheckpoints: {keep: [last: 1]}\n")

    gone = {doomed.path.name for doomed in plan.doomed if doomed.what == "checkpoint"}
    assert gone == {"good-1.pt", "newest-1.pt", "bad-1.pt", "bad-2.pt"}
    assert [run.name for run in plan.runs if not run.kept] == ["bad"]


def test_a_run_whose_folder_holds_what_stays_stays(tmp_path: Path) -> None:
    """Another run may have been trained from a checkpoint in it."""
    folder = trained(tmp_path, "old", [1], at=str(tmp_path / "runs" / "shared.pt"))
    with Recorder(tmp_path / "runs", name="owner") as rec:
        rec.step(loss=1.0)
        inside = saved(rec, tmp_path, f"runs/{rec.run_id}/inside.pt", 3)
    with Recorder(tmp_path / "runs", name="user") as user:
        user.step(loss=1.0)
        user.save(inside, size_bytes=3)

    plan = planned(tmp_path, "runs: {keep: [last: 1]}\ncheckpoints: {keep: [last: 1]}\n")

    assert {run.name: run.kept for run in plan.runs if run.kept} == {"owner": "holds what stays", "user": "last: 1"}
    assert names(plan) == sorted(["shared.pt", folder.name])


def test_a_plan_deletes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    """Checkpoints that are folders go as well. The receipt has two lines for each deletion."""
    trained(tmp_path, "run", [1, 2, 3])
    old = trained(tmp_path, "old", [1])
    with Recorder(tmp_path / "runs", name="folders") as rec:
        for step in (1, 2):
            rec.step(loss=1.0)
            (tmp_path / f"checkpoints/folder-{step}").mkdir()
            (tmp_path / f"checkpoints/folder-{step}/part.pt").write_bytes(b"12")
            rec.save(tmp_path / f"checkpoints/folder-{step}")
        rec.close(seal=True)
    (tmp_path / "checkpoints/foreign.pt").write_bytes(b"mine")
    keep = "runs: {keep: [best: 1]}\ncheckpoints: {keep: [last: 1]}\n"
    plan = planned(tmp_path, keep)

    check_deletable(plan, plan.digest)
    said = deleted(tmp_path, plan)

    lines = [json.loads(line) for line in (tmp_path / "receipt.jsonl").read_text().splitlines()]
    assert said == []
    assert stays(tmp_path) == {"run-3.pt", "old-1.pt", "part.pt", "foreign.pt"}
    assert not (tmp_path / "checkpoints/folder-1").exists()
    assert old.exists()
    assert [line["state"] for line in lines] == ["begun", "ended"] * 3
    assert all(lines[0]["digests"].values())
    assert lines[0]["rule"] == "checkpoints: kept by none of last: 1"
    assert lines[1]["outcome"] == "deleted"
    assert names(planned(tmp_path, keep)) == []


def test_a_plan_that_was_not_looked_at_is_refused(tmp_path: Path) -> None:
    """So is one of a store with an unreadable run, which may need what is to go."""
    trained(tmp_path, "run", [1, 2, 3])
    plan = planned(tmp_path, "last: 1")
    (tmp_path / "checkpoints/run-1.pt").unlink()
    changed = planned(tmp_path, "last: 1")
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")

    with pytest.raises(TelemetryError, match=f"the plan is now {changed.digest}"):
        check_deletable(changed, plan.digest)
    unsure = planned(tmp_path, "last: 1")
    with pytest.raises(TelemetryError, match="1 run cannot be read, and may need"):
        check_deletable(unsure, unsure.digest)


def test_half_a_line_of_a_receipt_is_skipped(tmp_path: Path) -> None:
    """A killed writer leaves one; the next begins a new line. One process writes at a time."""
    path = tmp_path / "receipt.jsonl"
    path.write_text('{"deletion": "a", "sta')
    with Receipt(path) as receipt:
        receipt.begin("b", tmp_path / ".deleted-x-b", {"path": str(tmp_path / "x")})
        with pytest.raises(TelemetryError, match="another process"):
            Receipt(path)

    assert [(one.token, one.state) for one in interrupted_in(path)] == [("b", "deleted")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty"),
        ("objective: eval_loss", "1:1: neither 'checkpoints' nor 'runs' is here"),
        ("checkpoints: {keep: []}", "1:21: checkpoints, keep: no rule: everything would go"),
        ("checkpoints: {}", "1:14: checkpoints: 'keep' is missing"),
        ("checkpoints: {keep: [newest]}", "1:22: checkpoints, keep: not a rule; got 'newest'"),
        ("checkpoints: {keep: [{bets: 1}]}", "1:23: checkpoints, keep: unknown key; got 'bets'. Did you mean 'best'?"),
        ("runs: {keep: [{powers_of: 2}]}", "1:16: runs, keep: unknown key; got 'powers_of'"),
        ("runs: {keep: [{best: 1, last: 1}]}", "1:15: runs, keep: one rule an entry"),
        ("runs: {keep: [{best: 0}]}", "1:22: runs, keep, best: must be a whole number from 1; got 0"),
        ("checkpoints: {keep: [{powers_of: 1}]}", "must be a whole number from 2; got 1"),
        ("runs: {keep: [{younger_than: 30}]}", "an age is a number with the unit d, h or m, such as 30d; got 30"),
        ("runs: {keep: [{pinned: nowhere.txt}]}", "the list cannot be read (No such file or directory)"),
        ("checkpoints: {keep: [{before_spike: {factor: 1}}]}", "factor: must be a number above 1; got 1"),
        ("runs: {keep: [pinned]}\nobjective: thing", "2:12: objective: the name of this metric does not say"),
    ],
)
def test_a_mistake_in_a_keep_file_is_named_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    """Line and column come first, then the section and the rule."""
    path = tmp_path / "keep.yaml"
    path.write_text(text)

    with pytest.raises(TelemetryError) as error:
        read_keep_file(path)

    assert f"{path}:" in str(error.value)
    assert message in str(error.value)
