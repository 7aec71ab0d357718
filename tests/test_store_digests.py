"""The digest of a finished log is independent of its storage, and differs if any content differs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from steptape import Recorder, open_run, open_store, verify
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.errors import DamagedLog, UnsupportedVersion
from steptape.store.events import INTEGER_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.parquet.digests import Alongside, attempt_digest, digest_faults, read_digests
from steptape.store.parquet.sealing import complaints, seal
from steptape.store.plan import Plan
from steptape.store.run_folder import DIGESTS_JSON, list_files
from steptape.store.run_info import Attempt, PolicyRecord

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
    """Return the sample losses of an event: a batch of three, with the token losses of the second."""
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
            losses, ids, vectors = [step / 2, 1.0], [step, f"s{step}"], {"x": [step, 0.5]}
            rec.step(loss=math.nan if step == 9 else 1 / step, samples=losses, sample_ids=ids, vectors=vectors)
            if step % 10 == 0:
                rec.evaluate(eval_loss=1 / step)
                rec.annotate("ten more", step=step)
    rec.close(seal=True)
    return rec.folder


def rewritten(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Return a copy of a run with one table changed and rewritten as valid Parquet."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    (path,) = copy.glob(f"{table}-*.parquet")
    pq.write_table(change(pq.read_table(path)), path)
    return copy


def test_a_finished_run_has_a_digest_of_its_log_and_of_its_attempt(recorded: Path) -> None:
    """The sealer takes it when the log is complete."""
    kept = read_digests(recorded)

    assert list(kept.logs) == [(0, 0)]
    assert list(kept.attempts) == [0]
    assert len(open_run(recorded).log_digest) == 64
    assert digest_faults(recorded) == []


LOG_CHANGED = "the log of rank {} has changed since its digest was computed at the end"

#: The digest of the events above. It changes only together with the format of digests: runs store it.
EXPECTED = "3d087be64f02bc8d55a9342ba3c43d7a0dd23c83e3c29ab0e26c15cfcfcb91ee"


@pytest.mark.parametrize("segment_bytes", [512, 2048, 1 << 20])
def test_the_digest_does_not_know_how_the_log_was_cut(store_record: Callable[..., Path], segment_bytes: int) -> None:
    """Segments, files and merges may cut it anywhere; a metric that first appears late is the same in all of them."""
    samples = {index: losses(index) for index in range(0, 40, 3)}

    folder = store_record(EVENTS, samples=samples, segment_bytes=segment_bytes, sealed=True)

    assert read_digests(folder).logs[(0, 0)] == (39, EXPECTED) == (39, described_digest(folder))
    assert digest_faults(folder) == []


@pytest.mark.parametrize("segment_bytes", [256, 1 << 20])
def test_ids_of_samples_of_both_kinds_make_one_digest(store_record: Callable[..., Path], segment_bytes: int) -> None:
    """A merge of integer-only files with files of text turns all ids into text."""
    text = SampleLosses(struct.pack("<2f", 1.0, 2.0), b'["7","a"]', TEXT_IDS)
    samples = {index: text if index == 30 else losses(index) for index in range(0, 40, 3)}

    folder = store_record(EVENTS, samples=samples, segment_bytes=segment_bytes, sealed=True)

    assert read_digests(folder).logs[(0, 0)] == (39, described_digest(folder))
    assert digest_faults(folder) == []


def described_digest(folder: Path) -> str:
    """Compute the digest of a run with one log from FORMAT.md alone, without our code."""
    digest = hashlib.sha256(b"steptape log 3\n")
    for path in sorted(folder.glob("*.parquet")):
        name = path.name.partition("-")[0]
        table = pq.read_table(path)
        if name == "metrics":
            for line in sorted(described_metrics(table.to_pylist())):
                digest.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            continue
        metric_of = json.loads((table.schema.metadata or {}).get(b"steptape.columns", b"{}"))
        metric_of = {column: metric for metric, column in metric_of.items()}
        lines = []
        for field in table.schema:
            rows = table[field.name].to_pylist()
            values = [value for value in rows if value is not None]
            if values:
                own = described_column(rows, field.type, seldom=field.name in SELDOM[name])
                metric = metric_of.get(field.name)
                lines.append([name, metric is not None, metric or field.name, len(values), *own])
        for line in sorted(lines):
            digest.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def described_metrics(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the lines of the table ``metrics``."""
    owners = sorted({(row["run_id"], row["attempt"], row["rank"]) for row in rows})
    lines: list[list[Any]] = [
        ["metrics", False, "", len(owners), "", "", hashlib.sha256(json.dumps(owners).encode()).hexdigest()]
    ]
    rows.sort(key=lambda row: row["seq"])
    for metric in {row["metric"] for row in rows}:
        own = [row for row in rows if row["metric"] == metric]
        seqs = b"".join(struct.pack("<q", row["seq"]) for row in own)
        values = b"".join(struct.pack("<d", row["value"]) for row in own)
        digests = [hashlib.sha256(seqs).hexdigest(), "", hashlib.sha256(values).hexdigest()]
        lines.append(["metrics", False, metric, len(own), *digests])
    return lines


