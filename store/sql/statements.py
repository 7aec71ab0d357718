"""Runs a user's SQL after checking that it is one read-only statement, and translates DuckDB's errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..errors import QueryRefused
from ..parquet.arrow_values import values_of
from .spikes import SPIKING_SAMPLES
from .sql_text import quoted_name
from .statement_scope import StatementScope, scope_of

if TYPE_CHECKING:
    import duckdb

VIEWS: Final = ("runs", "events", "steps", "evals", "saves", "samples", "vectors", "decisions", "windows")

#: Batch size for results that may be truncated.
_BATCH_ROWS: Final = 2048


def run_query(connection: duckdb.DuckDBPyConnection, statement: str) -> pa.Table:
    """Run a user's statement and return its result.

    Raises:
        QueryRefused: It is not exactly one read-only statement, does not parse, or fails.
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
    """
    with translated(), _planned(connection, statement) as relation:
        return relation.to_arrow_table()


@contextmanager
def query_batches(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[pa.RecordBatchReader]:
    """Run a statement and yield a reader of its result batches, fetched on demand.

    Raises:
        QueryRefused, FileNotFoundError: As ``run_query``.
    """
    with translated(), _planned(connection, statement) as relation:
        yield relation.to_arrow_reader(_BATCH_ROWS)


#: DuckDB runs a PIVOT that does not list its columns as two statements. The first one creates a type.
_PIVOT_FIX: Final = (
    "PIVOT must list its columns: PIVOT t ON metric IN ('loss', 'lr') USING max(value) GROUP BY step. "
    "Or aggregate by a condition: max(value) FILTER (metric = 'loss') AS loss"
)


def names_in(statement: str) -> frozenset[str]:
    """Return the names that a statement holds outside of texts and comments, case-folded: what may be a column."""
    import duckdb

    if not _is_unicode(statement):
        return frozenset()
    content = statement.encode()
    kinds = (duckdb.token_type.identifier, duckdb.token_type.keyword)
    tokens = [*duckdb.tokenize(statement), (len(content), None)]
    words = [content[begin:end].decode().strip() for (begin, kind), (end, _) in pairwise(tokens) if kind in kinds]
    return frozenset(_unquoted(word).casefold() for word in words)


def scope_in(statement: str) -> StatementScope:
    """Return the views and runs that a statement needs."""
    import duckdb

    if not statement or not _is_unicode(statement):
        return StatementScope()
    try:
        ((tree,),) = _parser().cursor().execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    except duckdb.Error:
        return StatementScope()
    return scope_of(tree)


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    """Return a connection that only parses."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "enable_external_access": False})
    connection.execute("SET lock_configuration = true")
    return connection


def _unquoted(name: str) -> str:
    """Return the name that SQL text stands for."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


@contextmanager
def _planned(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[duckdb.DuckDBPyRelation]:
    """Plan the statement, after checking that it is a single read-only one."""
    import duckdb  # Already loaded by the code that made the connection.

    if not _is_unicode(statement):
        raise QueryRefused("a query must be valid Unicode text", got=statement)
    statements = duckdb.extract_statements(statement)
    if len(statements) != 1 or not _is_select(statements[0]):
        fix = _PIVOT_FIX if re.search(r"\bpivot", statement, re.IGNORECASE) else ""
        what = "a query must be one read-only statement (SELECT, FROM, DESCRIBE, SHOW)"
        raise QueryRefused(what, got=statement, fix=fix)
    if "spiking_samples" in statement.casefold():
        connection.execute(SPIKING_SAMPLES)
    try:
        yield _with_counterparts(connection.sql(statements[0]), statement)
    except duckdb.PermissionException as error:
        _check_files(connection, str(error))
        raise


def _is_select(statement: duckdb.Statement) -> bool:
    import duckdb

    try:
        return bool(statement.type == duckdb.StatementType.SELECT)
    except ValueError:  # DuckDB's parser knows kinds of statements that its Python package does not.
        return False


def _with_counterparts(relation: duckdb.DuckDBPyRelation, statement: str) -> duckdb.DuckDBPyRelation:
    """Cast the columns that have no exact counterpart in Arrow, Parquet and JSON: arrays to lists, others to text.

    Raises:
        QueryRefused: Two columns share a name: rows as dictionaries would lose one.
    """
    names = relation.columns
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        fix = f"Rename one of the columns called {twice!r} with AS"
        raise QueryRefused("two columns of the result have the same name", got=statement, fix=fix)
    counterparts = [_counterpart(type_) for type_ in relation.types]
    if not any(counterparts):
        return relation
    # By position, since DuckDB takes two names that differ in case for one.
    cells = [f"CAST(#{place} AS {kind})" if kind else f"#{place}" for place, kind in enumerate(counterparts, start=1)]
    return relation.project(
        ", ".join(f"{cell} AS {quoted_name(name)}" for cell, name in zip(cells, names, strict=True))
    )


#: Matches the length of an array in the text of a type. Quoted names and texts match first: they may hold a length.
_LENGTH: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[0-9]+\]""")


