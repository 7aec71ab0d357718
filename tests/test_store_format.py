"""FORMAT.md describes what is on disk: the committed sample opens, and any Parquet reader reads a run folder."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from steptape import Recorder, open_run, open_store
from steptape.cli.commands import alert
from steptape.recorder.opening import STATE_FORMAT
from steptape.rules import certificate
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.store.errors import UnsupportedVersion
from steptape.store.event_json import event_to_line, events_from_lines
from steptape.store.events import Event
from steptape.store.journal import format as journal_format
from steptape.store.objects import manifest
from steptape.store.parquet import digests, event_summary
from steptape.store.parquet.sealing import complaints, seal
from steptape.store.plan import Plan
from steptape.store.run_info import FORMAT, Attempt, PolicyRecord, RunInfo

DATA = Path(__file__).parent / "data"
PAGE = (DATA.parents[1] / "docs" / "reference" / "FORMAT.md").read_text(encoding="utf-8")
SAMPLE = DATA / f"format-{FORMAT}"
SEALED, JOURNAL = "20260102T030405-5ea1ed", "20260102T030405-0a11ed"
STARTED_NS = 1_767_323_045_000_000_000
WRITER = {"host": "node-1", "boot_id": "11111111-2222-3333-4444-555555555555", "pid": 4321}
CONFIG = {"lr": 0.1, "seed": 2**60, "nested": {"a": [1, None]}}

#: The content of both runs of the sample.
_LOOP = [
    Event("train_begin", seq=0, time_ns=STARTED_NS),
    Event(
        "step_end", step=1, seq=1, micro_step=1, epoch=0.5, time_ns=STARTED_NS,
        metrics={"loss": 0.1, "Loss": -0.0, "epoch": 5e-324},
    ),
    Event(
        "step_end", step=2, seq=2, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000, value_lag=2,
        metrics={"loss": math.nan, "Loss": math.inf, "epoch": -math.inf},
    ),
    Event(
        "evaluate", step=2, seq=3, epoch=1.0, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000,
        metrics={"eval/größe": 1e300}, attrs={"n": 2**60 + 1},
    ),
    Event(
        "decision", step=2, seq=4, epoch=1.0, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000,
        attrs={
            "controller": "stop", "trigger": "on_evaluate", "event_seq": 3,
            "operations": ["hfcontrols.should_training_stop"], "values": {"loss": "NaN"},
        },
    ),
    Event(
        "save", step=2, seq=5, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000,
        attrs={"path": "checkpoint-2", "size_bytes": 2**40},
    ),
    Event("train_end", step=2, seq=6, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000),
]  # fmt: skip
EVENTS = _LOOP + [
    event._replace(step=2, seq=seq, time_ns=STARTED_NS + 1_000, elapsed_ns=1_000)
    for seq, event in enumerate(
        (
            Event("plan", attrs={"total_steps": 20, "constants": {"params": 2.5}}),
            Event("load", attrs={"path": "checkpoint-1"}),
            Event("sleep"),
            Event("wake"),
            Event("ranks", metrics={"loss@0": 0.5, "loss@1": math.nan}, attrs={"world_size": 2}),
            Event("agreement"),
            Event("custom:reward", metrics={"score": 0.25}),
            Event(
                "span",
                metrics={"Time/eval_seconds": 1.5e-6},
                attrs={"name": "eval", "began_ns": -500, "failed": "ValueError", "trace": "eval.json"},
            ),
            Event("system", metrics={"System/rss_mb": 512.25, "GPU/utilization": math.nan}, attrs={"sampled_ns": 900}),
        ),
        start=len(_LOOP),
    )
]
SAMPLES: list[dict[str, Any]] = [
    {
        "seq": seq, "step": seq, "micro_step": micro_step, "position": position, "sample_id": sample_id, "loss": loss,
        "tokens": tokens, "token_losses": token_losses,
    }
    for seq, micro_step, position, sample_id, loss, tokens, token_losses in (
        (1, 1, 0, "-1", 1.5, None, None),
        (1, 1, 1, str(2**60), math.nan, None, None),
        (2, 0, 31, "7", math.inf, 7, [math.inf]),
        (2, 0, 4, "0", 0.25, 8, [0.0, 0.5, math.nan]),
    )
]  # fmt: skip
VECTORS = [
    {"seq": 2, "step": 2, "micro_step": 0, "name": "expert_tokens/größe", "values": [3.0, math.nan, 2.0**53]},
    {"seq": 2, "step": 2, "micro_step": 0, "name": "empty", "values": []},
    {"seq": 13, "step": 2, "micro_step": 0, "name": "route", "values": [-math.inf]},
]


@pytest.mark.parametrize("run_id", [SEALED, JOURNAL])
def test_the_events_of_the_sample_are_read(run_id: str, store_facts: Callable[[Iterable[Event]], Any]) -> None:
    """A sealed run and a journal give exactly these values."""
    run = open_run(SAMPLE / run_id)
    samples = run.samples().drop_columns(["run_id", "attempt", "rank"]).to_pylist()
    by_sql = run.rows("SELECT * EXCLUDE (run_id, attempt, rank) FROM samples ORDER BY seq, tokens")

    vectors = run.vectors().drop_columns(["run_id", "attempt", "rank"]).to_pylist()

    assert store_facts(run.events()) == store_facts(EVENTS)
    assert str(vectors) == str(VECTORS)
    assert str(samples) == str(by_sql) == str(SAMPLES)


def test_run_json_of_the_sample_is_read() -> None:
    """Every key is read, and absent ones have their defaults."""
    policy = PolicyRecord("sha256:0f", "policy.yaml", "controllers: []\n", {"patience": 3}, 1)
    late, reason = Plan(20, 5, 2, constants={"params": 2.5}), "EarlyStoppingCallback"
    sealed = Attempt(0, "stopped", STARTED_NS, STARTED_NS + 2_500_000_000, Plan(10, 5, 2), policy, WRITER, 2)
    sealed = dataclasses.replace(sealed, declared=late, reason=reason)
    journal = Attempt(0, "running", STARTED_NS, failure={"type": "ValueError", "message": "loss is nan"})

    for run_id, attempt in ((SEALED, sealed), (JOURNAL, journal)):
        info = RunInfo(run_id, "sample", (attempt,), group="g", tags=("a", "ü"), config=CONFIG)
        assert open_run(SAMPLE / run_id).info == info


def test_the_store_of_the_sample_answers_sql() -> None:
    """Both runs are read at once; the one left in a journal has crashed."""
    store = open_store(SAMPLE)
    runs = store.rows("SELECT run_id, status, steps, planned_steps, duration_s FROM runs ORDER BY run_id")
    decisions = store.rows("SELECT controller, event_seq, operations, values->>'loss' AS loss FROM decisions")

    assert [tuple(row.values()) for row in runs] == [
        (JOURNAL, "crashed", 2, None, 1e-6),
        (SEALED, "stopped", 2, 20, 2.5),
    ]
    assert decisions == 2 * [
        {"controller": "stop", "event_seq": 3, "operations": ["hfcontrols.should_training_stop"], "loss": "NaN"}
    ]
    assert store.rows("SELECT sum(value) AS n FROM series('eval/größe')") == [{"n": 2e300}]


def test_what_another_writer_adds_to_run_json_is_ignored(store_folder: Callable[..., Path]) -> None:
    """At every level."""
    folder = store_folder()
    document = json.loads((folder / "run.json").read_bytes())
    for entry in (document, document["attempts"][0], document["attempts"][0]["plan"]):
        entry["of_another_writer"] = {"a": 1}
    (folder / "run.json").write_text(json.dumps(document))

    assert open_run(folder).info.run_id == "run-1"


def test_what_may_be_missing_from_run_json_has_defaults(store_folder: Callable[..., Path]) -> None:
    """An importer in another language may write only these keys."""
    folder = store_folder("run-1")
    attempt = {"attempt": 0, "status": "completed", "started_ns": 5}
    (folder / "run.json").write_text(
        json.dumps({"format": FORMAT, "run_id": "run-1", "name": "n", "attempts": [attempt]})
    )

    assert open_run(folder).info == RunInfo("run-1", "n", (Attempt(0, "completed", 5),))


PLAIN = """
import json, sys

