"""The page COLUMNS.md lists exactly the columns that DuckDB describes: of views, of Parquet files and of macros."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from steptape import Recorder, open_store
from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.events import KINDS
from steptape.store.sql.statements import MOST_SPIKING, SPIKE_BASELINE, SPIKING_SAMPLES, VIEWS
from steptape.store.sql.views import METRIC_COLUMNS
from steptape.store.store import Store

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "COLUMNS.md").read_text(encoding="utf-8")

#: The row that stands for all metric columns.
EACH_METRIC = "one per metric"

MACROS = {"series": "series('loss')", "rolling": "rolling(5)", "spiking_samples": "spiking_samples(5)"}

POLICY = """
controllers:
  - name: low
    triggers: [on_step_end]
    rule: loss < 0.2
    operations: [hfcontrols.should_training_stop]
"""

Columns = list[tuple[str, str]]


def sections() -> dict[str, str]:
    """Return the text below each heading that names tables, by name."""
    found: dict[str, str] = {}
    for section in re.split(r"^#{2,3} ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        found |= dict.fromkeys(re.findall(r"`(\w+)`", heading), text)
    return found


def listed(name: str, side: str = "SQL") -> Columns:
    """Return the columns that the page lists for a table, with their types.

    Args:
        name: The table, view or macro.
        side: Heading of the types' column: ``SQL`` or ``Parquet``.
    """
    text = sections()[name]
    columns: Columns = []
    if inherited := re.search(
        r"^All columns of \[`(\w+)`\]\(#\1\)(?: except (.*?))?(?:\.|, then:)$", text, re.MULTILINE
    ):
        left_out = re.findall(r"`(\w+)`", inherited[2] or "")
        columns = [column for column in listed(inherited[1], side) if column[0] not in left_out]
    return columns + list(rows_of(text, side))


def rows_of(text: str, side: str) -> Iterator[tuple[str, str]]:
    """Yield column and type of each row of a section's table that has a type on this side."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    for row in rows[2:]:
        type_ = row[rows[0].index(side)]
        if type_ != "-":
            yield row[0].strip("`"), type_


