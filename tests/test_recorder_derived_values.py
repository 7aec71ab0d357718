"""Definitions and states that a rule file lists under ``record`` are series of the run, which rules never read."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import call
from drawing import examples
from drawn_readings import FORMS, REDUCTIONS
from hypothesis import given
from hypothesis import strategies as st

from api_serving import served
from steptape import Ranks, Recorder, load_policy, open_run, verify
from steptape.api.pages.run import run_data
from steptape.replay.runs.replaying import derived_values, replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import InvalidEvent
from steptape.store.events import DERIVED
from steptape.store.run import Run

RULES = """
define:
  ppl: exp(loss)
  rise: loss - lag(loss, 1)
states:
  phase:
    - calm: loss < 1
    - wild: "True"
record: [ppl, rise, phase]
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: [save]}
"""


def file_of(tmp_path: Path, text: str = RULES) -> Path:
    """Return a rule file."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return path


def recorded(tmp_path: Path, losses: Sequence[float], text: str = RULES) -> Run:
    """Return a run with these losses."""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path, text)) as rec:
        for loss in losses:
            rec.step(loss=loss)
    return open_run(rec.folder)


def derived(run: Run) -> list[tuple[int, dict[str, float], dict[str, Any]]]:
    """Return step, values and classes of each event with derived values, effective ones alone."""
    return [(event.step, dict(event.metrics), dict(event.attrs)) for event in run.events() if event.kind == DERIVED]


def curve(run: Run, name: str) -> list[tuple[int, float]]:
    """Return the steps and values of one of them."""
    found = ((step, values.get(f"derived/{name}")) for step, values, _ in derived(run))
    return [(step, value) for step, value in found if value is not None]


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_a_definition_has_a_value_wherever_the_first_series_in_it_has_one(tmp_path: Path) -> None:
    """An evaluation has no loss, so it gives the perplexity no point."""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path)) as rec:
        rec.step(loss=0.0)
        rec.evaluate(eval_loss=3.0)
        rec.step(loss=0.0)

    assert curve(open_run(rec.folder), "ppl") == [(1, 1.0), (2, 1.0)]


def test_what_is_undefined_or_fails_has_no_value_and_nan_is_one(tmp_path: Path) -> None:
    """The first rise is undefined, and the exponential of 1,000 is beyond all floats."""
    run = recorded(tmp_path, [0.5, 1000.0, math.nan])

    assert [step for step, _ in curve(run, "rise")] == [2, 3]
    assert [step for step, _ in curve(run, "ppl")] == [1, 3]
    assert math.isnan(curve(run, "ppl")[-1][1])


def test_a_state_is_the_number_of_its_class_and_a_text_where_it_changes(tmp_path: Path) -> None:
    """The number is there at each step, so that its curve needs no filling."""
    run = recorded(tmp_path, [0.5, 0.5, 3.0, 3.0])

    assert curve(run, "phase") == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]
    assert [(step, classes) for step, _, classes in derived(run) if classes] == [
        (1, {"phase": "calm"}),
        (3, {"phase": "wild"}),
    ]


def test_a_value_is_the_one_that_rules_read_at_the_event(tmp_path: Path) -> None:
    """The spike that the rule compares with a mean does not enter it before."""
    text = """
define:
  clean: {value: loss, admit: not fired_now("spike")}
  usual: mean(clean, 3, min=1)
  jump: loss / usual
record: [usual, jump]
controllers:
  - {name: spike, triggers: [on_step_end], rule: jump > 2, operations: []}
"""
    run = recorded(tmp_path, [1.0, 1.0, 5.0, 1.0], text)

    assert curve(run, "usual") == [(2, 1.0), (3, 1.0), (4, 1.0)]
    assert [event.step for event in run.events() if event.kind == "decision"] == [3]


def test_a_definition_of_a_family_has_one_curve_where_it_gives_one_number(tmp_path: Path) -> None:
    """Next to a rule for each member."""
    text = """
define:
  worst: max("norm/*")
record: [worst]
controllers:
  - {name: big, triggers: [on_step_end], for_each: norm/*, rule: '"norm/*" > 4', operations: [save]}
"""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path, text)) as rec:
        for value in (1.0, 5.0):
            rec.step({"norm/a": value, "norm/b": 2.0})
    run = open_run(rec.folder)

    assert curve(run, "worst") == [(1, 2.0), (2, 5.0)]
    assert verify(run).identical


