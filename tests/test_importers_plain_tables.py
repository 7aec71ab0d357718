"""A plain table that is read by columns becomes the same run, bit by bit, as by rows."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from real_logs import FOLDER

from steptape.importers.discovery import HEAD_BYTES, Source, find_sources
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.plain_tables import PlainFacts
from steptape.importers.readers.tables import TableReader
from steptape.importers.source import ImportedRun, ReadOptions


class RowByRow(TableReader):
    """The reader without its columns."""

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a table, with nothing but facts."""
        for run in super().read(files, options):
            yield replace(run, facts=(fact for fact in run.facts))


def result(
    path: Path, store: Path, reader: TableReader, options: ReadOptions
) -> tuple[list[Outcome], dict[str, object]]:
    """Import a table; return the outcomes, and what each file holds."""
    source = Source(reader, path, (path,), path.stem)
    outcomes = [replace(outcome, rewritten=None) for outcome in import_sources(store, [source], options)]
    files = sorted(file for file in store.rglob("*") if file.is_file())
    return outcomes, {str(file.relative_to(store)): held(file) for file in files}


def held(file: Path) -> object:
    """Return the content of a file; of Parquet its columns and row groups.

    Two files of equal values differ in padding, and so in the digests of files. The digest of the log covers each value
    to the bit.
    """
    if file.suffix == ".parquet":
        schema, metadata = pq.read_schema(file), pq.read_metadata(file)
        fields = [(field.name, field.type, field.nullable) for field in schema]
        return fields, schema.metadata, [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return re.sub(rb'"(events-.*|sha256)": "\w+"', b"", file.read_bytes())


def are_alike(path: Path, options: ReadOptions | None = None) -> bool:
    """Whether a table becomes the same by columns and by rows."""
    with TemporaryDirectory() as folder:
        by_columns = result(path, Path(folder) / "columns", TableReader(), options or ReadOptions())
        by_rows = result(path, Path(folder) / "rows", RowByRow(), options or ReadOptions())
    assert by_columns[0] == by_rows[0]
    return by_columns[1] == by_rows[1]


def is_plain(path: Path) -> bool:
    """Whether a table is read by columns."""
    run = next(TableReader().read([path], ReadOptions()))
    return isinstance(run.facts, PlainFacts)


#: Cells that are numbers to both, or empty.
NUMBERS = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(repr),
    st.from_regex(r"-?[0-9]{0,20}[.]?[0-9]{1,30}(e[-+]?[0-9]{1,3})?", fullmatch=True),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(
        ["", "", "", "nan", "NaN", "-Infinity", "INF", " 1.5 ", '"2"', "1e400", "-0", "5e-324", "\u0663", ".5"]
    ),
)

#: Cells that are something else.
ODDITIES = st.text("0123456789+-.eE", max_size=5) | st.sampled_from(
    ["x", " ", "1_0", '"1,5"', '"3', '4"', '"5\n"', "0x1", "--", "1,2", "\u00a0", "None", "+-5"]
)

