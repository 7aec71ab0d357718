"""SQL over a store makes the views and reads the runs that a statement names, and keeps its connection."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import open_store
from steptape.store.errors import QueryRefused
from steptape.store.reading.catalog import Catalog
from steptape.store.reading.summary import SETTLED_NS
from steptape.store.sql.statements import rows_of, run_query, scope_in
from steptape.store.store import StoreViews

EVENTS = {"all_events", "long_values", "events"}


@pytest.mark.parametrize(
    ("statement", "views"),
    [
        ("SELECT count(*) FROM runs", {"runs"}),
        ("FROM steps", {"steps", *EVENTS}),
        ("SELECT * FROM series('loss')", {"series", "metric_values", "all_events", "long_values"}),
        ("WITH best AS (FROM evals) SELECT * FROM best JOIN runs USING (run_id)", {"evals", "runs", *EVENTS}),
        ("SELECT (SELECT max(loss) FROM samples)", {"samples", "all_samples"}),
        ("SELECT 1", set()),
        ("SELECT * FROM range(3)", set()),
        ("DESCRIBE steps", None),
        ("SHOW TABLES", None),
        ("SELECT * FROM duckdb_tables()", None),
        ("SELECT * FROM main.steps", None),
        ("SELECT * FROM stesp", None),
        ("FROM query('FROM steps')", None),
        ("SELECT setseed(0.5) FROM runs", None),
        ("SELECT 1; SELECT 2", None),
        ("DELETE FROM runs", None),
        ("not SQL", None),
        ("", None),
        ("SELECT '\ud800'", None),
        (f"SELECT {'(' * 500}1{')' * 500} FROM runs", {"runs"}),
    ],
)
def test_a_statement_needs_the_views_that_it_names(statement: str, views: set[str] | None) -> None:
    """With those that they read. A statement that may read anything needs all."""
    assert scope_in(statement).views == views


@pytest.mark.parametrize(
    ("statement", "run_ids"),
    [
        ("FROM steps WHERE run_id = 'a'", {"a"}),
        ("FROM steps AS s WHERE step > 3 AND 'a' = s.run_id", {"a"}),
        ("FROM evals WHERE run_id IN ('a', 'b') ORDER BY step LIMIT 1", {"a", "b"}),
        ("SELECT count(*) FROM steps JOIN runs USING (run_id) WHERE steps.run_id = 'a'", {"a"}),
        ("SELECT * FROM series('loss') WHERE run_id = 'a'", {"a"}),
        ("WITH s AS (FROM steps WHERE run_id = 'a') SELECT max(step) OVER () FROM s", {"a"}),
        ("(FROM steps WHERE run_id = 'a') UNION ALL (FROM steps WHERE run_id = 'b')", {"a", "b"}),
        ("SELECT (SELECT max(step) FROM steps WHERE run_id = 'b') FROM evals WHERE run_id = 'a'", {"a", "b"}),
        ("FROM steps WHERE run_id = 'a' OR step = 1", None),
        ("FROM steps WHERE NOT run_id = 'a'", None),
        ("FROM steps WHERE run_id <> 'a'", None),
        ("FROM steps WHERE run_id NOT IN ('a')", None),
        ("FROM steps WHERE run_id = name", None),
        ("FROM steps WHERE run_id IN ('a', name)", None),
        ("FROM steps WHERE name = 'a'", None),
        ("FROM steps WHERE attrs.run_id = 'a'", None),
        ("FROM steps, runs WHERE steps.run_id = 'a'", None),
        ("SELECT count(*) FROM steps JOIN runs USING (step) WHERE steps.run_id = 'a'", None),
        ("FROM steps ASOF JOIN evals USING (step, run_id) WHERE steps.run_id = 'a'", None),
        ("FROM steps AS s(run_id) WHERE run_id = 'a'", None),
        ("SELECT 'a' AS run_id FROM steps WHERE run_id = 'a'", None),
        ("FROM steps TABLESAMPLE 10 PERCENT WHERE run_id = 'a'", None),
        ("FROM steps WHERE run_id = 'a' USING SAMPLE 1", None),
        ("SELECT (SELECT count(*) FROM steps) FROM runs WHERE run_id = 'a'", None),
        ("FROM (FROM steps) WHERE run_id = 'a'", None),
        ("SELECT * FROM steps QUALIFY run_id = 'a'", None),
        ("SELECT run_id FROM steps GROUP BY ALL HAVING run_id = 'a'", None),
        ("SELECT 1", None),
    ],
)
def test_a_statement_needs_the_runs_that_each_of_its_selects_names(statement: str, run_ids: set[str] | None) -> None:
    """Only where no row of another run can take part."""
    assert scope_in(statement).run_ids == run_ids


@pytest.fixture
def mixed(store_record: Callable[..., Path], store_steps: Any) -> Path:
    """A store of four runs: sealed, live, with a metric of its own, and with a metric that differs by case."""
    store_record(store_steps([1.0, 2.0]), run_id="sealed", sealed=True, steps=2)
    store_record(store_steps([3.0, 4.0, 5.0]), run_id="growing", status="running")
    store_record(store_steps([6.0], name="other"), run_id="other", sealed=True, steps=1)
    return store_record(store_steps([7.0], name="LOSS"), run_id="case", sealed=True, steps=1).parent


@pytest.mark.parametrize("selected", ["*", "count(*), sum(loss), max(other)", '"step"'])
@pytest.mark.parametrize("source", ["events", "steps", "steps JOIN runs USING (run_id)", "windows", "series('loss')"])
def test_a_statement_about_a_run_returns_what_it_does_over_all_runs(mixed: Path, selected: str, source: str) -> None:
    """Columns of other runs included; the second condition hides the run from the search for names."""
    if selected.startswith("count") and source in ("windows", "series('loss')"):
        selected = "count(*), sum(value)"
    store = open_store(mixed)
    for run_id in ("sealed", "growing", "other", "case", "none"):
        every = store.sql(f"SELECT {selected} FROM {source} WHERE run_id || '' = '{run_id}' ORDER BY ALL")

        assert store.sql(f"SELECT {selected} FROM {source} WHERE run_id = '{run_id}' ORDER BY ALL").equals(every)


def test_a_statement_about_a_run_sees_what_was_recorded_since(
    mixed: Path, store_record: Callable[..., Path], store_steps: Any
) -> None:
    """A run that began after the last scan, with a metric that no other run has."""
    store = open_store(mixed)
    store.sql("SELECT count(*) FROM runs WHERE run_id = 'sealed'")
    store_record(store_steps([8.0], name="newest"), run_id="late", sealed=True, steps=1)

    assert store.rows("SELECT newest, loss FROM steps WHERE run_id = 'late'") == [{"newest": 8.0, "loss": None}]


def test_a_connection_is_kept_while_no_run_changes(
    mixed: Path, store_record: Callable[..., Path], store_steps: Any
) -> None:
    """It gets further views as statements name them, and is replaced when the catalog changes."""
    (mixed / "growing" / "journal-0-0-000000000000").unlink()
    past = time.time_ns() - 2 * SETTLED_NS
    for path in [path for folder in mixed.iterdir() for path in (folder / "run.json", folder)]:
        os.utime(path, ns=(past, past))
    catalog = Catalog(mixed)
    views = StoreViews(catalog)
    seen = []
    for statement in ("FROM runs", "FROM runs", "FROM steps", "FROM runs", "SELECT oops FROM steps"):
        try:
            with views.connection(statement, catalog.look) as connection:
                seen.append(id(connection))
                run_query(connection, statement)
        except QueryRefused:
            continue
    with views.connection("FROM runs", catalog.look) as connection:
        kept = id(connection)
    store_record(store_steps([1.0]), run_id="late", sealed=True, steps=1)
    with views.connection("SELECT count(*) AS n FROM runs", catalog.look) as connection:
        counted = rows_of(run_query(connection, "SELECT count(*) AS n FROM runs"))
    views.close()

    assert [one == other for one, other in itertools.pairwise(seen)] == [True, False, True, True]
    assert kept == seen[-1]
    assert counted == [{"n": 5}]


def test_a_statement_that_leaves_something_behind_gets_a_connection_of_its_own(mixed: Path) -> None:
    """The random numbers of the next client do not follow from a seed of the last one."""
    catalog = Catalog(mixed)
    views = StoreViews(catalog)
    with (
        views.connection("FROM runs", catalog.look) as kept,
        views.connection("SELECT setseed(0.1)", catalog.look) as own,
    ):
        is_own = own is not kept
    views.close()

    assert is_own