def test_shadow_rules_record_what_they_derive(tmp_path: Path) -> None:
    """They order nothing, but their curves are seen before they do."""
    run = recorded(tmp_path, [3.0], RULES.replace("operations: [save]", "operations: [save], mode: shadow"))

    assert curve(run, "ppl") == [(1, math.exp(3.0))]


def test_a_file_that_extends_another_records_what_both_say(tmp_path: Path) -> None:
    """A list grows."""
    file_of(tmp_path)
    own = tmp_path / "own.yaml"
    own.write_text("extends: rules.yaml\ndefine: {half: loss / 2}\nrecord: [half, ppl]\n")

    assert [each.name for each in load_policy(own).recorded] == ["ppl", "rise", "phase", "half"]


def test_what_is_recorded_is_no_part_of_what_rules_mean(tmp_path: Path) -> None:
    """A certificate and a resume hold for the file with more curves, too."""
    with_all = load_policy(file_of(tmp_path))
    with_none = load_policy(file_of(tmp_path, RULES.replace("record: [ppl, rise, phase]", "")))

    assert with_all.digest == with_none.digest


def test_surogate_s_rules_record_what_surogate_logs(tmp_path: Path) -> None:
    """Mean, greatest and slope of the last twenty norms, the phase, and the diagnostics of routing."""
    norms = [1.0 + 0.1 * (step % 7) for step in range(60)]
    routing = {"moe_aux_loss": 0.01, "moe_load_imbalance": 1.25, "moe_expert_utilization": 0.95}
    with Recorder(tmp_path, rules="surogate", quiet=True) as rec:
        for step, norm in enumerate(norms):
            rec.step({"loss": 3 - 0.01 * step, "grad_norm": norm, **routing})
    (_, newest, _) = derived(open_run(rec.folder))[-1]

    window = np.array(norms[-20:])
    assert newest == pytest.approx(
        {
            "derived/norm_mean": window.mean(),
            "derived/norm_max": window.max(),
            "derived/norm_slope": np.polyfit(np.arange(20), window, 1)[0],
            "derived/balance": 0.8,
            "derived/utilization": 0.95,
            "derived/aux_trend": 0.0,
            "derived/phase": 1.0,
        },
        abs=1e-12,
    )


def test_nano_train_s_rules_record_the_tags_that_are_computed(tmp_path: Path) -> None:
    """The average of the loss, perplexities, the gap, and what its health tags say of spikes and of NaN."""
    with Recorder(tmp_path, rules="nano_train", quiet=True) as rec:
        for _ in range(3):
            rec.step({"loss": 1.0, "Gradients/clipped": 1.0})
        rec.evaluate(eval_loss=1.5)
        rec.step(loss=math.nan)
    run = open_run(rec.folder)

    names = ("train_loss", "train_ppl", "val_ppl", "gap", "spike_ratio", "clip_rate")
    assert {name: curve(run, name)[0] for name in names} == {
        "train_loss": (1, 1.0),
        "train_ppl": (1, math.e),
        "val_ppl": (3, math.exp(1.5)),
        "gap": (3, 0.5),
        "spike_ratio": (2, 1.0),
        "clip_rate": (1, 1.0),
    }
    assert curve(run, "non_finite_loss") == [(1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0)]


# --- where it is seen ------------------------------------------------------------------------------------------------


def test_sql_has_derived_values_as_metrics_of_their_own_kind(tmp_path: Path) -> None:
    """In the view of all metrics, and as columns of the events."""
    run = recorded(tmp_path, [0.0, 0.5])
    rows = run.rows("SELECT kind, step, value FROM metric_values WHERE metric = 'derived/phase' ORDER BY step")
    wide = run.rows("""SELECT "derived/rise" AS rise FROM events WHERE "derived/rise" IS NOT NULL""")
    texts = run.rows("SELECT attrs->>'phase' AS phase FROM events WHERE kind = 'derived' ORDER BY seq")

    assert rows == [{"kind": "derived", "step": step, "value": 0.0} for step in (1, 2)]
    assert wide == [{"rise": 0.5}]
    assert [row["phase"] for row in texts] == ["calm", None]


