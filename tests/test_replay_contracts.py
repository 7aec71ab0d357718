"""The twelve contracts of a replay, one test each, under their established names; sweeps have further tests."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from shipped_rules import RuleFiles

from steptape import Policy, Recorder, open_run, verify
from steptape.replay.columns.variant_firings import RunFirings, batches_of
from steptape.replay.columns.variants import variants_of
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.judging import RunBackground, judge_stream
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.replaying import replay
from steptape.replay.sweeps.outcomes import Outcomes, outcomes_of_results
from steptape.replay.sweeps.variant_outcomes import sweep_stream
from steptape.rules.engine.decisions import canonical_line
from steptape.rules.engine.engine import Engine, resumed_engine
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import run_test
from steptape.store.events import Event
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run import Run
from steptape.store.run_info import Attempt, PolicyRecord
from streams_of_events import stream_of_events

ROOT = Path(__file__).parents[1]

#: Windows, patience, timing and memory of every kind, whose outcome must not depend on how events are fed.
EVERYTHING = """
params: {spike: 1.5}
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, 5)
    operations: [hfcontrols.should_log]
  - name: patient
    triggers: [on_step_end]
    rule: slope(loss, 4) > 0 or not isfinite(loss)
    for: 3
    operations: [hfcontrols.should_save]
  - name: slow
    triggers: [on_step_end, on_log]
    rule: ema(loss, 4) > 2
    cooldown: 3
    operations: [hfcontrols.should_log]
  - name: once
    triggers: [on_evaluate]
    rule: eval_loss > min(eval_loss, 9)
    once: true
    operations: [hfcontrols.should_save]
  - name: chained
    triggers: [on_step_end]
    rule: times_fired('spike') > 0 and std(loss, 70) > 0.5
    operations: [hfcontrols.should_log]
  - name: fails
    triggers: [on_step_end]
    rule: 1 / (loss - 1) > 30
    operations: [hfcontrols.should_log]
  - name: stop
    triggers: [on_evaluate]
    rule: eval_loss > 4
    mode: shadow
    operations: [hfcontrols.should_training_stop]
