"""A backtest reuses cached results as long as nothing has changed, and no longer."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Policy, backtest, open_run
from steptape.replay.backtests.backtesting import Backtest
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.policy_diff import diff_policies
from steptape.replay.cache import Cache
from steptape.replay.runs.incidents import Incident, IncidentLabels
from steptape.replay.runs.run_result import ReplayedRun, facts_of_run
from steptape.replay.value_encoding import ValueCodec
from steptape.rules.policy_file.metrics import Metric
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.policy_file.registration import register_metric
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run import Run

STOP = """
params: {limit: 2.0}
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_training_stop]}
  - {name: odd, triggers: [on_evaluate], rule: eval_loss > 0 or 1 / 0 > 0, operations: [hfcontrols.should_save]}
"""


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at a high loss; its second rule fails if an evaluation is not positive."""
    return parse_policy(STOP)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path / "cache")


@pytest.fixture
def runs(store_record: Callable[..., Path]) -> list[Run]:
    """Finished runs with every kind of value, one of them empty."""
    made = []
    for number in range(3):
        events = [Event("train_begin")]
        for step in range(1, 30):
            loss = {7: math.nan, 9: math.inf, 20 + number: 3.0}.get(step, -0.0)
            at: dict[str, Any] = {"step": step, "elapsed_ns": step * 10**9, "epoch": step / 10}
            events.append(Event("step_end", metrics={"loss": loss}, **at))
            if step % 5 == 0:
                events.append(Event("evaluate", metrics={"eval_loss": 1.0 / step, "other": -math.inf}, **at))
                events.append(Event("save", attrs={"size_bytes": 2**60}, **at))
        events.append(Event("evaluate", step=29, metrics={"eval_loss": -1.0}))
        note = {"text": "π 😀", "incident": "bad", "first_step": 19, "last_step": 23}
        events.append(Event("annotation", step=29, attrs=note))
        made.append(open_run(store_record(events, run_id=f"run-{number}", sealed=True)))
    return [*made, open_run(store_record([Event("train_begin")], run_id="run-empty", sealed=True))]


def asked(policy: Policy, runs: list[Run], cache: Cache | None, **settings: Any) -> Backtest:
    """Run a backtest with every part that reads runs."""
    return backtest(policy, runs, baselines=list(BASELINES.values()), with_coverage=True, cache=cache, **settings)


