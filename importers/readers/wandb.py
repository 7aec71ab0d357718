"""Reads W&B offline runs: a ``run-ID.wandb`` file is one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..call_steps import CallSteps
from ..encodings.numbers import NS, flattened, nanoseconds, number_of, sorted_out, step_of
from ..encodings.protobuf import fields, message, signed, text
from ..encodings.wandb_log import HEADER, records
from ..rows import Row, facts_by_name
from ..source import Fact, ImportedRun, Omissions, ReadOptions, SingleFile, UnreadableSource
from ..table_columns import step_unit_of

#: Field numbers of ``wandb_internal.proto``: those of a ``Record``, ...
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18

#: ... those of the items in histories and configurations, ...
_ITEM, _HISTORY_STEP = 1, 2
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16

#: ... and those of a ``RunRecord``.
_RUN_ID, _PROJECT, _RUN_CONFIG, _GROUP, _DISPLAY_NAME, _TAGS, _START_TIME = 1, 3, 4, 6, 8, 10, 17

#: Keys that W&B adds to each row and to the configuration.
_STEP: Final = "_step"
_OWN: Final = ("_timestamp", "_runtime", "_wandb")


@dataclass(slots=True)
class _Recorded:
    """The contents of a file's records."""

    run_id: str = ""
    name: str = ""
    project: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)
    started_ns: int | None = None
    exit_code: int | None = None
    rows: list[dict[str, object]] = field(default_factory=list)


class WandbReader(SingleFile):
    """Reader for ``.wandb`` files, as offline and online runs leave them in ``wandb/``."""

    kind = "wandb"
    title = "W&B offline run files (run-ID.wandb)"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the header says it, whatever the name.
        """Whether the file has W&B's header."""
        return head.startswith(HEADER)

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the run of a file."""
        (path,) = files
        recorded = _Recorded()
        problem: UnreadableSource | None = None
        try:
            for record in records(path, is_growing=options.is_growing):
                _take(record, recorded)
        except UnreadableSource as error:
            problem = error if error.where else UnreadableSource(error.what, where=str(path))
            if not recorded.rows:
                raise problem from None
        config = {key: value for key, value in recorded.config.items() if key.partition(".")[0] not in _OWN}
        steps = None if options.step_column else CallSteps()
        facts = [*_facts(recorded.rows, options.step_column or _STEP, steps, omissions := Omissions(str(path)))]
        unit = step_unit_of(options.step_column) if options.step_column else ""
        yield ImportedRun(
            _ended(facts, problem, omissions),
            name=recorded.name or recorded.run_id,
            group=recorded.group or recorded.project,
            tags=tuple(recorded.tags),
            config=config,
            status="running" if recorded.exit_code is None else "failed" if recorded.exit_code else "completed",
            nan_filtered=("train/loss",) if config.get("logging_nan_inf_filter") is True else (),
            started_ns=recorded.started_ns,
            step_unit="updates" if steps is not None and steps.counts_updates else unit,
            doubt="" if steps is None else steps.doubt,
        )


def _take(record: bytes, recorded: _Recorded) -> None:
    """Add the contents of one ``Record``."""
    for number, _, value in fields(record):
        if number == _HISTORY:
            recorded.rows.append(_history_row(message(value)))
        elif number == _CONFIG:
            recorded.config.update(_items(message(value)))
        elif number == _RUN:
            _take_run(message(value), recorded)
        elif number == _EXIT:
            recorded.exit_code = next((signed(v) for n, _, v in fields(message(value)) if n == 1 and type(v) is int), 0)


def _take_run(run: bytes, recorded: _Recorded) -> None:
    for number, _, value in fields(run):
        if number == _RUN_ID:
            recorded.run_id = text(value)
        elif number == _DISPLAY_NAME:
            recorded.name = text(value)
        elif number == _PROJECT:
            recorded.project = text(value)
        elif number == _GROUP:
            recorded.group = text(value)
        elif number == _TAGS:
            recorded.tags.append(text(value))
        elif number == _RUN_CONFIG:
            recorded.config.update(_items(message(value)))
        elif number == _START_TIME:
            parts = {n: v for n, _, v in fields(message(value)) if isinstance(v, int)}
            recorded.started_ns = signed(parts.get(1, 0)) * NS + signed(parts.get(2, 0))


def _history_row(history: bytes) -> dict[str, object]:
    """Parse a ``HistoryRecord``'s values and its step, which some versions store outside the values."""
    row = _items(history)
    for number, _, step in fields(history):
        if number == _HISTORY_STEP:
            row.setdefault(
                _STEP, next((signed(v) for n, _, v in fields(message(step)) if n == 1 and type(v) is int), 0)
            )
    return row


def _items(container: bytes) -> dict[str, object]:
    """Parse the items of a history row or a configuration; values that are not JSON stay text."""
    values: dict[str, object] = {}
    for number, _, value in fields(container):
        if number == _ITEM:
            nested: list[str] = []
            key, value_json = "", ""
            for inner, _, entry in fields(message(value)):
                if inner == _KEY:
                    key = text(entry)
                elif inner == _NESTED_KEY:
                    nested.append(text(entry))
                elif inner == _VALUE_JSON:
                    value_json = text(entry)
            values[key or ".".join(nested)] = _parsed(value_json)
    return values


def _parsed(value_json: str) -> Any:
    try:
        return json.loads(value_json)
    except (ValueError, RecursionError):
        return value_json


def _facts(
    rows: Sequence[dict[str, object]], step_column: str, steps: CallSteps | None, omissions: Omissions
) -> Iterator[Fact]:
    """Yield the events of the rows, at the steps of a column, or at those that ``steps`` gives them."""
    for index, row in enumerate(rows):
        try:
            step = step_of(row.get(step_column), "")
        except UnreadableSource as error:
            omissions.add(f"history row {index}", f"no step number in {error.got!r:.60}")
            continue
        # A file stores a nested value whole or by leaves, as ``picture._type`` and ``picture.height``.
        media = tuple(key.removesuffix("_type") for key in row if key.endswith("._type"))
        own = {key for key in row if key in (*_OWN, _STEP) or key.startswith(media)}
        seen = flattened({key: value for key, value in row.items() if key not in own and not _is_media(value)}, ".")
        if steps is not None:
            step = steps.place(step, seen)
        metrics, attrs = sorted_out(seen)
        elapsed_ns = nanoseconds(number_of(row.get("_runtime")))
        wall_ns = nanoseconds(number_of(row.get("_timestamp"))) or 0
        for fact in facts_by_name(Row(step, metrics, attrs, wall_ns, elapsed_ns), 0):
            # A row behind the newest step finishes no update.
            is_late = steps is not None and steps.is_behind and fact.kind == "step_end"
            yield fact._replace(kind="log") if is_late else fact


def _ended(facts: Iterable[Fact], problem: UnreadableSource | None, omissions: Omissions) -> Iterator[Fact]:
    """Yield the facts, then raise what the file lacks."""
    yield from facts
    if problem is not None:
        raise problem
    omissions.tell()


def _is_media(value: Any) -> bool:
    """Whether it is an object that names its type: an image, a table or a histogram."""
    return isinstance(value, dict) and "_type" in value
