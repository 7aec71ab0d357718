"""Values as SQL text: names, literals and files, quoted so that they are what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def parquet_source(paths: Sequence[Path], *, is_uniform: bool = False) -> str:
    """A table function that reads these files, and none of their names as data.

    Args:
        paths: The files.
        is_uniform: Whether all have the same columns. Then planning a query opens the first file alone, and else every
            one: of 1,000 files that takes 0.3 s, each time that a view on them is planned.
    """
    files = text_list([path_pattern(path) for path in paths])
    by_name = "" if is_uniform else ", union_by_name = true"
    return f"read_parquet({files}{by_name}, hive_partitioning = false)"


def path_pattern(path: Path) -> str:
    """The pattern that matches this path alone: DuckDB takes every path for a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path))


def text_list(values: Sequence[str]) -> str:
    """A list of texts."""
    return f"[{', '.join(map(text_literal, values))}]"


def text_literal(value: str) -> str:
    """A text as a literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name of a column, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
