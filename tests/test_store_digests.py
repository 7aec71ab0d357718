"""Digests of finished logs: the same however they are stored, another one when anything in them is."""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from steptape.recorder import Recorder
from steptape.store import Attempt, Event, Plan, open_run
from steptape.store.column_digests import Alongside
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.digests import DIGESTS_JSON, attempt_digest, digest_faults, read_digests
from steptape.store.journal_format import INTEGER_IDS, SampleLosses
from steptape.store.run_folder import list_files
from steptape.store.run_info import PolicyRecord
from steptape.store.sealing import seal

EVENTS = [
    Event(
        "step_end" if index % 5 else "evaluate",
        step=index,
        epoch=None if index % 3 else index / 7,
        time_ns=index * 1_000,
        elapsed_ns=index * 10,
        metrics={"loss": math.nan if index == 11 else index / 3, **({"late": -0.0} if index > 20 else {})},
        attrs={"text": "é" * (index % 4)} if index % 4 else {},
    )
    for index in range(40)
]


def losses(index: int) -> SampleLosses:
    """Sample losses of an event: a batch of three, of whose second the tokens' losses are kept."""
    return SampleLosses(
        struct.pack("<3f", index / 2, 1.0, math.inf),
        struct.pack("<3q", index, -index, 2**40),
        INTEGER_IDS,
        flagged=struct.pack("<I", 1),
        flagged_tokens=struct.pack("<I", 2),
        token_losses=struct.pack("<2f", 0.5, index),
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The folder of a finished run with samples and gaps in its metrics."""
    with Recorder(tmp_path / "runs", name="digested") as rec:
        for step in range(1, 31):
            rec.step(loss=math.nan if step == 9 else 1 / step, samples=[step / 2, 1.0], sample_ids=[step, f"s{step}"])
            if step % 10 == 0:
                rec.evaluate(eval_loss=1 / step)
                rec.annotate("ten more", step=step)
    return rec.folder


def rewritten(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    """A copy of a run of which one table was changed and written back by somebody who knows Parquet."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    (path,) = copy.glob(f"{table}-*.parquet")
    pq.write_table(change(pq.read_table(path)), path)
    return copy


def test_a_finished_run_has_a_digest_of_its_log_and_of_its_attempt(recorded: Path) -> None:
    """Taken by the sealer, when nothing more is to come."""
    kept = read_digests(recorded)

    assert list(kept.logs) == [(0, 0)]
    assert list(kept.attempts) == [0]
    assert len(open_run(recorded).log_digest) == 64
    assert digest_faults(recorded) == []


#: Of the events above. It must never change, since it is kept with runs.
EXPECTED = "15e3f169cd837b74dfc4732fd00df4a86587f2e3c1cfdddc8c86b5963b1d153e"


@pytest.mark.parametrize("segment_bytes", [512, 2048, 1 << 20])
def test_the_digest_does_not_know_how_the_log_was_cut(store_record: Callable[..., Path], segment_bytes: int) -> None:
    """Into segments, files and merges; a metric that came late is the same in all of them."""
    samples = {index: losses(index) for index in range(0, 40, 3)}

    folder = store_record(EVENTS, samples=samples, segment_bytes=segment_bytes, sealed=True)

    assert read_digests(folder).logs[(0, 0)] == (39, EXPECTED, 2)
    assert digest_faults(folder) == []


def wide(step: int) -> dict[str, float]:
    """More metrics than a table has columns; the last ones come and go."""
    return {
        f"debug/{i}": step + i / 8 for i in range(METRICS_AS_COLUMNS + 9) if i < METRICS_AS_COLUMNS or (step + i) % 3
    }


def test_the_digest_covers_metrics_that_are_no_columns(store_record: Callable[..., Path], tmp_path: Path) -> None:
    """However they were cut, and in whatever order their rows stand."""
    events = [Event("step_end", step=step, metrics=wide(step)) for step in range(1, 31)]
    whole, cut = (
        store_record(events, root=tmp_path / str(size), segment_bytes=size, sealed=True) for size in (1 << 26, 9_000)
    )
    turned = rewritten(cut, "metrics", lambda rows: rows.take(pa.array(range(rows.num_rows)[::-1])))

    assert read_digests(whole).logs == read_digests(cut).logs
    assert digest_faults(whole) == digest_faults(cut) == digest_faults(turned) == []


@pytest.mark.parametrize("table", ["events", "samples", "metrics"])
def test_digests_taken_alongside_are_worth_nothing_where_rows_stood_in_another_order(
    store_record: Callable[..., Path], table: str
) -> None:
    """Of files that somebody has rewritten, and that are merged as they are. They are read in their order then."""
    events = [Event("step_end", step=step, metrics=wide(step)) for step in range(1, 9)]
    folder = store_record(events, samples={index: losses(index) for index in range(8)}, sealed=True)
    (path,) = folder.glob(f"{table}-*.parquet")
    rows = pq.read_table(path)
    backwards = rows.take(pa.array(range(rows.num_rows)[::-1]))

    with ThreadPoolExecutor(1) as thread:
        ordered, within, between = (Alongside(table, thread) for _ in range(3))
        assert list(ordered.watch([rows.slice(0, 5), rows.slice(5)])) == [rows.slice(0, 5), rows.slice(5)]
        list(within.watch([backwards]))
        list(between.watch([rows.filter(pc.field("seq") > 3), rows.filter(pc.field("seq") <= 3)]))

        assert ordered.taken()
        assert within.taken() is between.taken() is None


@pytest.mark.parametrize("column", ["run_id", "attempt", "seq", "metric", "value"])
def test_one_bit_of_a_metric_that_is_no_column_makes_another_digest(
    store_record: Callable[..., Path], column: str
) -> None:
    """It has a row a value."""
    events = [Event("step_end", step=step, metrics=wide(step)) for step in range(1, 5)]
    folder = store_record(events, sealed=True)

    assert digest_faults(rewritten(folder, "metrics", lambda rows: flipped(rows, column, 5, 0)))


def test_rows_in_another_order_are_the_same_log(recorded: Path) -> None:
    """Order is by ``seq``; and compression, encodings and row groups do not matter."""
    copy = rewritten(recorded, "events", lambda table: table.take(pa.array(range(table.num_rows)[::-1])))

    assert digest_faults(copy) == []


def flipped(table: pa.Table, name: str, row: int, bit: int) -> pa.Table:
    """The table with one bit of one value changed."""
    values = table[name].combine_chunks()
    if pa.types.is_string(values.type):
        texts = values.to_pylist()
        code = bytearray((texts[row] or "-").encode())
        code[bit % len(code)] ^= 1
        texts[row] = code.decode()
        changed = pa.array(texts, values.type)
    else:
        width = values.type.bit_width // 8
        raw = bytearray(values.fill_null(0).to_numpy(zero_copy_only=False).tobytes())
        raw[row * width + bit // 8 % width] ^= 1 << bit % 8
        numbers = np.frombuffer(bytes(raw), values.type.to_pandas_dtype())
        changed = pa.array(numbers, values.type, mask=np.array(values.is_null()) & (np.arange(len(values)) != row))
    return table.set_column(table.column_names.index(name), name, changed)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("events", name) for name in ("run_id", "attempt", "rank", "kind", "step", "micro_step", "epoch", "time_ns")),
        *(("events", name) for name in ("elapsed_ns", "value_lag", "loss", "eval_loss", "attrs")),
        *(("samples", name) for name in ("position", "sample_id", "loss", "tokens", "step")),
    ],
)
@pytest.mark.parametrize("bit", [0, 7, 13, 30])
def test_one_bit_of_one_value_makes_another_digest(recorded: Path, table: str, column: str, bit: int) -> None:
    """In whatever column and however deep in the mantissa."""
    copy = rewritten(recorded, table, lambda rows: flipped(rows, column, 5, bit))

    assert digest_faults(copy) == ["attempt 0: the log of rank 0 is not the one whose digest was taken at its end"]