def with_metrics(columns: Columns, metrics: list[str]) -> Columns:
    """Return the columns with these metrics in place of the row that stands for all."""
    return [(name, type_) for column, type_ in columns for name in (metrics if column == EACH_METRIC else [column])]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one run that has every kind of row: samples, vectors, a decision, an evaluation, a save."""
    folder = tmp_path_factory.mktemp("columns")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    with Recorder(folder / "runs", name="small", rules=policy) as rec:
        for step in range(1, 11):
            rec.step(loss=1 / step, samples=[1.0, 2.0], sample_ids=[step, f"s{step}"], vectors={"x": [step]})
        rec.evaluate(eval_loss=0.5)
        rec.save("checkpoint-10")
    rec.close(seal=True)
    return open_store(folder / "runs")


@pytest.mark.parametrize("view", [*VIEWS, "all_samples", "all_vectors"])
def test_the_page_lists_the_columns_of_each_view(store: Store, view: str) -> None:
    """Names, types and order are those that DuckDB describes."""
    described = store.rows(f"DESCRIBE {view}")

    columns = with_metrics(listed(view), ["loss", "eval_loss"])
    assert columns == [(row["column_name"], row["column_type"]) for row in described]
    assert store.rows(f"SELECT count(*) AS n FROM {view}")[0]["n"] > 0


def test_the_page_lists_every_view_and_no_other(store: Store) -> None:
    """Each heading that names a table is a view, a macro or the Parquet table ``metrics``."""
    views = {row["name"] for row in store.rows("SHOW TABLES")}

    assert set(sections()) == {*VIEWS, "all_samples", "all_vectors", "metrics", *MACROS}
    assert {*VIEWS, "all_samples", "all_vectors"} <= views


@pytest.mark.parametrize("table", ["events", "samples"])
def test_the_page_lists_the_columns_of_each_parquet_table(store: Store, table: str) -> None:
    """Names, types and order are those of the file; this one has no token losses."""
    (path,) = store.path.glob(f"*/{table}-*.parquet")

    expected = with_metrics(listed(table, "Parquet"), ["loss", "eval_loss"])
    assert of_file(path) == [column for column in expected if column[0] != "token_losses"]


def test_files_hold_integer_ids_and_token_losses_as_the_page_says(tmp_path: Path) -> None:
    """A file without text among its ids holds integers, and a file with a flagged sample its token losses."""
    with Recorder(tmp_path / "runs", name="flagged") as rec:
        rec.step(loss=1.0, samples=[1.0, 2.0], sample_ids=[7, 8], token_losses=[[0.5], [0.5, 1.5]])
    rec.close(seal=True)
    (path,) = (tmp_path / "runs").glob("*/samples-*.parquet")

    assert dict(of_file(path)) == {**dict(listed("samples", "Parquet")), "sample_id": "int64"}


def test_the_page_lists_the_columns_of_the_parquet_table_metrics(tmp_path: Path) -> None:
    """Its rows are the metrics after those that are columns."""
    with Recorder(tmp_path / "runs", name="wide") as rec:
        rec.step({f"m{number}": 0.5 for number in range(METRICS_AS_COLUMNS + 1)})
    rec.close(seal=True)
    (path,) = (tmp_path / "runs").glob("*/metrics-*.parquet")

    assert of_file(path) == listed("metrics", "Parquet")
    shown = [
        column for column in open_store(tmp_path / "runs").sql("FROM steps").column_names if re.match(r"m\d", column)
    ]
    assert len(shown) == METRIC_COLUMNS
    assert f"files hold the first {METRICS_AS_COLUMNS} metrics of the run, the view shows the {len(shown)} " in PAGE


def of_file(path: Path) -> Columns:
    """Return the columns of a Parquet file with their types, as the page names them; ids of text may be integers."""
    types = {"list<element: float>": "list of float"}
    columns = [(field.name, types.get(str(field.type), str(field.type))) for field in pq.read_schema(path)]
    return [(name, "string or int64" if (name, type_) == ("sample_id", "string") else type_) for name, type_ in columns]


@pytest.mark.parametrize("macro", MACROS)
def test_the_page_lists_the_columns_of_each_macro(store: Store, macro: str) -> None:
    """Names, types and order are those that DuckDB describes of its result."""
    described = store.rows(f"DESCRIBE SELECT * FROM {MACROS[macro]}")

    assert listed(macro) == [(row["column_name"], row["column_type"]) for row in described]
    assert store.rows(f"SELECT count(*) AS n FROM {MACROS[macro]}")[0]["n"] > 0


def test_the_page_lists_the_arguments_of_every_macro(store: Store) -> None:
    """DuckDB names them; the defaults are those of the macro's definition."""
    known = store.rows(
        "SELECT function_name, parameters FROM duckdb_functions() "
        "WHERE function_type = 'table_macro' AND NOT internal  -- spiking_samples exists once a statement names it"
    )
    signatures = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))

    arguments = {name: [part.split(" := ")[0] for part in text.split(", ")] for name, text in signatures.items()}
    assert arguments == {row["function_name"]: row["parameters"] for row in known}
    assert f"spiking_samples({signatures['spiking_samples']})" in SPIKING_SAMPLES
    assert f"top := {MOST_SPIKING}, baseline := {SPIKE_BASELINE}" in signatures["spiking_samples"]


def test_the_page_lists_every_kind_of_event() -> None:
    """The kinds are those of the events module."""
    text = PAGE.partition("## Kinds of events")[2]

    assert set(re.findall(r"`([a-z_]+)`", text)) == KINDS


def test_duckdb_reads_the_parquet_types_as_the_sql_types_of_the_page(store: Store) -> None:
    """A reader without steptape sees the types of the views, except for ``attrs`` (text) and ids of samples."""
    (path,) = store.path.glob("*/events-*.parquet")
    described = duckdb.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()

    expected = dict(with_metrics(listed("events"), ["loss", "eval_loss"])) | {"attrs": "VARCHAR"}
    assert {name: type_ for name, type_, *_ in described}.items() <= expected.items()