sys.modules["steptape"] = None  # an import of it fails
import duckdb
import pyarrow.parquet as pq

folder = sys.argv[1]
by_arrow = pq.read_table(next(__import__("pathlib").Path(folder).glob("events-*.parquet")))
mapping = json.loads(by_arrow.schema.metadata[b"steptape.columns"])
query = f\"\"\"
SELECT seq, kind, step, loss, "Loss~7e13be37" AS upper, attrs->>'$.path' AS path
FROM read_parquet('{folder}/events-*.parquet') WHERE seq < 7 ORDER BY attempt, rank, seq
\"\"\"
samples = f"SELECT sample_id, loss FROM read_parquet('{folder}/samples-*.parquet') ORDER BY seq, position"
print(str({
    "mapping": mapping,
    "columns": json.load(open(f"{folder}/columns.json")),
    "events": duckdb.sql(query).fetchall(),
    "samples": duckdb.sql(samples).fetchall(),
    "arrow": by_arrow.select(["seq", "loss", mapping["Loss"]]).slice(1, 2).to_pylist(),
}))
"""


def test_plain_duckdb_and_plain_pyarrow_read_a_sealed_run() -> None:
    """They run in a process where steptape cannot be imported."""
    command = [sys.executable, "-X", "utf8", "-W", "error", "-c", PLAIN, str(SAMPLE / SEALED)]
    printed = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=PATIENCE_S).stdout
    mapping = {"loss": "loss", "Loss": "Loss~7e13be37", "epoch": "epoch~b2fdf2af"}
    others = ("eval/größe", "loss@0", "loss@1", "score", "Time/eval_seconds", "System/rss_mb", "GPU/utilization")
    mapping |= {name: name for name in others}

    assert printed.strip() == str(
        {
            "mapping": mapping,
            "columns": mapping,
            "events": [
                (0, "train_begin", 0, None, None, None),
                (1, "step_end", 1, 0.1, -0.0, None),
                (2, "step_end", 2, math.nan, math.inf, None),
                (3, "evaluate", 2, None, None, None),
                (4, "decision", 2, None, None, None),
                (5, "save", 2, None, None, "checkpoint-2"),
                (6, "train_end", 2, None, None, None),
            ],
            "samples": [(-1, 1.5), (2**60, math.nan), (0, 0.25), (7, math.inf)],
            "arrow": [
                {"seq": 1, "loss": 0.1, "Loss~7e13be37": -0.0},
                {"seq": 2, "loss": math.nan, "Loss~7e13be37": math.inf},
            ],
        }
    )


QUERIES = """
import sys

