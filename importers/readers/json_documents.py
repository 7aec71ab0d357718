"""Reads JSON documents that are tables: Keras' ``History`` of lists, pandas' frames, and lists of rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..encodings.lines import decoded_head
from ..encodings.numbers import flattened, number_of
from ..rows import MOST_METRICS, Row
from ..source import ImportedRun, Omissions, ReadOptions, SingleFile, UnreadableSource
from ..table_columns import TableColumns, checked_layout, joined_by_step, layout_of, no_step, row_of, runs_in_table

#: A larger document would take several gigabytes of memory.
MOST_BYTES: Final = 512 * 1024 * 1024

#: A history: names with lists of numbers, or with numbers by index, and a loss among them.
_HISTORY: Final = re.compile(r'\s*\{\s*"[^"]+"\s*:\s*(?:\[|\{\s*"0"\s*:)\s*[-\dNI]')
_LOSS: Final = re.compile(r'"(?:\w+_)?loss"\s*:\s*(?:\[|\{\s*"0"\s*:)\s*[-\dNI]')

#: The first row of a list of rows.
_FIRST_ROW: Final = re.compile(r"\s*\[\s*(\{[^{}]*\})")

#: CatBoost's log: ``iterations`` with a list of values for each set, and in ``meta`` the names of the metrics.
_CATBOOST: Final = re.compile(r'\s*\{\s*"meta"\s*:\s*\{[^{]*"test_sets"')
#: Chainer's log is a list of rows in a file without a suffix, or with that of text.
_SUFFIXES: Final = (".json", ".log", "")

#: AllenNLP writes a file for each epoch of a training, and in each what was best so far.
_OF_EPOCH: Final = re.compile(r"metrics_epoch_(\d{1,9})\.json")
_BEST: Final = "best_"

_DOPAMINE: Final = {"Agent", "Iteration", "Value"}


class JsonDocumentReader(SingleFile):
    """Reader for JSON files that hold a table: an object of columns, a list of rows, or CatBoost's log.

    Rows without a step are counted from 0, as Keras counts epochs.
    """

    kind = "json"
    title = "JSON tables: Keras' History, lists of rows (Dopamine, Chainer), AllenNLP's metrics_epoch_N.json, CatBoost"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file begins with columns of numbers, one of them a loss, or with a row of numbers."""
        suffix = path.suffix.casefold()
        if suffix not in _SUFFIXES:
            return False
        text = decoded_head(head)
        if suffix != ".json":
            return (row := _first_row(text)) is not None and _is_row(row)
        if _OF_EPOCH.fullmatch(path.name):
            return '"epoch"' in text
        if _CATBOOST.match(text):
            return True
        if _HISTORY.match(text):
            return _LOSS.search(text) is not None
        return (row := _first_row(text)) is not None and _is_row(row)

    def source_of(self, path: Path) -> Path:
        """Return the file itself, or the folder of the files of all epochs."""
        return path.parent if _OF_EPOCH.fullmatch(path.name) else path

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a document, usually one, or the run of a folder of epochs."""
        path = self.source_of(files[0])
        omissions = Omissions(str(path))
        of_epochs = sorted((int(match[1]), file) for file in files if (match := _OF_EPOCH.fullmatch(file.name)))
        document = [_of_epoch(file) for _, file in of_epochs] if of_epochs else _document(path)
        records, config = _records(document, omissions)
        records = _with_runs_of_dopamine(records)
        names = list(dict.fromkeys(name for record in records for name in record))
        if len(names) > MOST_METRICS:
            raise UnreadableSource(f"more than {MOST_METRICS} metrics", where=str(path), got=len(names))
        if options.step_column is None and layout_of(names) is None:
            names.insert(0, "")
            records = [{"": index, **record} for index, record in enumerate(records)]
        layout = checked_layout(names, options, str(path))
        rows = _rows(records, layout, omissions)
        yield from runs_in_table(
            joined_by_step(rows, options) if layout.long else rows, path, options, config=lambda: dict(config)
        )


def _first_row(text: str) -> dict[str, object] | None:
    match = _FIRST_ROW.match(text)
    try:
        return None if match is None else dict(json.loads(match[1]))
    except (ValueError, RecursionError):
        return None


def _is_row(row: Mapping[str, Any]) -> bool:
    """Whether an object has a step or a loss, another number, and no text but that of clocks and runs."""
    layout = layout_of(["", *row]) or layout_of(list(row))
    if layout is None:
        return False
    numbers = [number_of(row[name]) for name in layout.metrics if row[name] is not None]
    return bool(numbers) and None not in numbers


def _document(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnreadableSource(f"larger than {MOST_BYTES} bytes", where=str(path))
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableSource(f"not JSON, or incomplete ({error})", where=str(path)) from None


def _of_epoch(path: Path) -> dict[str, object]:
    """Return the values of an epoch, without those of earlier ones."""
    document = _document(path)
    if not isinstance(document, dict):
        raise UnreadableSource("not an object", where=str(path))
    return {name: held for name, held in document.items() if not name.startswith(_BEST)}


def _records(document: Any, omissions: Omissions) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Return the rows of a document, and what it says besides them."""
    if isinstance(document, list):
        return [flattened(entry) if isinstance(entry, dict) else {} for entry in document], {}
    if not isinstance(document, dict):
        return [], {}
    if isinstance(meta := document.get("meta"), dict) and isinstance(iterations := document.get("iterations"), list):
        try:
            return list(_iterations_of_catboost(meta, iterations)), {}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableSource(f"not a log of CatBoost ({error!r})") from None
    columns: dict[str, list[Any]] = {}
    config: dict[str, object] = {}
    for name, held in document.items():
        if isinstance(held, dict) and list(held) == [str(index) for index in range(len(held))]:
            held = list(held.values())
        if isinstance(held, list):
            columns[name] = held
        else:
            config[name] = held
    length = max(map(len, columns.values()), default=0)
    for name in [name for name, column in columns.items() if len(column) < length]:
        omissions.add(f"{name!r}", f"{len(columns.pop(name))} values for {length} epochs, and which is unknown")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], config