SELDOM = {
    "events": ("run_id", "attempt", "rank", "kind", "micro_step", "value_lag"),
    "samples": ("run_id", "attempt", "rank", "seq", "step", "micro_step"),
}


def described_column(rows: list[Any], kind: pa.DataType, *, seldom: bool) -> list[str]:
    """Return the digests of places, lengths and values of a column."""
    places, lengths, held = b"", b"", b""
    before, count, last = True, 0, None
    for row, value in enumerate(rows):
        if (value is not None) != before:
            places, before = places + struct.pack("<q", row), value is not None
        if value is None:
            continue
        if not seldom or value != last:
            place = struct.pack("<q", count) if seldom else b""
            if isinstance(value, str):
                lengths += place + struct.pack("<q", len(value.encode()))
                held += value.encode()
            elif isinstance(value, list):
                lengths += struct.pack("<q", len(value))
                held += struct.pack(f"<{len(value)}f", *value)
            elif seldom:
                held += place + struct.pack("<q", value)
            else:
                held += struct.pack(CODES[str(kind)], value)
        count, last = count + 1, value
    return [hashlib.sha256(part).hexdigest() for part in (places, lengths, held)]


CODES = {"int64": "<q", "int32": "<i", "float": "<f", "double": "<d"}


def test_digests_of_another_format_are_refused_and_stay(recorded: Path) -> None:
    """Neither a sealer nor a resume writes over them; all else of the run, and other runs, are read and verified."""
    path = recorded / DIGESTS_JSON
    path.write_text(path.read_text().replace('"format": 3', '"format": 2'))
    before = path.read_bytes()
    with Recorder(recorded.parent, quiet=True) as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)
    sentence = (
        f"{path}: this steptape supports digest format 3; got 2. "
        "Use the steptape that wrote it, or record or import the run anew"
    )

    with Recorder(recorded.parent, resume=(recorded.name, 20)) as again:
        again.step(loss=1.0)
    again.close(seal=True)
    with pytest.raises(UnsupportedVersion) as refused:
        verify(open_run(recorded))

    assert complaints(recorded) == [str(refused.value)] == [sentence]
    assert path.read_bytes() == before
    assert [event.step for event in open_run(recorded).events()][-1] == 21
    assert len(open_store(recorded.parent).runs()) == 2
    assert verify(open_run(rec.folder)).identical


def wide(step: int) -> dict[str, float]:
    """Return more metrics than a table has columns; the last ones appear and disappear."""
    return {
        f"debug/{i}": step + i / 8 for i in range(METRICS_AS_COLUMNS + 9) if i < METRICS_AS_COLUMNS or (step + i) % 3
    }


def test_the_digest_covers_metrics_that_are_no_columns(store_record: Callable[..., Path], tmp_path: Path) -> None:
    """The segmentation and the order of rows do not matter."""
    events = [Event("step_end", step=step, metrics=wide(step)) for step in range(1, 11)]
    whole, cut = (
        store_record(events, root=tmp_path / str(size), segment_bytes=size, sealed=True) for size in (1 << 26, 9_000)
    )
    turned = rewritten(cut, "metrics", lambda rows: rows.take(pa.array(range(rows.num_rows)[::-1])))

    assert read_digests(whole).logs == read_digests(cut).logs
    assert read_digests(whole).logs[(0, 0)] == (9, described_digest(whole))
    assert digest_faults(whole) == digest_faults(cut) == digest_faults(turned) == []


@pytest.mark.parametrize("table", ["events", "samples", "metrics"])
def test_digests_taken_alongside_are_worth_nothing_where_rows_stood_in_another_order(
    store_record: Callable[..., Path], table: str
) -> None:
    """Such rewritten files are merged as they are; their rows are then read in the right order."""
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

        assert ordered.finish()
        assert within.finish() is between.finish() is None