"""
POLICIES = RuleFiles(everything=EVERYTHING)

_number = st.one_of(st.floats(0, 10), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 1e17]))
_streams = st.lists(st.tuples(st.sampled_from(["step_end", "step_end", "log", "evaluate"]), _number), max_size=50)


def stream_of(drawn: Sequence[tuple[str, float]], rank: int = 0) -> list[Event]:
    """Return drawn kinds and values as the events of one rank."""
    events = []
    step = 0
    for seq, (kind, value) in enumerate(drawn):
        step += kind == "step_end"
        name = "eval_loss" if kind == "evaluate" else "loss"
        metrics = {name: value, "grad_norm": value * 2}
        events.append(Event(kind, step=step, seq=seq, rank=rank, epoch=step / 7, metrics=metrics))
    return events


def outcomes_at(policy: Policy, events: Sequence[Event]) -> list[tuple[int, str]]:
    """Return the outcomes of a replay: index of the event, and every exact field of the outcome."""
    return [(entry.event_index, canonical_line(entry.outcome)) for entry in replay(policy, events).outcomes]


def record(store: Path, policy: Policy | None = None, steps: int = 120) -> Run:
    """Record a live run that gives most of the rules an outcome."""
    draw = random.Random(7)
    with Recorder(store, rules=policy or POLICIES["everything"], log_every=10) as rec:
        for step in range(1, steps + 1):
            rec.step(loss=math.nan if step == 50 else 2 + math.sin(step / 9) + draw.random() + 4 * (step % 37 == 0))
            if step % 10 == 0:
                rec.evaluate(eval_loss=5 - step / 40 + draw.random())
    return open_run(rec.folder)


def lines(engine: Engine, events: Sequence[Event]) -> list[str]:
    """Return an engine's outcomes on events, each as its canonical line."""
    return [canonical_line(outcome) for event in events for outcome in engine.observe(event)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Such a run, sealed. Tests must not change it."""
    return record(tmp_path_factory.mktemp("contracts") / "runs")


@pytest.mark.parametrize("name", POLICIES)
@given(drawn=_streams)
@examples(7)
def test_prefix(name: str, drawn: list[tuple[str, float]]) -> None:
    """For every event, a replay of the prefix up to it has the same decisions."""
    events = stream_of(drawn)
    whole = outcomes_at(POLICIES[name], events)

    for end in range(len(events) + 1):
        assert outcomes_at(POLICIES[name], events[:end]) == [entry for entry in whole if entry[0] < end]


#: Values that replace the future.
POISONS: dict[str, Callable[[random.Random], float]] = {
    "NaN": lambda _: math.nan,
    "infinity": lambda _: math.inf,
    "zero": lambda _: 0.0,
    "huge": lambda _: -1e17,
    "noise": lambda draw: draw.uniform(0, 10),
}


def rough_stream() -> list[Event]:
    """Return sixty events that give every rule of the policy above an outcome, early and late."""
    draw = random.Random(11)
    kinds = ["step_end", "step_end", "log", "evaluate"]
    return stream_of([(kinds[i % 4], draw.choice([1.0, 1.01, 2.0, 3.0, 6.0, math.nan])) for i in range(60)])


@pytest.mark.parametrize("name", POLICIES)
def test_poison(name: str) -> None:
    """Replacing everything after an event by any values changes no decision up to it. The poisons take turns."""
    events, draw = rough_stream(), random.Random(5)
    whole = outcomes_at(POLICIES[name], events)

    for cut, poison in zip(range(len(events)), itertools.cycle(POISONS.values()), strict=False):
        poisoned = [
            event._replace(metrics={metric: poison(draw) for metric in event.metrics}) for event in events[cut:]
        ]
        found = outcomes_at(POLICIES[name], [*events[:cut], *poisoned])
        assert [entry for entry in found if entry[0] < cut] == [entry for entry in whole if entry[0] < cut]
    assert name != "everything" or len(whole) > 20


@pytest.mark.parametrize("name", POLICIES)
@given(drawn=_streams, cut=st.integers(0, 50))
@examples(20)
def test_warm_start(name: str, drawn: list[tuple[str, float]], cut: int) -> None:
    """An engine restored by folding the preceding events continues like one that never stopped."""
    events = stream_of(drawn)
    engine = Engine(POLICIES[name], Plan())
    engine.start()
    for event in events[:cut]:
        engine.observe(event)
    policy = POLICIES[name]
    ancestor = Attempt(
        0, "crashed", 0, policy=PolicyRecord(policy.digest, policy.source, policy.text, {}, SEMANTICS_VERSION)
    )

    warm = resumed_engine(policy, Plan(), [(ancestor, events[:cut])])

    assert lines(warm, events[cut:]) == lines(engine, events[cut:])


@given(drawn=_streams, seed=st.integers(0, 1000))
@examples(30)
def test_interleaving(drawn: list[tuple[str, float]], seed: int) -> None:
    """Decisions are the same for any interleaving of ranks that keeps each rank's order."""
    ranks = [stream_of(drawn), stream_of(drawn[::-1], rank=1), stream_of(drawn[: len(drawn) // 2], rank=2)]
    order = [rank for rank, events in enumerate(ranks) for _ in events]
    random.Random(seed).shuffle(order)
    waiting = [iter(events) for events in ranks]
    arrived = [next(waiting[rank]) for rank in order]

    assert outcomes_at(POLICIES["everything"], arrived) == outcomes_at(POLICIES["everything"], ranks[0])


@pytest.mark.parametrize("segment_bytes", [600, 4_096, 1 << 24])
def test_chunking(run: Run, store_record: Callable[..., Path], segment_bytes: int) -> None:
    """Segments of few events or of all, as journal, sealed or merged, give the same events and decisions."""
    events = list(run.events())
    expected = outcomes_at(POLICIES["everything"], events)

    folder = store_record(events, segment_bytes=segment_bytes)
    as_journal = outcomes_at(POLICIES["everything"], list(open_run(folder).events()))
    seal(folder)
    as_parquet = outcomes_at(POLICIES["everything"], list(open_run(folder).events()))

    assert as_journal == as_parquet == expected


VERIFY = """
import os, sys
if sys.argv[2] == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from steptape import open_run
from steptape import verify
run = open_run(sys.argv[1])
rows = run.sql("SELECT seq, controller, operations, values FROM decisions ORDER BY attempt, rank, seq").to_pylist()
verdict = verify(run)
assert verdict.identical, verdict
print(verdict.digest, verdict.log_digest, rows)
"""


def test_live_equals_replay(run: Run) -> None:
    """The recorded digest equals that of a replay, in any process, with any hash seed and any number of cores.

    DuckDB uses as many threads as there are cores.
    """
    told = set()
    for seed, cores in (("0", "all cores"), ("1", "one core"), ("random", "all cores")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", VERIFY, str(run.folder), cores]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        told.add(result.stdout)

    (text,) = told
    assert text.startswith(f"{run.info.last.decision_digest} {run.log_digest} ")
    assert text.count("'seq'") > 10


#: Two rules that decide, one of them also failing, on values of few bytes.
TERSE = """
controllers:
  - {name: fails, triggers: [on_step_end], rule: 1 / loss > 2, operations: []}
  - {name: high, triggers: [on_step_end], rule: loss > 1, operations: []}
"""


def test_crash(tmp_path: Path) -> None:
    """Cut the log at every byte: the rest is verified, and no rule has decided twice at an event.

    A truncated record does not count, so the outcomes of two cuts differ only at record boundaries.
    """
    with Recorder(tmp_path / "live", rules=parse_policy(TERSE)) as rec:
        for loss in (2.0, 0.0, 0.25):
            rec.step(loss=loss)
        copied = Path(shutil.copytree(rec.folder, tmp_path / "cut" / rec.folder.name))
    (journal,) = copied.glob("journal-*")
    content = journal.read_bytes()
    whole = verify(open_run(copied)).outcomes
    told = []
    for length in range(len(content) + 1):
        journal.write_bytes(content[:length])

        run = open_run(copied)
        verdict = verify(run)
        decided = Counter(
            (event.kind, event.attrs["controller"], event.attrs["event_seq"])
            for event in run.events()
            if "event_seq" in event.attrs
        )

        assert verdict.identical, (length, verdict)
        assert max(decided.values(), default=1) == 1
        told.append(verdict.outcomes)
    assert whole >= 3
    assert sorted(set(told)) == list(range(whole + 1))
    assert told == sorted(told)
    assert told[-1] == whole


INERT = """
import json, resource, sys

seen = []
REACHING_OUT = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename", "os.mkdir",
    "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime", "shutil.", "urllib.", "webbrowser.",
)

def hook(event, arguments):
    if event.startswith(REACHING_OUT):
        seen.append([event, str(arguments[:1])])
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append([event, str(arguments[0])])

sys.dont_write_bytecode = True
from steptape import backtest, sweep, verify
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.reports.diff import diff_lines, diff_policies
from steptape.replay.reports.page import report_page
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.operations import Operation
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.policy_file.operations import register_operation
from steptape import open_store

@register_operation
class Actuator(Operation):
    def __init__(self, arguments):
        raise SystemExit("an operation was made")
    def should_act(self, decision):
        raise SystemExit("an operation was called")

text = open(sys.argv[2]).read()
policies = parse_policy(text), parse_policy(text.replace("limit: 3", "limit: 2"))
sys.addaudithook(hook)
# No file can be written by this process, in whatever language the writer is.
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
runs = list(open_store(sys.argv[1]))
decisions = sum(len(replay(policy, run).decisions) for policy in policies for run in runs)
assert all(verify(run).identical for run in runs)
lines = diff_lines(diff_policies(*policies, runs))
judged = summarize(backtest(policies[0], runs, baselines=list(BASELINES.values()), with_coverage=True))
report = json.dumps(report_json(judged)) + report_page(judged)
swept = len(sweep(policies[0], {"limit": [2.0, 3.0]}, runs).runs)
told = {"decisions": decisions, "seen": seen, "lines": len(lines), "report": len(report), "swept": swept}
print(json.dumps(told))
"""

ACTING = """
params: {limit: 3}
operations:
  - {name: hand, class: Actuator}
  - {name: note, class: LogControl, arguments: {log_format: "{control_name}", log_level: error}}
controllers:
  - {name: act, triggers: [on_step_end], rule: loss > limit, operations: [hand.should_act, note.should_log]}
  - name: end
    triggers: [on_evaluate]
    rule: eval_loss > 0
    operations: [hfcontrols.should_training_stop, hfcontrols.should_save]
"""


def test_inert_replay(run: Run, tmp_path: Path) -> None:
    """Replays of all kinds reach no socket, process, file or operation, and leave the store unchanged."""
    policy = tmp_path / "acting.yaml"
    policy.write_text(ACTING)
    before = contents(run.folder.parent)

    command = [sys.executable, "-c", INERT, str(run.folder.parent), str(policy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout)
    assert told["seen"] == []
    assert told["decisions"] > 10
    assert told["lines"] > 3
    assert told["report"] > 20_000
    assert told["swept"] == 1
    assert contents(run.folder.parent) == before


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Return digest and mtime of every file."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


#: Whatever depends on more than policy and events: clocks, randomness, addresses, hashes of texts.
IMPURE_MODULES = {"time", "datetime", "random", "secrets", "uuid", "os", "threading", "multiprocessing", "socket"}
IMPURE_CALLS = {"id", "hash", "input", "open"}

#: A policy can be a key of a dictionary; no rule sees its hash.
EXCUSED = {("policy.py", "hash")}


def impurities(path: Path) -> Iterator[str]:
    """Yield the lines of a module that could make a decision depend on anything but policy and events."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names) if {name.name.split(".")[0] for name in names} & IMPURE_MODULES:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in IMPURE_MODULES:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS and (path.name, name) not in EXCUSED:
                yield f"{path.name}:{node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "math"), attr="sum" | "mean" | "fsum" | "dot")):
                yield f"{path.name}:{node.lineno}: adds floats in an order that is not told"
            case ast.For(iter=over) | ast.comprehension(iter=over) if is_set(over):
                yield f"{path.name}:{over.lineno}: iterates over a set"


def is_set(node: ast.expr) -> bool:
    """Whether an expression is syntactically a set."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
    return False


@pytest.mark.parametrize("path", sorted((ROOT / "rules").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_static_lint(path: Path) -> None:
    """Modules that evaluate rules use no clock, randomness, set order or sum of undefined order."""
    assert list(impurities(path)) == []


def test_static_lint_finds_what_it_looks_for(tmp_path: Path) -> None:
    """It finds each kind."""
    path = tmp_path / "bad.py"
    path.write_text("import time\nfrom random import choice\nfor x in {1, 2}: np.sum(hash(x))\n")

    assert len(list(impurities(path))) == 5


def test_fault_isolation(tmp_path: Path) -> None:
    """A failing rule is undefined there, reported once with its count, and stays armed; the training continues."""
    with Recorder(tmp_path, rules=POLICIES["everything"]) as rec:
        for loss in (1.0, 1.0, 1.01, 1.0):
            rec.step(loss=loss)
    events = list(open_run(rec.folder).events())

    errors = [event for event in events if event.kind == "rule_error" and event.attrs["controller"] == "fails"]
    fired = [event.step for event in events if event.kind == "decision" and event.attrs["controller"] == "fails"]
    assert (len(errors), fired, open_run(rec.folder).info.last.steps) == (1, [3], 4)
    assert next(event for event in events if event.kind == "train_end").attrs["rule_errors"] == {"fails": 3}


SCENARIO = """policy: policy.yaml
tests:
  - name: a fall, a climb, a gap, and a NaN at the end
    series: {loss: "1-0.1x20 _ nan"}
    expect:
      - {step: STEP, controller: nan, operations: [hfcontrols.should_save]}
"""


@pytest.mark.parametrize(("step", "passes"), [(22, True), (21, False)])
def test_rule_unit_tests(step: int, passes: bool, tmp_path: Path) -> None:
    """A series in a compact notation, with a gap and a NaN, leads to the expected decisions and no others."""
    controller = "{name: nan, triggers: [on_step_end], rule: not isfinite(loss), operations: [hfcontrols.should_save]}"
    (tmp_path / "policy.yaml").write_text(f"controllers: [{controller}]")
    (test,) = parse_tests(SCENARIO.replace("STEP", str(step)), source=str(tmp_path / "policy.test.yaml"))

    assert run_test(test).passes is passes


#: The axes: a window and its threshold, patience, and a second condition that some variants never satisfy.
SWEPT = """
params: {spike: 1.5, window: 4, tolerated: 1, floor: 0.5}
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, window) and loss > floor
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
  - name: note
    triggers: [on_evaluate, on_log]
    rule: slope(loss, window) > 0 or eval_loss > spike
    cooldown: 3
    operations: [hfcontrols.should_save]
"""
AXES: dict[str, list[float]] = {
    "spike": [0.5, 1.0, 1.5, math.inf],
    "window": [1, 4],
    "tolerated": [0, 2],
    "floor": [0.0, 2.0],
}


@given(drawn=_streams.filter(bool))
@examples(12)
def test_sweep_equals_engine(drawn: list[tuple[str, float]]) -> None:
    """Columns and event engine agree for every variant: the same decisions at the same events, the same numbers."""
    events = stream_of(drawn)
    objective = declared_objective("eval_loss", "min")
    variants = variants_of(parse_policy(SWEPT), AXES)
    columns = RunFirings(stream_of_events(events, Plan()), lambda: event_stream(events))
    background, recorded = RunBackground(status="completed"), event_stream(events)
    judged = judge_stream((variant.policy() for variant in variants), background, recorded, objective)

    swept = sweep_stream(batches_of(variants), recorded, background, objective)
    outcomes = swept.outcomes.of_each()

    assert len(variants) == 32
    assert not columns.reasons
    for variant in variants:
        engine = replay(variant.policy(), events).decisions
        assert sorted(
            (index, found.controller) for found in columns.firings(variant) for index in found.events.tolist()
        ) == sorted((entry.event_index, entry.outcome.controller) for entry in engine)
    expected = outcomes_of_results(judged)
    for field in fields(Outcomes):
        assert repr(getattr(outcomes, field.name).tolist()) == repr(getattr(expected, field.name).tolist()), field.name
