"""SQL over HTTP returns rows, and no statement reaches beyond the runs of the store."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import httpx
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api_serving import RUN, SMALL, patiently, recorded, served
from steptape import Recorder

#: Statements that would read, write, load, change or hold something outside the query. ``{out}`` is a file that must
#: not appear, ``{secret}`` one that must not be read, ``{run}`` the run's folder.
ESCAPES = {
    "copy-to": "COPY (SELECT 1) TO '{out}'",
    "copy-to-parquet": "COPY steps TO '{out}' (FORMAT parquet)",
    "copy-from": "COPY steps FROM '{secret}'",
    "copy-into-the-store": "COPY (SELECT 1) TO '{run}/events-9-9-000000000000-000000000001.parquet'",
    "copy-over-a-sealed-file": "COPY (SELECT 1) TO '{sealed}'",
    "copy-database": "COPY FROM DATABASE memory TO other",
    "export-database": "EXPORT DATABASE '{out}'",
    "import-database": "IMPORT DATABASE '{out}'",
    "attach": "ATTACH '{out}' AS other",
    "attach-sqlite": "ATTACH '{out}' AS other (TYPE sqlite)",
    "detach": "DETACH memory",
    "use": "USE memory",
    "install": "INSTALL httpfs",
    "install-from": "INSTALL httpfs FROM 'http://127.0.0.1:1/'",
    "force-install": "FORCE INSTALL httpfs",
    "load": "LOAD httpfs",
    "load-path": "LOAD '{secret}'",
    "set-access": "SET enable_external_access = true",
    "set-paths": "SET allowed_paths = ['{secret}']",
    "set-directories": "SET allowed_directories = ['/']",
    "set-lock": "SET lock_configuration = false",
    "set-temp": "SET temp_directory = '{out}'",
    "set-memory": "SET memory_limit = '100GB'",
    "reset": "RESET lock_configuration",
    "pragma": "PRAGMA enable_profiling",
    "pragma-output": "PRAGMA profile_output = '{out}'",
    "pragma-database-list": "PRAGMA database_list; SELECT 1",
    "read-text": "SELECT * FROM read_text('{secret}')",
    "read-text-of-run": "SELECT * FROM read_text('{run}/run.json')",
    "read-blob": "SELECT * FROM read_blob('{secret}')",
    "read-csv": "SELECT * FROM read_csv('{secret}')",
    "read-csv-auto": "SELECT * FROM read_csv_auto('{secret}')",
    "read-json": "SELECT * FROM read_json('{run}/run.json')",
    "read-json-objects": "SELECT * FROM read_json_objects('{secret}')",
    "read-ndjson": "SELECT * FROM read_ndjson('{secret}')",
    "read-parquet-elsewhere": "SELECT * FROM read_parquet('{elsewhere}')",
    "read-parquet-glob": "SELECT * FROM read_parquet('{elsewhere_folder}/*.parquet')",
    "read-parquet-up": "SELECT * FROM read_parquet('{run}/../../outside.parquet')",
    "read-parquet-proc": "SELECT * FROM read_parquet('/proc/self/root{elsewhere}')",
    "parquet-metadata": "SELECT * FROM parquet_metadata('{elsewhere}')",
    "parquet-schema": "SELECT * FROM parquet_schema('{elsewhere}')",
    "replacement-scan": "SELECT * FROM '{elsewhere}'",
    "replacement-csv": "SELECT * FROM '{secret}'",
    "glob": "SELECT * FROM glob('{elsewhere_folder}/*')",
    "glob-etc": "SELECT * FROM glob('/etc/*')",
    "sniff": "SELECT * FROM sniff_csv('{secret}')",
    "http": "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
    "s3": "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "create-table": "CREATE TABLE t AS SELECT 1",
    "create-view": "CREATE OR REPLACE VIEW steps AS SELECT 1",
    "create-macro": "CREATE MACRO f() AS 1",
    "create-secret": "CREATE SECRET s (TYPE s3)",
    "create-function-type": "CREATE TYPE e AS ENUM ('a')",
    "drop": "DROP VIEW steps",
    "insert": "INSERT INTO runs VALUES (1)",
    "update": "UPDATE runs SET name = 'x'",
    "delete": "DELETE FROM runs",
    "truncate": "TRUNCATE runs",
    "alter": "ALTER VIEW steps RENAME TO s",
    "checkpoint": "CHECKPOINT",
    "vacuum": "VACUUM",
    "analyze": "ANALYZE",
    "begin": "BEGIN TRANSACTION",
    "prepare": "PREPARE p AS SELECT 1",
    "execute": "EXECUTE p",
    "call": "CALL pragma_version()",
    "explain-analyze-copy": "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "two-statements": "SELECT 1; SELECT 2",
    "hidden-second": "SELECT 1; -- harmless\nCOPY (SELECT 1) TO '{out}'",
    "comment-only": "-- nothing",
    "nothing": ";",
    "union-read-text": "SELECT run_id FROM runs UNION ALL SELECT content FROM read_text('{secret}')",
    "subquery-read-text": "SELECT (SELECT content FROM read_text('{secret}'))",
    "lateral-read-text": "SELECT * FROM runs, LATERAL (SELECT * FROM read_text('{secret}'))",
    "cte-copy": "WITH t AS (SELECT 1) COPY t TO '{out}'",
    "query-function": "SELECT * FROM query('COPY (SELECT 1) TO ''{out}''')",
    "query-table": "SELECT * FROM query_table('{secret}')",
    "getenv": "SELECT getenv('HOME')",
    "python-variable": "SELECT * FROM secret_frame",
    "surrogate": "SELECT '\ud800'",
    "nul": "SELECT * FROM read_text('{secret}\x00.parquet')",
}

#: Statements that would use all available time or memory.
BOMBS = {
    "cross-join": "SELECT count(*) FROM range(100000000) a, range(100000000) b",
    "recursive": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "one-huge-list": "SELECT list_sum(range(1000000000)) AS s",
    "one-huge-text": "SELECT length(repeat('x', 4000000000)) AS s",
    "a-list-of-all": "SELECT list(range) AS s FROM range(1000000000)",
    "a-comprehension": "SELECT len([x * 2 FOR x IN range(200000000)]) AS s",
    "a-slow-function": "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000)) AS s",
    "deep-nesting": f"SELECT {'(' * 5000}1{')' * 5000}",
}


FORMS = ("json", "rows", "ndjson", "csv", "arrow", "parquet")

#: Values at which Arrow, Python or JSON ends.
VALUES = {
    "'infinity'::DATE": "infinity",
    "DATE '-infinity'": "-infinity",
    "DATE '290000-01-01'": "+290000-01-01",
    "TIMESTAMP '290000-01-01 00:00:00.5'": "+290000-01-01T00:00:00.500000",
    "TIMESTAMP 'infinity'": "infinity",
    "TIMESTAMPTZ '20000-01-01 00:00:00+00'": "+20000-01-01T00:00:00+00:00",
    "make_timestamp_ns(1700000000123456789)": "2023-11-14T22:13:20.123456789",
    "make_timestamp_ns(time_ns)": "2026-01-02T03:04:05.000000001",
    "TIME_NS '12:00:00.123456789'": "12:00:00.123456789",
    "TIME '24:00:00'": "24:00:00",
    "TIMETZ '12:00:00+02'": "12:00:00+02",
    "INTERVAL 1 DAY": "1 day",
    "[INTERVAL 1 DAY]": "[1 day]",
    "['infinity'::DATE, DATE '2026-01-02']": ["infinity", "2026-01-02"],
    "{'a': TIME_NS '12:00:00.000000001'}": {"a": "12:00:00.000000001"},
    "MAP {'a': DATE '290000-01-01'}": [["a", "+290000-01-01"]],
    "'101'::BIT": "101",
    "340282366920938463463374607431768211455::UHUGEINT": "340282366920938463463374607431768211455",
    "(-170141183460469231731687303715884105728)::HUGEINT": "-170141183460469231731687303715884105728",
    "9999999999999999999999999999999999999999::BIGNUM": "9999999999999999999999999999999999999999",
    "union_value(n := 2)": "2",
    "'b'::ENUM ('a', 'b')": "b",
    "1.50::DECIMAL(4, 2)": "1.50",
    "UUID '00000000-0000-0000-0000-000000000001'": "00000000-0000-0000-0000-000000000001",
    "42::VARIANT": "42",
    "get_type(1)": "INTEGER",
    "NULL": None,
}


#: Statements that ask DuckDB for its settings and definitions, which hold absolute paths.
PATHS = {
    "setting": "SELECT current_setting('allowed_paths')::VARCHAR AS v",
    "setting-quoted": """SELECT "current_setting"('allowed_paths')::VARCHAR AS v""",
    "setting-by-hand": "SELECT system.main.current_setting('allowed_paths')[1][2:] AS v",
    "settings": "SELECT * FROM duckdb_settings()",
    "views": "SELECT sql FROM duckdb_views()",
    "schema": "SELECT sql FROM sqlite_master",
    "information-schema": "SELECT * FROM information_schema.views",
    "information-schema-quoted": """SELECT * FROM "information_schema" . "views" """,
    "pg-views": "SELECT * FROM pg_catalog.pg_views",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "which-secret": "FROM which_secret('s3://bucket/x', 's3')",
    "extensions": "SELECT * FROM duckdb_extensions()",
    "databases": "SELECT * FROM duckdb_databases()",
    "functions": "SELECT macro_definition FROM duckdb_functions()",
    "variables": "SELECT * FROM duckdb_variables()",
    "query": "FROM query('SELECT value FROM duckdb_set' || 'tings()')",
    "query-after-a-comment": "FROM query/**/('SELECT value FROM duckdb_set' || 'tings()')",
    "query-after-a-line": "FROM query -- (\n ('SELECT sql FROM duckdb_vi' || 'ews()')",
    "query-table": "FROM query_table('duckdb_' || 'views')",
    "serialized": "FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb_set' || 'tings()'))",
    "missing-file": "SELECT * FROM read_parquet('x.parquet')",
    "folder": "SELECT * FROM glob('*')",
    "explain": "EXPLAIN SELECT * FROM steps",
    "explained": "FROM (EXPLAIN SELECT * FROM steps)",
    "summary": "SUMMARIZE steps",
    "broken": "SELECT steps.x FROM steps",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store ``runs`` with a sealed run, next to files that must stay hidden."""
    folder = tmp_path_factory.mktemp("data")
    recorded(folder / "runs")
    (folder / "secret.csv").write_text("word\nopensesame\n")
    pq.write_table(pa.table({"word": ["opensesame"]}), folder / "outside.parquet")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    """A client of a server over the store."""
    with served(folder / "runs") as client:
        yield client