sys.modules["steptape"] = None  # an import of it fails
import duckdb

for statement in sys.stdin.read().split(";"):
    print(len(duckdb.sql(statement).fetchall()) if statement.strip() else "")
"""


def test_the_page_names_the_version_of_each_format() -> None:
    """Its title and its table."""
    (table,) = re.findall(r"\n\| what \| version .*?\n\n", PAGE, re.DOTALL)
    versions = {name: int(number) for name, number in re.findall(r"^\| (\w+).*? \| (\d+) \|", table, re.MULTILINE)}

    assert PAGE.startswith(f"# The store format, version {FORMAT}\n")
    assert versions == {
        "run": FORMAT,
        "journal": journal_format.VERSION,
        "digests": digests.FORMAT,
        "summary": event_summary.FORMAT,
        "rule": SEMANTICS_VERSION,
        "manifest": manifest.FORMAT,
        "certificate": certificate.FORMAT,
        "alerts": alert.FORMAT,
        "state": STATE_FORMAT,
    }


def test_the_queries_of_the_page_run_in_plain_duckdb(tmp_path: Path) -> None:
    """They run in the folder above a store whose sealed run has the id that the page names."""
    shutil.copytree(SAMPLE, tmp_path / "runs")
    (queries,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)

    command = [sys.executable, "-W", "error", "-c", QUERIES]
    result = subprocess.run(
        command, cwd=tmp_path, input=queries, capture_output=True, encoding="utf-8", check=True, timeout=PATIENCE_S
    )

    assert result.stdout.split() == ["2", "4", "2"]


def test_the_json_line_of_the_page_is_what_an_export_writes() -> None:
    """It is read, and written again it is the same."""
    (line,) = re.findall(r"```json\n(.*?)\n```", PAGE)

    assert [event_to_line(event) for event in events_from_lines([line], source="FORMAT.md")] == [line]


def vector_block(*vectors: tuple[str, list[float]]) -> bytes:
    """Return the bytes of vectors, with their length."""
    parts = [
        struct.pack("<I", len(name.encode())) + name.encode() + struct.pack(f"<I{len(values)}d", len(values), *values)
        for name, values in vectors
    ]
    return struct.pack("<I", len(b"".join(parts))) + b"".join(parts)


#: What follows the attributes of the events that have samples or vectors.
BLOCKS = [
    struct.pack("<IBB2f2q", 2, 1, 0, 1.5, math.nan, -1, 2**60),
    vector_block(("expert_tokens/größe", [3.0, math.nan, 2.0**53]), ("empty", []))
    + struct.pack("<IBB2f2q", 2, 1, 1 | 2 | 4, math.inf, 0.25, 7, 0)
    + struct.pack("<2i2i", 7, 8, 31, 4)
    + struct.pack("<I2I2I4f", 2, 1, 0, 3, 1, 0.0, 0.5, math.nan, math.inf),
    vector_block(("route", [-math.inf])),
]


def test_a_journal_can_be_read_from_its_description_alone() -> None:
    """The reader uses only FORMAT.md's numbers and none of our code, as one in another language would."""
    data = (SAMPLE / JOURNAL / "journal-0-0-000000000000").read_bytes()
    magic, own_version = struct.unpack_from("<4sI", data)
    position, layouts, header, events = 8, {}, {}, []
    while position < len(data):
        length, checksum = struct.unpack_from("<II", data, position)
        payload = data[position + 8 : position + 8 + length]
        assert zlib.crc32(payload) == checksum
        position += 8 + length
        if payload[0] == 0:
            header = json.loads(payload[1:])
        elif payload[0] == 1:
            layouts[struct.unpack_from("<I", payload, 1)[0]] = json.loads(payload[5:])
        elif payload[0] == 2:
            flags = payload[1]
            (layout,) = struct.unpack_from("<I", payload, 2)
            seq, step = struct.unpack_from("<qq", payload, 6)
            micro_step, value_lag = struct.unpack_from("<ii", payload, 22)
            time_ns, elapsed_ns, epoch = struct.unpack_from("<qqd", payload, 30)
            kind, *names = layouts[layout]
            values = struct.unpack_from(f"<{len(names)}d", payload, 54)
            rest = payload[54 + 8 * len(names) :]
            attrs = {}
            if flags & 1:
                (size,) = struct.unpack_from("<I", rest)
                attrs, rest = json.loads(rest[4 : 4 + size]), rest[4 + size :]
            metrics = dict(zip(names, values, strict=True))
            known_epoch = None if math.isnan(epoch) else epoch
            events.append(
                (kind, step, seq, micro_step, known_epoch, time_ns, elapsed_ns, value_lag, metrics, attrs, rest.hex())
            )

    assert (magic, own_version) == (b"STPJ", 7)
    assert header == {"run_id": JOURNAL, "attempt": 0, "rank": 0, "first_seq": 0, "writer": WRITER}
    assert str([event[:-1] for event in events]) == str(
        [
            (e.kind, e.step, e.seq, e.micro_step, e.epoch, e.time_ns, e.elapsed_ns, e.value_lag, e.metrics, e.attrs)
            for e in EVENTS
        ]
    )
    assert [event[-1] for event in events if event[-1]] == [block.hex() for block in BLOCKS]


