"""Finds the views and the runs that a statement needs, in the syntax tree that DuckDB's parser returns.

Only what is certain counts: a statement with anything unknown needs every view and every run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

#: What each view and table macro reads besides files and Arrow tables.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "runs": (),
    "run_summary": ("runs",),
    "all_events": (),
    "long_values": (),
    "events": ("all_events", "long_values"),
    "all_samples": (),
    "samples": ("all_samples",),
    "all_vectors": (),
    "vectors": ("all_vectors",),
    "decisions": ("events",),
    "steps": ("events",),
    "evals": ("events",),
    "saves": ("events",),
    "metric_values": ("all_events", "long_values"),
    "windows": ("metric_values",),
    "series": ("metric_values",),
    "rolling": ("metric_values",),
    "spiking_samples": ("samples", "runs"),
}

#: Table functions of DuckDB that read nothing.
_HARMLESS: Final = frozenset(("generate_series", "range", "unnest"))

#: Scalar functions that leave something behind in a connection.
_LASTING: Final = frozenset(("setseed", "write_log", "nextval"))

_TABLES: Final = frozenset(("BASE_TABLE", "TABLE_FUNCTION"))
_OTHER_SOURCES: Final = frozenset(("JOIN", "SUBQUERY", "EMPTY", "EXPRESSION_LIST"))

_Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StatementScope:
    """The views and runs that a statement needs.

    Attributes:
        views: The views and macros that it reads, with all that those read; None for any.
        run_ids: The runs to which it restricts every view; None for all runs.
    """

    views: frozenset[str] | None = None
    run_ids: frozenset[str] | None = None


def scope_of(tree: str) -> StatementScope:
    """Return the scope of a statement.

    Args:
        tree: The JSON text that DuckDB's ``json_serialize_sql`` returns for it.
    """
    try:
        return _scope_in(json.loads(tree))
    except (LookupError, TypeError, AttributeError, RecursionError):
        return StatementScope()  # A tree of another form, as other versions of DuckDB may have it, or a very deep one.


def _scope_in(document: _Node) -> StatementScope:
    if document["error"] or len(document["statements"]) != 1:
        return StatementScope()
    nodes = list(_nodes_in(document["statements"][0]))
    named = {entry["key"].casefold() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    views: set[str] = set()
    for node in nodes:
        found = _views_of(node, named)
        if found is None:
            return StatementScope()
        views |= found
    return StatementScope(frozenset(_with_sources(views)), _run_ids_in(nodes))


def _nodes_in(tree: Any) -> Iterator[_Node]:
    """Yield every object of the tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _views_of(node: _Node, named: set[str]) -> set[str] | None:
    """Return the views that a node itself reads; None if it may read anything.

    Args:
        node: A node of the tree.
        named: The common table expressions of the statement. One may have the name of a view.
    """
    if node.get("function_name", "").casefold() in _LASTING:
        return None
    source = node.get("from_table")
    if source is not None and source["type"] not in _TABLES | _OTHER_SOURCES:
        return None
    kind = node.get("type")
    if kind == "BASE_TABLE":
        name = node["table_name"].casefold()
        is_plain = not (node["schema_name"] or node["catalog_name"])
        known = {name} & SOURCES.keys()
        return known if is_plain and (known or name in named) else None
    if kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"].casefold()
        return {name} & SOURCES.keys() if name in SOURCES.keys() | _HARMLESS else None
    return None if kind in ("SHOW_REF", "PIVOT", "COLUMN_DATA", "DELIM_GET", "CTE", "BOUND_TABLE_REF") else set()


def _with_sources(views: set[str]) -> Iterator[str]:
    for view in views:
        yield view
        yield from _with_sources(set(SOURCES[view]))


def _run_ids_in(nodes: list[_Node]) -> frozenset[str] | None:
    """Return the runs that every SELECT over a view names; None if one of them names none.

    Each SELECT drops the rows of other runs before it computes anything. So without those rows it yields the same.
    """
    found: set[str] = set()
    for node in nodes:
        if node.get("type") in ("SELECT_NODE", "JOIN", "BASE_TABLE", "TABLE_FUNCTION") and node.get("sample"):
            return None
        if node.get("type") != "SELECT_NODE":
            continue
        tables = list(_joined(node["from_table"]))
        if not any(tables):
            continue
        own = None if None in tables or _renames_run_id(node) else _named_runs(node["where_clause"], set(tables))
        if own is None:
            return None
        found |= own
    return frozenset(found) if found else None


def _joined(source: _Node) -> Iterator[str | None]:
    """Yield the alias or name of each table of a FROM clause; "" for what is none, None for what is not joined by run.

    A join that does not compare run ids may combine rows of several runs.
    """
    kind = source["type"]
    if kind in _TABLES:
        name = source["table_name"] if kind == "BASE_TABLE" else source["function"]["function_name"]
        if name.casefold() not in SOURCES:
            yield ""
        else:
            yield None if source["column_name_alias"] else (source["alias"] or name).casefold()
    elif kind == "JOIN":
        sides = [*_joined(source["left"]), *_joined(source["right"])]
        by_run = source["ref_type"] == "REGULAR" and "run_id" in map(str.casefold, source["using_columns"])
        yield from sides if by_run or not any(sides) else [None]
    else:
        yield ""


def _renames_run_id(node: _Node) -> bool:
    return any(item.get("alias", "").casefold() == "run_id" for item in node["select_list"])


def _named_runs(condition: _Node | None, tables: set[str | None]) -> set[str] | None:
    """Return the runs to which a condition restricts these tables; None if to none."""
    if condition is None:
        return None
    if condition["type"] == "CONJUNCTION_AND":
        parts = [_named_runs(part, tables) for part in condition["children"]]
        return next((part for part in parts if part is not None), None)
    if condition["type"] == "COMPARE_EQUAL":
        sides = [condition["left"], condition["right"]]
    elif condition["type"] == "COMPARE_IN":
        sides = condition["children"]
    else:
        return None
    columns = [side for side in sides if side["type"] == "COLUMN_REF"]
    texts = [_text(side) for side in sides if side["type"] == "VALUE_CONSTANT"]
    if len(columns) != 1 or len(columns) + len(texts) != len(sides) or None in texts:
        return None
    if condition["type"] == "COMPARE_IN" and columns[0] is not sides[0]:
        return None
    *table, column = map(str.casefold, columns[0]["column_names"])
    is_run_id = column == "run_id" and (not table or (len(table) == 1 and table[0] in tables))
    return {text for text in texts if text is not None} if is_run_id else None


def _text(constant: _Node) -> str | None:
    literal = constant["literal"]
    return literal["text"] if literal["kind"] == "STRING" else None