def test_http_and_exports_have_the_curves(tmp_path: Path) -> None:
    """And the page, whose script draws what it finds among the metrics, lists them without leading with one."""
    run = recorded(tmp_path, [0.0, 0.5])

    with served(run.folder.parent) as client:
        series = client.get(f"/api/v1/runs/{run.run_id}/series?metric=derived/rise").json()["items"][0]
    lines = call("export", str(run.folder), "--format", "jsonl").stdout.splitlines()
    data = run_data(run.snapshot())

    assert (series["kind"], series["step"], series["value"]) == ("derived", [2], [0.5])
    assert {"derived/ppl", "derived/rise", "derived/phase"} < set(data["metrics"])
    assert data["leading"] == "loss"
    assert [json.loads(line)["metrics"]["derived/phase"] for line in lines if '"derived"' in line] == [0.0, 0.0]


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_metric_of_the_loop_with_such_a_name_gets_another_one_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So nothing that a loop logs passes for what rules computed; nested names count."""
    with Recorder(tmp_path) as rec:
        for _ in range(3):
            rec.step({"derived/ppl": 2.0, "loss": 1.0})
        rec.log({"derived": {"gap": 3.0}})

    values = [dict(event.metrics) for event in open_run(rec.folder).events() if event.metrics]
    assert values == [{"derived_ppl": 2.0, "loss": 1.0}] * 3 + [{"derived_gap": 3.0}]
    assert [text for text in caplog.messages if "begins as what rules compute" in text] == [
        "metric 'derived/ppl' begins as what rules compute does; recorded as 'derived_ppl'",
        "metric 'derived/gap' begins as what rules compute does; recorded as 'derived_gap'",
    ]


def test_a_strict_loop_cannot_give_a_metric_such_a_name(tmp_path: Path) -> None:
    """The call raises."""
    with Recorder(tmp_path, strict=True) as rec, pytest.raises(InvalidEvent, match="begins as what rules compute"):
        rec.step({"derived/ppl": 2.0})


@pytest.mark.parametrize(
    ("controller", "advice"),
    [
        ("rule: '\"derived/ppl\" > 3'", "Write ppl, the definition or state itself."),
        ("rule: 'mean(\"derived/ppl\", 3) > 3'", "Write ppl, the definition or state itself."),
        ("rule: 'any(\"derived/*\" > 3)'", "Write the definition itself."),
        ("rule: loss > 3, requires: [derived/ppl]", "Write ppl, the definition or state itself."),
        ("rule: loss > 3, for_each: derived/*", "Write the definition itself."),
    ],
)
def test_a_rule_that_reads_a_derived_value_is_refused_with_what_to_write(controller: str, advice: str) -> None:
    """Wherever a file names a series."""
    with pytest.raises(PolicyError) as refused:
        parse_policy(f"controllers:\n  - {{name: a, triggers: [on_step_end], {controller}, operations: []}}\n")

    assert "a series that the run records of the rules themselves" in str(refused.value)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pl", "no definition or state has this name; got 'pl'. Did you mean 'ppl'?"),
        ("limit", "'limit': it reads no series of the run"),
        ("label", "'label': it gives a text. Record a number, or a state."),
        ("worst_rank", "'worst_rank': a recorded definition reads values of its own rank only"),
        ("member_norm", "a pattern means many series"),
    ],
)
def test_only_a_definition_or_a_state_that_gives_numbers_of_the_run_can_be_recorded(name: str, said: str) -> None:
    """The message points at the name in the list."""
    text = f"""
define:
  ppl: exp(loss)
  limit: "3"
  label: argmax("norm/*")
  worst_rank: max_rank(loss)
  member_norm: series("norm/*") + 1
record: [{name}]
controllers: []
"""
    with pytest.raises(PolicyError) as refused:
        parse_policy(text, source="p.yaml")

    assert said in str(refused.value)
    assert "p.yaml:8:10: record" in str(refused.value)


# --- replay ----------------------------------------------------------------------------------------------------------


def test_a_replay_of_other_rules_does_not_see_what_a_run_recorded(tmp_path: Path) -> None:
    """A family of all metrics has the loop's own alone."""
    run = recorded(tmp_path, [0.5, 3.0])
    others = parse_policy(
        "controllers:\n  - {name: all, triggers: [on_step_end], rule: count('*') >= 1, operations: []}\n"
    )

    outcomes = [each.outcome for each in replay(others, run).outcomes]

    assert [dict(each.values) for each in outcomes if isinstance(each, Decision)] == [{"count('*')": 1.0}] * 2