#: What a table's names may be, without those of runs and long tables.
NAMES = st.lists(
    st.sampled_from(
        [
            "loss",
            "val_loss",
            "epoch",
            "train_loss",
            "lr",
            "",
            "acc",
            "time",
            "eval/x",
            "valid_loss",
            "x__MIN",
            "x",
            "phase",
        ]
    ),
    min_size=1,
    max_size=5,
    unique=True,
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Draw a table; most are plain."""
    names, step = draw(NAMES), draw(st.sampled_from(["step", "epoch", "global_step"]))
    clock = draw(st.sampled_from([(), (), ("timestamp",), ("_runtime",), ("timestamp", "relative time (wall)")]))
    header = [step, *clock, *(name for name in names if name != step)]
    is_odd = draw(st.integers(0, 3)) == 0
    cells = st.one_of(NUMBERS, ODDITIES) if is_odd else NUMBERS
    now, rows = draw(st.integers(-3, 10)), [header]
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.sampled_from([1, 1, 1, 5, 0, -4] if is_odd else [1, 1, 7]))
        times = [str(draw(st.sampled_from([1_700_000_000, 1_700_000_000.25])) + now) for _ in clock]
        spelled = draw(st.sampled_from(["{}", "{}", "{}.0", " {} ", "{}e0"]))
        rows.append([spelled.format(now), *times, *(draw(cells) for _ in header[1 + len(clock) :])])
        if is_odd and draw(st.booleans()):
            rows.append(draw(st.sampled_from([[], header, rows[-1][:-1], [*rows[-1], "1"]])))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    text = "".join(",".join(row) + end for row in rows)
    return (text[: -draw(st.integers(1, 3))] if is_odd and draw(st.booleans()) else text).encode()


@examples(60)
@given(table=tables(), renamed=st.sampled_from([{}, {"loss": "val_x"}, {"lr": "loss"}]), evaluations=st.booleans())
def test_a_table_becomes_the_same_by_columns_and_by_rows(
    table: bytes, renamed: dict[str, str], evaluations: bool
) -> None:
    """Whatever its cells, line ends, clocks and names: run, events, digests and problems."""
    options = ReadOptions(renamed=renamed, evaluations=frozenset(("acc", "train_loss") if evaluations else ()))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_bytes(table)

        assert are_alike(path, options)


def plain(rows: int, *, step: int = 0) -> str:
    """Return a plain table."""
    noise = random.Random(rows)
    values = (f"{step + row},{noise.random()},{noise.random() if row % 7 == 0 else ''},nan\n" for row in range(rows))
    return "step,loss,val_loss,lr\n" + "".join(values)


@pytest.mark.parametrize(
    "table",
    [
        plain(1),
        ",loss,lr,\n0,1.5,,7\n1,.5,-3e-7,8\n",
        plain(12_000),
        plain(5, step=-2),
        plain(9).replace("\n", "\r\n"),
        '"step","loss"\n"1","2.5"\n"2","inf"\n',
        "\ufeffstep;loss\n1;2.5\n\n2; 3\n",
        "epoch,train_loss,valid_loss,accuracy,time\n0,1,2,3,00\n1,1,2,3,00\n",
        "score,total_duration,accumulated_submission_time,global_step,validation/loss,loss\n1,2.5,2,10,,3\n2,3.5,3,20,4,\n",
        "step,timestamp,loss\n1,2026-01-02T03:04:05,1\n2,2026-01-02T03:04:04+00:00,2\n",
        "step,loss~,Loss,loss,kind,epoch\n1,1,2,3,4,5\n2,6,7,8,9,nan\n",
        "step,"
        + ",".join(f"m{index}" for index in range(600))
        + "\n"
        + "".join(f"{n}{',1' * 600}\n" for n in range(3)),
    ],
    ids=range(12),
)
def test_a_plain_table_is_read_by_columns(tmp_path: Path, table: str) -> None:
    """So the comparison of both compares two ways."""
    path = tmp_path / "log.csv"
    path.write_bytes(table.encode())

    assert is_plain(path)
    assert are_alike(path)


@pytest.mark.parametrize(
    "row",
    ["3,x", "3,1_0", "1,2", "3.5,2", "3", "3,4,5", "step,loss", "9007199254740993,2", "3,", '3,"4', "3,4"],
)
def test_a_table_with_one_unusual_row_is_read_by_rows(tmp_path: Path, row: str) -> None:
    """Text, a digit separator, a restart, half a step, missing or further cells, no value, an unfinished line."""
    path = tmp_path / "log.csv"
    path.write_text(f"step,loss\n1,5\n2,6\n{row}" + "\n" * (row != "3,4"))

    assert not is_plain(path)
    assert are_alike(path)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real logs in {FOLDER}")
def test_real_tables_become_the_same_by_columns_and_by_rows() -> None:
    """Every table among the real logs."""
    found = find_sources([FOLDER], [TableReader()]).sources
    paths = [path for source in found for path in source.files]

    assert [path for path in paths if not are_alike(path)] == []
    assert sum(path.stat().st_size > HEAD_BYTES for path in paths) > 0