def test_an_event_more_or_less_makes_another_digest(recorded: Path) -> None:
    """Or a file that is gone."""
    fewer = rewritten(recorded, "events", lambda table: table.slice(0, table.num_rows - 1))

    assert digest_faults(fewer)
    for file in list_files(recorded).table("samples"):
        file.path.unlink()
    assert digest_faults(recorded)


def test_what_run_json_says_of_an_attempt_is_covered(recorded: Path) -> None:
    """Its plan and its end, for a start."""
    path = recorded / "run.json"
    path.write_text(path.read_text().replace('"steps": 30', '"steps": 31'))

    assert digest_faults(recorded) == ["attempt 0: run.json does not say of it what it said at its end"]


def test_the_digest_of_an_attempt_never_changes() -> None:
    """It is kept with runs: what a later version adds to an attempt must not be in it where it was not recorded."""
    policy = PolicyRecord("d" * 64, "p.yaml", "controllers: []", {"spike": 2.0}, 2)
    attempt = Attempt(1, "stopped", 5, 9, Plan(10, constants={"size": 3.0}), policy, steps=7, parent=0, from_step=3)

    assert attempt_digest(attempt) == "1d175c184c8abdccc5f92b05d2aec0e2edddc14173c05134fb76dcb953a7aee2"


def test_the_name_of_a_run_may_be_changed(recorded: Path) -> None:
    """It is the user's own; so are tags and group."""
    path = recorded / "run.json"
    path.write_text(path.read_text().replace('"digested"', '"renamed"'))

    assert digest_faults(recorded) == []


def test_sealing_again_does_not_bless_what_was_changed(recorded: Path) -> None:
    """A digest that is kept stays."""
    copy = rewritten(recorded, "events", lambda table: flipped(table, "loss", 5, 3))
    before = (copy / DIGESTS_JSON).read_bytes()

    seal(copy)

    assert (copy / DIGESTS_JSON).read_bytes() == before
    assert digest_faults(copy)


def test_a_resumed_run_keeps_the_digests_of_its_earlier_attempts(recorded: Path) -> None:
    """And gets those of the newest."""
    before = read_digests(recorded)
    with Recorder(recorded.parent, resume=recorded.name, resume_step=20) as rec:
        rec.step(loss=1.0)

    after = read_digests(recorded)

    assert after.logs[(0, 0)] == before.logs[(0, 0)]
    assert after.attempts[0] == before.attempts[0]
    assert sorted(after.logs) == [(0, 0), (1, 0)]
    assert digest_faults(recorded) == []


def test_a_run_that_still_goes_on_has_no_digest(tmp_path: Path) -> None:
    """There is nothing yet to hold it against."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        seal(rec.folder)

        assert read_digests(rec.folder).logs == {}
        assert open_run(rec.folder).log_digest == ""