@pytest.fixture(scope="module")
def hurried(folder: Path) -> Iterator[httpx.Client]:
    """A client of a server that limits a statement to a second."""
    with served(folder / "runs", limits=replace(SMALL, query=replace(SMALL.query, seconds=1.0))) as client:
        yield client


def ask(client: httpx.Client, sql: str, **params: str) -> httpx.Response:
    """Send a statement and return the answer."""
    return client.post("/api/v1/query", json={"sql": sql}, params=params)


@pytest.mark.parametrize("name", ESCAPES)
def test_no_statement_gets_out(client: httpx.Client, folder: Path, name: str) -> None:
    """It is refused, shows nothing and leaves nothing, and the next query is answered."""
    run = folder / "runs" / RUN
    sealed = next(run.glob("events-*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    sql = ESCAPES[name]
    for key, path in {
        "out": folder / "out.csv",
        "secret": folder / "secret.csv",
        "run": run,
        "sealed": sealed,
        "elsewhere_folder": folder,
        "elsewhere": folder / "outside.parquet",
    }.items():
        sql = sql.replace(f"{{{key}}}", str(path))

    answer = client.post(
        "/api/v1/query",
        content=httpx.Request("POST", "http://x", json={"sql": sql}).content
        if name != "surrogate"
        else b'{"sql": "SELECT \'\\ud800\'"}',
        headers={"Content-Type": "application/json"},
    )

    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "opensesame" not in answer.text
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert ask(client, "SELECT count(*) AS n FROM steps").json()["rows"] == [[20]]


@pytest.mark.parametrize("name", BOMBS)
def test_no_statement_takes_more_than_it_may(hurried: httpx.Client, name: str) -> None:
    """The statement is cancelled; other requests are answered meanwhile, and the next query too."""
    answer = ask(hurried, BOMBS[name])

    assert (answer.status_code, answer.json()["code"]) in [(422, "query-refused"), (422, "query-timed-out")]
    assert hurried.get(f"/api/v1/runs/{RUN}").status_code == 200
    assert patiently(lambda: ask(hurried, "SELECT count(*) AS n FROM steps")).json()["rows"] == [[20]]


def test_a_row_larger_than_the_limit_is_all_there_is_unless_another_follows(folder: Path) -> None:
    """The first row is returned whatever its size."""
    limits = replace(SMALL, query=replace(SMALL.query, result_bytes=1000))
    with served(folder / "runs", limits=limits) as client:
        answers = [ask(client, f"SELECT repeat('x', 5000) FROM range({rows})").json() for rows in (1, 2, 9000)]

    assert [(answer["n_rows"], answer["truncated"]) for answer in answers] == [(1, False), (1, True), (1, True)]


def test_a_result_is_cut_at_the_row_limit_and_says_so(client: httpx.Client) -> None:
    """The limit holds for any number of rows and every format."""
    told = ask(client, "SELECT range AS n FROM range(1000000000000)").json()
    csv = ask(client, "SELECT range AS n FROM range(1000000000000)", format="csv")

    assert (told["truncated"], told["n_rows"], told["row_limit"], len(told["rows"])) == (True, 100, 100, 100)
    assert (csv.headers["steptape-truncated"], len(csv.text.splitlines())) == ("true", 101)


def test_a_whole_result_says_so(client: httpx.Client) -> None:
    """The answer holds names and types of the columns."""
    told = ask(client, "SELECT step, loss FROM steps ORDER BY step LIMIT 2").json()

    assert (told["truncated"], told["rows"]) == (False, [[1, 1.0], [2, 0.5]])
    assert told["columns"] == [{"name": "step", "type": "int64"}, {"name": "loss", "type": "double"}]


def test_every_form_holds_the_same_rows(client: httpx.Client) -> None:
    """The formats are CSV, NDJSON with a trailer, Arrow and Parquet."""
    sql = "SELECT step, loss FROM steps WHERE step <= 2 ORDER BY step"

    forms = {name: ask(client, sql, format=name) for name in ("csv", "ndjson", "arrow", "parquet")}

    assert forms["csv"].text.splitlines() == ['"step","loss"', "1,1", "2,0.5"]
    assert forms["ndjson"].text.splitlines()[:2] == ['{"step": 1, "loss": 1.0}', '{"step": 2, "loss": 0.5}']
    assert '"trailer": {"items": 2, "truncated": false' in forms["ndjson"].text.splitlines()[2]
    tables = [
        pa.ipc.open_stream(forms["arrow"].content).read_all(),
        pq.read_table(io.BytesIO(forms["parquet"].content)),
    ]
    assert [table.to_pylist() for table in tables] == [[{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]] * 2


def address(client: httpx.Client, sql: str, **params: str) -> str:
    """Return the whole address of a statement."""
    return str(client.build_request("GET", "/api/v1/query", params={"sql": sql, **params}).url)


@pytest.mark.parametrize("form", FORMS)
def test_an_address_is_answered_as_a_body_is(client: httpx.Client, form: str) -> None:
    """Both have the same rows and headers; the seconds differ."""
    sql = "SELECT step, loss FROM steps ORDER BY step LIMIT 3"

    answers = [ask(client, sql, format=form), client.get(address(client, sql, format=form))]

    headers = [{k: v for k, v in one.headers.items() if k not in ("date", "content-length")} for one in answers]
    said = [re.sub(r'("elapsed_s": ?)[\d.e-]+', r"\1", one.text) for one in answers]
    assert (headers[0], said[0]) == (headers[1], said[1])
    assert headers[1]["cache-control"] == "no-store"


def test_a_reader_of_tables_needs_the_address_alone(client: httpx.Client) -> None:
    """It opens it without headers of its own, as pandas does; names and types are those of the view."""
    sql = "SELECT step, loss FROM steps WHERE step <= 3 ORDER BY step"

    tables = [
        read(urlopen(address(client, sql, format=form)).read())
        for form, read in (("csv", pl.read_csv), ("parquet", pl.read_parquet), ("rows", pl.read_json))
    ]

    assert [table.to_dict(as_series=False) for table in tables] == [{"step": [1, 2, 3], "loss": [1.0, 0.5, 1 / 3]}] * 3


def test_a_dashboard_reads_objects_by_their_fields(client: httpx.Client) -> None:
    """Grafana's data sources for JSON send this header and take an array of objects, one for each row."""
    sql = "SELECT run_id, max(step) AS step FROM steps GROUP BY ALL"

    answer = httpx.get(address(client, sql, format="rows"), headers={"Accept": "application/json;q=0.9,text/plain"})

    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [{"run_id": RUN, "step": 20}]


def test_a_list_of_runs_is_an_array_of_objects_too(client: httpx.Client) -> None:
    """The rows are those of CSV, chosen columns included."""
    answer = client.get("/api/v1/runs", params={"format": "rows", "columns": "loss"})

    assert [(row["run_id"], row["loss"]) for row in answer.json()] == [(RUN, 1 / 20)]


def test_a_statement_too_long_for_an_address_is_told_so(client: httpx.Client) -> None:
    """The same statement in a body is answered."""
    sql = f"SELECT 1 AS n --{'x' * 8000}"

    refused = client.get("/api/v1/query", params={"sql": sql})

    assert (refused.status_code, refused.json()["errors"][0]["where"]) == (422, "query.sql")
    assert ask(client, sql).json()["rows"] == [[1]]


def test_what_json_cannot_hold_is_text(client: httpx.Client) -> None:
    """NaN, infinity, dates and bytes are text."""
    sql = "SELECT 'nan'::DOUBLE a, '-inf'::DOUBLE b, DATE '2026-01-02' d, 'x'::BLOB e, {'f': [1]} g"

    rows = ask(client, sql).json()["rows"]

    assert rows == [["NaN", "-Infinity", "2026-01-02", "eA==", {"f": [1]}]]


@pytest.mark.parametrize("columns", ["*", "int", "varchar"])
def test_a_column_of_any_type_has_every_form(client: httpx.Client, columns: str) -> None:
    """All forms hold the same number of rows, also those of one column that has a NULL.

    DuckDB's function for tests has a column of each type, with its least and greatest value.
    """
    answers = {form: ask(client, f"SELECT {columns} FROM test_all_types()", format=form) for form in FORMS}

    assert {form: answer.status_code for form, answer in answers.items()} == dict.fromkeys(FORMS, 200)
    assert answers["json"].json()["n_rows"] == 3
    assert len(answers["rows"].json()) == 3
    assert len(answers["ndjson"].text.splitlines()) == 4
    assert len(list(csv.reader(io.StringIO(answers["csv"].text)))) == 4
    assert "value out of range" not in answers["csv"].text
    assert pa.ipc.open_stream(answers["arrow"].content).read_all().num_rows == 3
    assert pq.read_table(io.BytesIO(answers["parquet"].content)).num_rows == 3


@pytest.mark.parametrize("expression", VALUES)
def test_a_value_without_a_counterpart_is_its_text(client: httpx.Client, expression: str) -> None:
    """JSON and NDJSON agree, and CSV holds the same text."""
    sql = f"SELECT {expression} AS v FROM steps WHERE step = 1"

    answers = {form: ask(client, sql, format=form) for form in FORMS}

    told = VALUES[expression]
    assert {form: answer.status_code for form, answer in answers.items()} == dict.fromkeys(FORMS, 200)
    assert answers["json"].json()["rows"] == [[told]]
    assert answers["rows"].json() == [{"v": told}]
    assert json.loads(answers["ndjson"].text.splitlines()[0]) == {"v": told}
    (cell,) = list(csv.reader(io.StringIO(answers["csv"].text)))[1] or [""]
    assert cell.replace(" ", "T") == (
        "" if told is None else told if isinstance(told, str) else json.dumps(told)
    ).replace(" ", "T")


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("[1, 2]::INT[2]", [1, 2]),
        ("[[1], NULL]::INT[1][2]", [[1], None]),
        ("[[3]::INT[1]]", [[3]]),
        ("""{'a "[3]" b': ['x', 'y']::VARCHAR[2]}""", {'a "[3]" b': ["x", "y"]}),
        ("""['it''s [2]']::ENUM('it''s [2]')[1]""", ["it's [2]"]),
        ("[make_timestamp_ns(1700000000123456789)]::TIMESTAMP_NS[1]", ["2023-11-14T22:13:20.123456789"]),
    ],
)
def test_an_array_is_a_list(client: httpx.Client, array: str, value: object) -> None:
    """Names and texts that hold a length stay as they are. Every pyarrow reads nulls from the Parquet."""
    sql = f"SELECT {array} AS v UNION ALL SELECT NULL"

    answers = {form: ask(client, sql, format=form) for form in ("json", "parquet")}

    assert answers["json"].json()["rows"] == [[value], [None]]
    table = pq.read_table(io.BytesIO(answers["parquet"].content))
    assert "fixed_size" not in str(table.schema.remove_metadata())
    assert table["v"].is_null().to_pylist() == [False, True]


@pytest.mark.parametrize("name", PATHS)
def test_no_statement_shows_a_path_of_the_server(client: httpx.Client, folder: Path, name: str) -> None:
    """Neither rows nor refusals hold the store's path or the home folder."""
    answers = [ask(client, PATHS[name], format=form).text for form in ("json", "csv")]

    assert all(str(folder) not in text and str(Path.home()) not in text for text in answers)


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT step,\n  los\nFROM steps", "LINE 2:   los\n          ^^^"),
        ("SELECT * FROM stepz", "LINE 1: SELECT * FROM stepz\n                      ^^^^^"),
        ("SELECT nosuch(1)", "LINE 1: SELECT nosuch(1)\n               ^^^^^^^^^"),
        ("SELECT FROM WHERE", "LINE 1: SELECT FROM WHERE\n                    ^^^^^"),
    ],
)
def test_a_refusal_has_the_line_and_the_place_in_it(client: httpx.Client, sql: str, place: str) -> None:
    """A name, a view, a function, the syntax."""
    assert place in ask(client, sql).json()["detail"]


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM read_parquet('/elsewhere/x.parquet')", "SELECT * FROM read_text('{sealed}')"]
)
def test_a_refused_file_is_not_called_damaged(client: httpx.Client, folder: Path, sql: str) -> None:
    """The refusal says what DuckDB refused."""
    sealed = next((folder / "runs" / RUN).glob("events-*.parquet"))

    answer = ask(client, sql.format(sealed=sealed)).json()

    assert answer["code"] == "query-refused"
    assert "damaged" not in answer["detail"]


