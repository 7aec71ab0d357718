"""Backtests, sweeps and imports use a pool that the caller gives; blocks of a pool elsewhere keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import Policy, TelemetryError, backtest, open_store, sweep
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.run_pool import BLOCK_S, Blocks, Progress, RunPool
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

_Answer = TypeVar("_Answer")
_Asked = TypeVar("_Asked")

RUNS = 4


class Counting:
    """A pool that computes here and counts.

    Attributes:
        mapped_count: Results that it computed.
        open_count: How often it is entered now.
    """

    def __init__(self) -> None:
        self.mapped_count = self.open_count = 0

    def __enter__(self) -> Self:
        self.open_count += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.open_count -= 1

    def mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        """Yield the results in order, while the pool is open."""
        for one in asked:
            assert self.open_count
            self.mapped_count += 1
            yield function(one)


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first loss above a limit."""
    return parse_policy("""
params: {limit: 2.0}
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_training_stop]}
""")


@pytest.fixture
def store(store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]) -> Path:
    """Some runs."""
    for number in range(RUNS):
        folder = store_record(store_steps([1.0] * number + [3.0, 1.0]), run_id=f"run-{number}", sealed=True)
    return folder.parent


def test_a_backtest_in_a_given_pool_is_the_one_here(policy: Policy, store: Path) -> None:
    """The pool is open while runs are read, and the progress counts each."""
    pool, seen = Counting(), list[Progress]()
    there = backtest(policy, open_store(store), pool=pool, on_progress=seen.append)

    assert there == backtest(policy, open_store(store))
    assert seen == [Progress(done, RUNS) for done in range(1, RUNS + 1)]
    assert (pool.mapped_count, pool.open_count) == (RUNS, 0)


def test_a_sweep_in_a_given_pool_is_the_one_here(policy: Policy, store: Path) -> None:
    """However little work it is."""
    pool, axes = Counting(), {"limit": [0.5, 2.0]}
    there = sweep(policy, axes, open_store(store), pool=pool)

    assert there.runs_frame().equals(sweep(policy, axes, open_store(store)).runs_frame())
    assert (pool.mapped_count, pool.open_count) == (RUNS, 0)


def test_a_pool_of_processes_serves_several_backtests(policy: Policy, store: Path) -> None:
    """It starts its processes again."""
    pool, here = RunPool(2), backtest(policy, open_store(store))

    assert [backtest(policy, open_store(store), pool=pool) for _ in range(2)] == [here] * 2


def _logs(folder: Path) -> Path:
    for number in range(4):
        (folder / f"job-{number}").mkdir(parents=True)
        (folder / f"job-{number}" / "metrics.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    (folder / "broken.csv").write_text("step,loss\nx,y\n")
    return folder


def test_an_import_in_processes_is_the_one_here(tmp_path: Path) -> None:
    """The outcomes come in the order of the sources, problems included."""
    sources = find_sources([_logs(tmp_path / "logs")], all_readers()).sources
    here = list(import_sources(tmp_path / "here", sources, ReadOptions()))
    with RunPool(2) as pool:
        there = list(import_sources(tmp_path / "there", sources, ReadOptions(), mapped=pool.mapped))
    digests = [[run.snapshot().log_digest for run in open_store(tmp_path / name)] for name in ("here", "there")]

    assert there == here
    assert digests[0] == digests[1]
    assert not list((tmp_path / "there").glob(".*"))


def test_a_worker_with_another_folder_for_a_store_is_told(tmp_path: Path) -> None:
    """Its runs would be lost: the folder there has the same name only."""
    sources = find_sources([_logs(tmp_path / "logs")], all_readers()).sources
    store, aside = tmp_path / "store", tmp_path / "aside"

    def elsewhere(
        function: Callable[[_Asked], tuple[Outcome, ...]], asked: Sequence[_Asked]
    ) -> Iterator[tuple[Outcome, ...]]:
        store.rename(aside)
        store.mkdir()
        try:
            yield from map(function, asked)
        finally:
            store.rmdir()
            aside.rename(store)

    with pytest.raises(TelemetryError, match="a worker does not see the store"):
        list(import_sources(store, sources, ReadOptions(), mapped=elsewhere))


@given(st.integers(0, 500), st.integers(0, 20), st.lists(st.floats(0, 100), min_size=1))
def test_blocks_give_every_argument_once_in_order(count: int, workers: int, took_s: list[float]) -> None:
    """Whatever the times are."""
    blocks, given_out = Blocks(range(count)), list[int]()
    while not blocks.is_done:
        block = blocks.next_block(workers)
        blocks.measure(len(block), took_s[len(given_out) % len(took_s)])
        given_out += block

    assert given_out == list(range(count))


def test_blocks_grow_to_about_a_second() -> None:
    """The first ones hold one run, for it also loads modules; the last ones leave work for every worker."""
    blocks, sizes = Blocks(range(2000)), list[int]()
    while not blocks.is_done:
        sizes.append(len(blocks.next_block(2)))
        blocks.measure(sizes[-1], sizes[-1] * BLOCK_S / 100)

    assert sizes[:4] == [1, 8, 64, 100]
    assert max(sizes) == 100
    assert sizes[-1] < 10