def _iterations_of_catboost(meta: Mapping[str, Any], iterations: Sequence[Any]) -> Iterator[dict[str, object]]:
    """Yield CatBoost's iterations, their values named after the set and the metric, without the time that remains."""
    names = {part: [str(metric["name"]) for metric in meta.get(f"{part}_metrics") or ()] for part in ("learn", "test")}
    for iteration in iterations:
        row: dict[str, object] = {}
        for name, held in iteration.items():
            if isinstance(held, list):
                metrics = names["learn" if name == "learn" else "test"]
                row.update({f"{name}/{metric}": value for metric, value in zip(metrics, held, strict=True)})
            elif name != "remaining_time":
                row[name] = held
        yield row


def _with_runs_of_dopamine(records: list[dict[str, object]]) -> list[dict[str, object]]:
    """Number the runs in Dopamine's results: the n-th row of an agent and iteration is of the agent's n-th run.

    Curves of one number are far smoother than shuffled ones, in all published results. Where an agent has iterations
    with more rows than others, a run ended before, and nobody knows which: rows stay as they are.
    """
    if not records or any(record.keys() != _DOPAMINE for record in records):
        return records
    counts: Counter[tuple[str, str]] = Counter()
    numbered = []
    for record in records:
        place = (str(record["Agent"]), str(record["Iteration"]))
        counts[place] += 1
        numbered.append({**record, "run": counts[place]})
    rows_of: dict[str, set[int]] = {}
    for (agent, _), count in counts.items():
        rows_of.setdefault(agent, set()).add(count)
    even = {agent for agent, found in rows_of.items() if len(found) == 1}
    return [row if str(row["Agent"]) in even else record for row, record in zip(numbered, records, strict=True)]


def _rows(records: Sequence[dict[str, object]], layout: TableColumns, omissions: Omissions) -> Iterator[Row]:
    for index, record in enumerate(records):
        try:
            yield row_of(dict(record), layout)
        except UnreadableSource as error:
            omissions.add(f"row {index}", no_step(error))
    omissions.tell()