@pytest.mark.parametrize("column", ["run_id", "attempt", "seq", "metric", "value"])
def test_one_bit_of_a_metric_that_is_no_column_makes_another_digest(
    store_record: Callable[..., Path], column: str
) -> None:
    """The table has one row per value."""
    events = [Event("step_end", step=step, metrics=wide(step)) for step in range(1, 5)]
    folder = store_record(events, sealed=True)

    assert digest_faults(rewritten(folder, "metrics", lambda rows: flipped(rows, column, 5, 0)))


def test_rows_in_another_order_are_the_same_log(recorded: Path) -> None:
    """Order is by ``seq``; compression, encodings and row groups do not matter."""
    copy = rewritten(recorded, "events", lambda table: table.take(pa.array(range(table.num_rows)[::-1])))

    assert digest_faults(copy) == []


def flipped(table: pa.Table, name: str, row: int, bit: int) -> pa.Table:
    """Return the table with one bit of one value changed."""
    values = table[name].combine_chunks()
    if pa.types.is_string(values.type):
        texts = values.to_pylist()
        code = bytearray((texts[row] or "-").encode())
        code[bit % len(code)] ^= 1
        texts[row] = code.decode()
        changed = pa.array(texts, values.type)
    else:
        width = values.type.bit_width // 8
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        raw = bytearray(numbers.tobytes())
        raw[row * width + bit // 8 % width] ^= 1 << bit % 8
        numbers = np.frombuffer(bytes(raw), numbers.dtype)
        changed = pa.array(numbers, values.type, mask=np.array(values.is_null()) & (np.arange(len(values)) != row))
    return table.set_column(table.column_names.index(name), name, changed)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("events", name) for name in ("run_id", "attempt", "rank", "kind", "step", "micro_step", "epoch", "time_ns")),
        *(("events", name) for name in ("elapsed_ns", "value_lag", "loss", "eval_loss", "attrs")),
        *(("samples", name) for name in ("run_id", "attempt", "rank", "seq", "step", "micro_step")),
        *(("samples", name) for name in ("position", "sample_id", "loss", "tokens")),
        *(("vectors", name) for name in ("run_id", "attempt", "rank", "seq", "step", "micro_step", "name")),
    ],
)
@pytest.mark.parametrize("bit", [0, 7, 13, 30])
def test_one_bit_of_one_value_makes_another_digest(recorded: Path, table: str, column: str, bit: int) -> None:
    """The column and the depth in the mantissa do not matter."""
    copy = rewritten(recorded, table, lambda rows: flipped(rows, column, 5, bit))

    assert digest_faults(copy) == [f"attempt 0: {LOG_CHANGED.format(0)}"]


def test_an_event_more_or_less_makes_another_digest(recorded: Path) -> None:
    """A missing file does too."""
    fewer = rewritten(recorded, "events", lambda table: table.slice(0, table.num_rows - 1))

    assert digest_faults(fewer)
    for file in list_files(recorded).table("samples"):
        file.path.unlink()
    assert digest_faults(recorded)


RUN_CHANGED = "run.json has changed since the run ended"
ENTRY_CHANGED = "attempt 0: its entry in run.json has changed since the attempt ended"


def test_what_run_json_says_of_an_attempt_is_covered(recorded: Path) -> None:
    """Its plan and its end are examples."""
    path = recorded / "run.json"
    path.write_text(path.read_text().replace('"steps": 30', '"steps": 31'))

    assert digest_faults(recorded) == [ENTRY_CHANGED]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config", {"lr": 0.003}),
        ("name", "renamed"),
        ("group", "other"),
        ("tags", ["new"]),
        ("source", {"kind": "csv"}),
        ("of_another_writer", 1),
    ],
)
def test_what_run_json_says_of_a_run_is_covered(recorded: Path, key: str, value: object) -> None:
    """It never changes after the recording."""
    path = recorded / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), key: value}))

    assert digest_faults(recorded) == [RUN_CHANGED]


def test_what_a_resumed_attempt_declares_is_no_change(recorded: Path) -> None:
    """The digest of run.json is taken again when the attempt has ended."""
    with Recorder(recorded.parent, resume=(recorded.name, 20)) as rec:
        rec.step(loss=1.0)
        rec.declare(config={"lr": 0.5})

        assert digest_faults(recorded) == []
    rec.close(seal=True)
    assert verify(open_run(recorded)).identical
    (recorded / "run.json").write_text((recorded / "run.json").read_text().replace('"lr": 0.5', '"lr": 0.6'))
    assert digest_faults(recorded) == [RUN_CHANGED]