def test_a_replay_computes_what_the_file_at_hand_records(tmp_path: Path) -> None:
    """The same as live under the same file, and what another file lists under another one."""
    run = recorded(tmp_path, [0.5, 1.0, 3.0])
    other = parse_policy("define: {half: loss / 2}\nrecord: [half]\ncontrollers: []\n")

    again = derived_values(load_policy(file_of(tmp_path)), run)

    assert [(each.step, dict(zip(each.names, each.values, strict=True)), each.classes) for each in again] == derived(
        run
    )
    assert [(each.names, each.values) for each in derived_values(other, run)] == [
        (("derived/half",), (0.25,)),
        (("derived/half",), (0.5,)),
        (("derived/half",), (1.5,)),
    ]


def test_the_command_prints_what_a_file_records_of_a_run(tmp_path: Path) -> None:
    """As a table, as JSON lines, or that there is nothing to print."""
    run = recorded(tmp_path, [0.0, 3.0])
    rules = str(file_of(tmp_path))

    lines = call("replay", rules, str(run.folder), "--record", "--json").stdout.splitlines()
    table = call("replay", rules, str(run.folder), "--record").stdout.splitlines()
    nothing = call("replay", "loss_spike", str(run.folder), "--record")

    assert json.loads(lines[0]) == {
        "step": 1,
        "epoch": None,
        "values": {"derived/ppl": 1.0, "derived/phase": 0.0},
        "classes": {"phase": "calm"},
    }
    assert table[-1].split() == ["2", "20.0855", "1", "3", "wild"]
    assert "the rule file records nothing" in nothing.stderr


def test_verify_finds_a_derived_value_that_was_changed(tmp_path: Path) -> None:
    """One value of a sealed file, rewritten as valid Parquet: both values are shown."""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path)) as rec:
        for loss in (0.0, 1.0, 0.0):
            rec.step(loss=loss)
    rec.close(seal=True)
    (path,) = rec.folder.glob("events-*.parquet")
    table = pq.read_table(path)
    changed = pc.if_else(pc.equal(table["derived/rise"], -1.0), 7.0, table["derived/rise"])
    pq.write_table(table.set_column(table.column_names.index("derived/rise"), "derived/rise", changed), path)

    difference = verify(open_run(rec.folder)).difference

    assert difference is not None
    assert difference.place == "the derived values of step 3 of attempt 0"
    assert difference.to_json()["recorded"] == json.dumps({"derived/rise": 7.0})
    assert difference.to_json()["replayed"] == json.dumps({"derived/rise": -1.0})


def test_verify_finds_a_derived_value_that_the_rules_do_not_record(tmp_path: Path) -> None:
    """The text of the rule file in ``run.json`` was changed in what it records, which its digest does not cover."""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path)) as rec:
        for loss in (0.5, 1.0, 3.0):
            rec.step(loss=loss)
    rec.close(seal=True)
    path = rec.folder / "run.json"
    document = json.loads(path.read_text())
    policy = document["attempts"][0]["policy"]
    policy["text"] = policy["text"].replace("record: [ppl, rise, phase]", "record: [rise, phase]")
    path.write_text(json.dumps(document))

    difference = verify(open_run(rec.folder)).difference

    assert difference is not None
    assert difference.place == "the derived values of step 1 of attempt 0"
    assert difference.to_json()["recorded"] == json.dumps({"derived/ppl": math.exp(0.5)})


def test_a_run_that_is_killed_between_a_step_and_its_derived_values_verifies(tmp_path: Path) -> None:
    """The log is cut by hand behind each of its events, as a kill may cut it."""
    program = f"""
import os, signal
from steptape import Recorder
rec = Recorder({str(tmp_path / "runs")!r}, rules={str(file_of(tmp_path))!r}, run_id="killed", quiet=True)
for loss in (0.5, 3.0):
    rec.step(loss=loss)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env={**os.environ})
    folder = tmp_path / "runs" / "killed"
    (journal,) = folder.glob("journal-*")
    whole = journal.read_bytes()

    assert done.returncode == -signal.SIGKILL
    for length in range(len(whole), len(whole) - 260, -13):
        journal.write_bytes(whole[:length])
        assert verify(open_run(folder)).identical


def test_a_resumed_run_goes_on_and_verifies(tmp_path: Path) -> None:
    """The second attempt knows the class and the last loss of the first, so it names no class anew."""
    rules = file_of(tmp_path)
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for loss in (0.5, 3.0, 4.0):
            rec.step(loss=loss)
            if loss == 3.0:
                state = rec.state_dict()
    with Recorder(tmp_path / "runs", rules=rules, resume=state) as again:
        again.step(loss=3.5)
    run = open_run(again.folder)

    assert curve(run, "rise") == [(2, 2.5), (3, 0.5)]
    assert [classes for _, _, classes in derived(run)] == [{"phase": "calm"}, {"phase": "wild"}, {}]
    assert verify(run).identical


def test_values_that_come_late_are_derived_when_they_are_there(tmp_path: Path) -> None:
    """At the step that they are of; and a definition that does not wait is not held up."""
    text = """