def test_a_pivot_without_its_columns_is_told_how_to_list_them(client: httpx.Client) -> None:
    """The form that the message names works."""
    refused = ask(client, "PIVOT metric_values ON metric USING max(value) GROUP BY step").json()
    pivoted = ask(
        client, "PIVOT metric_values ON metric IN ('loss') USING max(value) GROUP BY step ORDER BY step LIMIT 2"
    )

    assert refused["hint"].startswith("PIVOT must list its columns: PIVOT t ON metric IN ('loss', 'lr')")
    assert pivoted.json()["rows"] == [[1, 1.0], [2, 0.5]]


def test_a_statement_that_the_package_does_not_know_is_refused_like_any_other(client: httpx.Client) -> None:
    """DuckDB's parser knows CONNECT."""
    answer = ask(client, "CONNECT 'x'").json()

    assert answer["code"] == "query-refused"
    assert answer["detail"].startswith("a query must be one read-only statement")


def test_a_statement_reaches_a_metric_that_was_logged_after_600_others(tmp_path: Path) -> None:
    """The configuration of its run is JSON."""
    with Recorder(tmp_path / "runs", name="wide", config={"lr": 0.5, "token": "hush"}) as rec:
        rec.step({**{f"w/{index}": 0.0 for index in range(600)}, "val/loss": 2.0})
    sql = """
        SELECT avg("val/loss") AS loss, any_value(config->>'lr') AS lr, any_value(config->>'token') AS token
        FROM steps JOIN runs USING (run_id)
    """
    with served(tmp_path / "runs") as client:
        answer = ask(client, sql)

    assert answer.json()["rows"] == [[2.0, "0.5", "[redacted]"]]


def test_one_run_may_be_asked_alone(client: httpx.Client) -> None:
    """The run is given by id or name; an unknown one gives 404."""
    found = client.post("/api/v1/query", json={"sql": "SELECT count(*) AS n FROM runs", "run": RUN})
    missing = client.post("/api/v1/query", json={"sql": "SELECT 1 AS n", "run": "../outside"})

    assert found.json()["rows"] == [[1]]
    assert (missing.status_code, missing.json()["code"]) == (404, "run-not-found")