def test_a_second_backtest_equals_the_first_and_reads_nothing(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """All fields are equal, compared as text because NaN is unequal to itself."""
    plain, first, second = asked(policy, runs, None), asked(policy, runs, cache), asked(policy, runs, cache)

    assert repr(second.results) == repr(first.results) == repr(plain.results)
    assert (second.baselines, second.coverage) == (plain.baselines, plain.coverage)
    assert second.excluded == plain.excluded != ()
    assert first.read_events == plain.read_events > 0
    assert second.read_events == 0


def test_facts_are_written_and_read_exactly(policy: Policy, runs: list[Run]) -> None:
    """The decoded value holds the given policy, not a copy of it."""
    codec = ValueCodec(ReplayedRun, given=policy)
    facts = facts_of_run(policy, runs[0])
    again = codec.decoded(codec.encoded(facts))

    assert repr(again) == repr(facts)
    assert again.replayed.policy is policy
    assert facts.replayed.error_counts == {"odd": 1}


def test_only_new_runs_are_read(
    policy: Policy, runs: list[Run], cache: Cache, store_record: Callable[..., Path], store_steps: Any
) -> None:
    """Tomorrow's store is today's plus one run."""
    backtest(policy, runs, cache=cache)
    new = open_run(store_record(store_steps([1.0] * 7), run_id="run-new", sealed=True))

    assert backtest(policy, [*runs, new], cache=cache).read_events == 7


def test_another_policy_or_another_param_is_asked_anew(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """Another spelling of the same rule misses too, because decisions quote it."""
    asked(policy, runs, cache)

    for text, params in ((STOP, {"limit": 9.0}), (STOP.replace("loss > limit", "loss  >  limit"), {})):
        other = parse_policy(text, params=params)
        assert repr(backtest(other, runs, cache=cache).results) == repr(backtest(other, runs).results)
        assert backtest(other, runs[:1], cache=cache).read_events == 0
    assert backtest(parse_policy(STOP, source="elsewhere.yaml"), runs, cache=cache).read_events > 0


def test_other_labels_or_another_delay_are_asked_anew(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """Labels of other runs make no difference."""
    label = [Incident(5, 8, "mine")]
    backtest(policy, runs[:1], cache=cache, labels=IncidentLabels({"run-0": label}))

    assert backtest(policy, runs[:1], cache=cache, labels=IncidentLabels({"run-0": label, "x": label})).read_events == 0
    assert backtest(policy, runs[:1], cache=cache, labels=IncidentLabels({"run-0": [Incident(5, 9)]})).read_events > 0
    assert backtest(policy, runs[:1], cache=cache, delay_steps=2).read_events > 0
    assert backtest(policy, runs[:1], cache=cache, tolerance_steps=1).read_events > 0


def test_a_run_that_was_touched_is_read_anew(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """The log was overwritten in place, or run.json has changed."""
    backtest(policy, runs, cache=cache)
    (file,) = runs[0].folder.glob("events-*.parquet")
    os.utime(file, ns=(1, 1))
    told = runs[1].folder / "run.json"
    told.write_text(told.read_text().replace('"run-1"', '"run-1" '))

    assert backtest(policy, runs[:1], cache=cache).read_events > 0
    assert backtest(policy, runs[1:2], cache=cache).read_events > 0
    assert backtest(policy, runs[2:], cache=cache).read_events == 0


def test_a_note_that_was_added_later_is_seen(
    policy: Policy, runs: list[Run], cache: Cache, store_append: Callable[..., int]
) -> None:
    """It is seen even before it is sealed."""
    backtest(policy, runs[:1], cache=cache)
    writer = JournalWriter(runs[0].folder, run_id="run-0", attempt=0, rank=1)
    store_append(writer, Event("annotation", attrs={"text": "later"}))
    writer.close()

    assert backtest(policy, runs[:1], cache=cache).read_events > 0
    seal(runs[0].folder)
    assert backtest(policy, runs[:1], cache=cache).read_events > 0
    assert backtest(policy, runs[:1], cache=cache).read_events == 0


def test_a_run_that_may_go_on_is_never_kept(
    policy: Policy, cache: Cache, store_record: Callable[..., Path], store_steps: Any
) -> None:
    """It has no digest."""
    run = open_run(store_record(store_steps([1.0, 3.0])))
    backtest(policy, [run], cache=cache)

    assert backtest(policy, [run], cache=cache).read_events == 2


def test_metrics_of_others_are_computed_anew(runs: list[Run], cache: Cache) -> None:
    """Their code is in no digest and may change."""

    @register_metric
    class CachedNowhere(Metric):
        """Count steps."""

        kinds = reads = frozenset({"step_end"})

        def compute(self, event: Event) -> int:
            return event.step

    policy = parse_policy("""
controller_metrics: [{name: count, class: CachedNowhere}]
controllers: [{name: stop, triggers: [on_step_end], rule: count > 5, operations: [hfcontrols.should_save]}]
""")
    backtest(policy, runs, cache=cache)

    assert backtest(policy, runs, cache=cache).read_events > 0


@pytest.mark.parametrize("damage", [b"", b"steptape cache 1\n", b"cut", b"flipped", b"foreign"])
def test_a_damaged_entry_is_none(policy: Policy, runs: list[Run], cache: Cache, damage: bytes) -> None:
    """It is dropped and recomputed."""
    plain = backtest(policy, runs[:2], cache=cache)
    entries = sorted(cache.folder.iterdir())
    contents = [entry.read_bytes() for entry in entries]
    for entry, content, other in zip(entries, contents, reversed(contents), strict=True):
        flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        entry.write_bytes({b"cut": content[:-1], b"flipped": flipped, b"foreign": other}.get(damage, damage))

    again = backtest(policy, runs[:2], cache=cache)

    assert repr(again.results) == repr(plain.results)
    assert again.read_events == plain.read_events
    assert sorted(entry.read_bytes() for entry in cache.folder.iterdir()) == sorted(contents)


def test_the_oldest_entries_go_when_there_are_too_many(policy: Policy, runs: list[Run], tmp_path: Path) -> None:
    """The most recently used entries are kept."""
    roomy = Cache(tmp_path / "cache")
    for number, run in enumerate(runs[:3]):
        backtest(policy, [run], cache=roomy)
        for entry in roomy.folder.iterdir():
            if entry.stat().st_mtime_ns > 10**18:
                os.utime(entry, ns=(number, number))
    assert backtest(policy, runs[:1], cache=roomy).read_events == 0
    size = max(entry.stat().st_size for entry in roomy.folder.iterdir())

    Cache(roomy.folder, limit_bytes=2 * size).prune()

    assert backtest(policy, [runs[0], runs[2]], cache=roomy).read_events == 0
    assert backtest(policy, [runs[1]], cache=roomy).read_events > 0


def test_several_may_write_at_once(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """All threads find the same results, and no partial file remains."""
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(repr(backtest(policy, runs, cache=cache).results)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 6
    assert len(set(found)) == 1
    assert [entry.suffix for entry in cache.folder.iterdir()] == [".entry"] * len(runs)


def test_nothing_is_written_where_nothing_can_be(policy: Policy, runs: list[Run], tmp_path: Path) -> None:
    """An impossible cache folder disables the cache, and a store is never written to."""
    (tmp_path / "file").write_text("")
    before = {path: path.stat().st_mtime_ns for path in runs[0].folder.parent.rglob("*")}
    report = backtest(policy, runs, cache=Cache(tmp_path / "file" / "cache"))

    assert repr(report.results) == repr(backtest(policy, runs).results)
    assert {path: path.stat().st_mtime_ns for path in runs[0].folder.parent.rglob("*")} == before


def test_a_comparison_finds_what_a_backtest_has_kept(policy: Policy, runs: list[Run], cache: Cache) -> None:
    """The old policy was judged before. Neither keeps curves, which only a page draws."""
    backtest(policy, runs, cache=cache, with_curves=False)
    never = parse_policy(STOP.replace("loss > limit", "loss > limit and step < 5"))
    found = diff_policies(policy, never, runs, cache=cache)

    assert (found.old.read_events, found.new.read_events > 0) == (0, True)
    assert len(found.changed) == 3