def _counterpart(type_: Any) -> str | None:
    """Return the type to cast a column to, or None if its own is exact in Arrow, Parquet and JSON.

    Arrays become lists: pyarrow before 26 cannot read an array with a null from Parquet.
    """
    if _lacks_counterpart(type_):
        return "VARCHAR"
    text = str(type_)
    lists = _LENGTH.sub(lambda match: "[]" if match[0].startswith("[") else match[0], text)
    return lists if lists != text else None


#: DuckDB's types, by id, without an exact counterpart: Arrow lacks or truncates them, or Parquet cannot hold them.
_TEXTS: Final = frozenset(
    ("bignum", "bit", "geometry", "interval", "time with time zone", "type", "uhugeint", "union", "variant")
)


def _lacks_counterpart(type_: Any) -> bool:
    """Whether a type of DuckDB, or a part of it, is one of ``_TEXTS`` or a struct without fields."""
    if type_.id in _TEXTS:
        return True
    if type_.id not in ("list", "array", "map", "struct", "tuple"):
        return False
    # The children of an array are its elements' type and its length.
    parts = [part for _, part in type_.children if not isinstance(part, int)]
    return not parts or any(map(_lacks_counterpart, parts))


def _check_files(connection: duckdb.DuckDBPyConnection, refusal: str) -> None:
    """Raise FileNotFoundError if DuckDB refused a file that queries may read: that file has vanished.

    DuckDB treats the path of a missing file as a folder and tries to list it. No query may list a folder.
    """
    refused = _REFUSED_FOLDER.search(refusal)
    allowed = connection.execute("SELECT current_setting('allowed_paths')").fetchall()[0][0]
    if refused is not None and refused[1] in allowed:
        raise FileNotFoundError(refused[1])


_REFUSED_FOLDER: Final = re.compile(r'Cannot access file "(.*)/\*\*/\*\.parquet"')


#: The message of a refusal when a run's file is damaged, so that no query on the run can be answered.
DAMAGED_FILE: Final = "a file of a run is damaged"

#: Matches DuckDB's messages for a Parquet file that it cannot parse: with the file's name, or in the words of its
#: Thrift library.
_DAMAGED_FILE: Final = re.compile(
    r"""(?<!content of )\bfile ['"](?P<path>[^'"]*\.parquet)['"]|TProtocolException|^don't know what type"""
)


#: Matches DuckDB's message for DESCRIBE of a table macro, which is a syntax error.
_DESCRIBED_MACRO: Final = re.compile(r"LINE 1: DESC(RIBE)?\s+\w+\s*\(", re.IGNORECASE)

_MACRO_FIX: Final = "The columns of a macro: DESCRIBE SELECT * FROM spiking_samples(5)"


@contextmanager
def translated() -> Iterator[None]:
    """Translate DuckDB's errors to QueryRefused; a missing file to FileNotFoundError, on which readers retry."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise FileNotFoundError(str(error)) from None
    except duckdb.Error as error:
        # A refusal may name a file that the statement asked for, sound or not.
        is_refused = isinstance(error, duckdb.PermissionException)
        damaged = None if is_refused else _DAMAGED_FILE.search(str(error))
        if damaged is not None:
            fix = "Restore it, or move it away; 'steptape doctor' names the file and what is lost"
            raise QueryRefused(DAMAGED_FILE, where=damaged["path"] or "", fix=fix) from None
        fix = _MACRO_FIX if _DESCRIBED_MACRO.search(str(error)) else f"Views: {', '.join(VIEWS)}"
        raise QueryRefused(f"the query failed: {error}", fix=fix) from None


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: Python alone accepts a lone surrogate as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries. A date or time that Python cannot hold becomes its text."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