def test_the_entry_of_a_crashed_attempt_is_covered_once_it_is_sealed(store_record: Callable[..., Path]) -> None:
    """It stays as its writer left it."""
    folder = store_record(EVENTS, status="running", sealed=True)
    before = digest_faults(folder)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"running"', '"completed"'))

    assert before == []
    assert digest_faults(folder) == [ENTRY_CHANGED]


def test_the_digest_of_an_attempt_is_stored_with_runs() -> None:
    """So it changes only together with the format of digests. What an attempt does not have is not part of it."""
    policy = PolicyRecord("d" * 64, "p.yaml", "controllers: []", {"spike": 2.0}, 2)
    attempt = Attempt(1, "stopped", 5, 9, Plan(10, constants={"size": 3.0}), policy, steps=7, parent=0, from_step=3)

    assert attempt_digest(attempt) == "1d175c184c8abdccc5f92b05d2aec0e2edddc14173c05134fb76dcb953a7aee2"
    later = [dataclasses.replace(attempt, reason="done"), dataclasses.replace(attempt, declared=Plan(20))]
    assert len({attempt_digest(attempt), *map(attempt_digest, later)}) == 3


def test_sealing_again_does_not_bless_what_was_changed(recorded: Path) -> None:
    """A stored digest stays."""
    copy = rewritten(recorded, "events", lambda table: flipped(table, "loss", 5, 3))
    before = (copy / DIGESTS_JSON).read_bytes()

    seal(copy)

    assert (copy / DIGESTS_JSON).read_bytes() == before
    assert digest_faults(copy)


def test_a_resumed_run_keeps_the_digests_of_its_earlier_attempts(recorded: Path) -> None:
    """The newest attempt gets its own."""
    before = read_digests(recorded)
    with Recorder(recorded.parent, resume=(recorded.name, 20)) as rec:
        rec.step(loss=1.0)
    rec.close(seal=True)

    after = read_digests(recorded)

    assert after.logs[(0, 0)] == before.logs[(0, 0)]
    assert after.attempts[0] == before.attempts[0]
    assert sorted(after.logs) == [(0, 0), (1, 0)]
    assert digest_faults(recorded) == []


def test_a_run_that_still_goes_on_has_no_digest(tmp_path: Path) -> None:
    """There is no complete log to compare it with."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        seal(rec.folder)

        assert read_digests(rec.folder).logs == {}
        assert open_run(rec.folder).log_digest == ""


@pytest.mark.parametrize(
    ("table", "column", "type_"),
    [
        ("events", "loss", pa.int64()),
        ("events", "value_lag", pa.uint32()),
        ("events", "attempt", pa.float32()),
        ("events", "run_id", pa.binary()),
        ("events", "attrs", pa.large_binary()),
        ("samples", "position", pa.float32()),
        ("samples", "sample_id", pa.binary()),
        ("samples", "tokens", pa.date32()),
    ],
)
def test_a_column_of_another_type_is_damage_whatever_its_bits(
    recorded: Path, table: str, column: str, type_: pa.DataType
) -> None:
    """A digest covers bits, and the same bits mean something else as another type."""

    def retyped(rows: pa.Table) -> pa.Table:
        same = rows[column].combine_chunks()
        other = same.cast(type_) if pa.types.is_string(same.type) else same.view(type_)
        return rows.set_column(rows.schema.get_field_index(column), column, other)

    copy = rewritten(recorded, table, retyped)

    with pytest.raises(DamagedLog, match=f"the column '{column}' of this file has the wrong type"):
        digest_faults(copy)


@pytest.mark.parametrize(("table", "column"), [("events", "seq"), ("events", "epoch"), ("samples", "sample_id")])
def test_a_file_without_a_column_of_its_table_is_damage(recorded: Path, table: str, column: str) -> None:
    """This holds even for an all-null column: no writer leaves one out."""
    copy = rewritten(recorded, table, lambda rows: rows.drop_columns(column))

    with pytest.raises(DamagedLog, match=f"lacks a column of its table; got '?{column}"):
        digest_faults(copy)


def test_a_loss_of_a_token_that_is_null_is_damage(store_record: Callable[..., Path]) -> None:
    """It is not the NaN with its bits."""
    folder = store_record(EVENTS, samples={1: losses(1)}, sealed=True)
    nothing = pa.array([None, [None, 1.0], None], pa.list_(pa.field("element", pa.float32())))

    copy = rewritten(folder, "samples", lambda rows: rows.set_column(rows.num_columns - 1, "token_losses", nothing))

    with pytest.raises(DamagedLog, match="a type that no recorder writes"):
        digest_faults(copy)