define:
  ppl: exp(loss)
  half: lr / 2
record: [ppl, half]
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: []}
"""
    with Recorder(tmp_path / "runs", rules=file_of(tmp_path, text)) as rec:
        for step in (1, 2, 3):
            rec.step(lr=1.0, awaits=["loss"])
            if step > 1:
                rec.late(step - 1, loss=0.0)
    run = open_run(rec.folder)

    assert [(event.step, event.value_lag, dict(event.metrics)) for event in run.events() if event.kind == DERIVED] == [
        (1, 0, {"derived/half": 0.5}),
        (2, 0, {"derived/half": 0.5}),
        (1, 1, {"derived/ppl": 1.0}),
        (3, 0, {"derived/half": 0.5}),
        (2, 1, {"derived/ppl": 1.0}),
    ]
    assert verify(run).identical


def test_rank_0_alone_derives(tmp_path: Path) -> None:
    """Its rules are those that decide."""
    for rank in (0, 1):
        ranks = Ranks(rank=rank, world_size=2)
        with Recorder(tmp_path / "runs", rules=file_of(tmp_path), run_id="two", ranks=ranks, quiet=True) as rec:
            rec.step(loss=0.5 + rank)
    run = open_run(tmp_path / "runs" / "two")

    assert curve(run, "ppl") == [(1, math.exp(0.5))]
    assert [event for event in run.events(rank=1) if event.kind == DERIVED] == []


LOSSES = st.sampled_from([0.0, 0.5, 1.0, 2.5, 1e300, math.inf, -1.0, math.nan])


@examples(25)
@given(
    forms=st.lists(st.sampled_from(FORMS), min_size=1, max_size=4),
    function=st.sampled_from(REDUCTIONS),
    losses=st.lists(st.tuples(LOSSES, LOSSES), min_size=3, max_size=14),
    late=st.booleans(),
    cut=st.integers(1, 6),
)
def test_what_is_derived_live_is_derived_in_replay(
    forms: Sequence[str],
    function: str,
    losses: Sequence[tuple[float, float]],
    late: bool,
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of all forms of the language, with late values and a resume from any step."""
    folder = tmp_path_factory.mktemp("drawn")
    named = {f"d{i}": form.format(function=function, series="loss") for i, form in enumerate(forms)}
    text = json.dumps(
        {
            "params": {"window": 3, "threshold": 1.0},
            "define": {
                **named,
                "clean": {"value": "loss", "admit": 'not fired_now("high")'},
                "level": "mean(clean, 3)",
            },
            "states": {"phase": [{"low": "loss < 1"}, {"up": "loss > lag(loss, 1)"}, {"high": "True"}]},
            "record": [*named, "level", "phase"],
            "controllers": [{"name": "high", "triggers": ["on_step_end"], "rule": "loss > acc", "operations": []}],
        }
    )
    rules = file_of(folder, text)
    with Recorder(folder / "runs", rules=rules, quiet=True) as rec:
        state = rec.state_dict()
        for step, (loss, acc) in enumerate(losses, start=1):
            rec.step(acc=acc, awaits=["loss"]) if late else rec.step(loss=loss, acc=acc)
            if late and step > 1:
                rec.late(step - 1, loss=losses[step - 2][0])
            if step == cut:
                state = rec.state_dict()
    with Recorder(folder / "runs", rules=rules, resume=state, quiet=True) as again:
        for loss, acc in losses:
            again.step(loss=loss, acc=acc)

    verdict = verify(open_run(again.folder))

    assert verdict.identical, verdict