def test_the_sample_can_be_sealed(tmp_path: Path) -> None:
    """Its content is preserved."""
    store = open_store(shutil.copytree(SAMPLE, tmp_path / "runs"))
    for run_id in (SEALED, JOURNAL):
        seal(store.path / run_id, other_hosts=True)
        run = store.run(run_id)

        assert str(run.samples().drop_columns(["run_id", "attempt", "rank"]).to_pylist()) == str(SAMPLES)
        assert str([entry["values"] for entry in run.vectors().to_pylist()]) == str([row["values"] for row in VECTORS])
        assert not list(run.folder.glob("journal-*"))


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1, str(FORMAT), True, float(FORMAT)])
def test_a_run_of_another_format_is_refused_and_the_others_are_read(tmp_path: Path, version: object) -> None:
    """Nothing of it changes, whatever is asked of the store; it is listed with its reason."""
    store = open_store(shutil.copytree(SAMPLE, tmp_path / "runs"))
    path = store.path / JOURNAL / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": version}))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    sentence = (
        f"{path}: this steptape supports run format {FORMAT}; got {version!r}. "
        "Use the steptape that wrote it, or record or import the run anew"
    )

    with pytest.raises(UnsupportedVersion) as opened:
        open_run(path.parent)
    with pytest.raises(UnsupportedVersion):
        Recorder(store.path, resume=JOURNAL)
    listed, problems = store.entries()

    assert str(opened.value) == sentence
    assert [str(problem) for problem in problems] == complaints(path.parent, other_hosts=True) == [sentence]
    assert [entry.snapshot.info.run_id for entry in listed] == [SEALED]
    assert store.rows("SELECT DISTINCT run_id FROM events") == [{"run_id": SEALED}]
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
