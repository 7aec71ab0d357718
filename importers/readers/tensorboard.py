"""Reads scalars of both versions from TensorBoard event files; a folder of event files is one run."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ...store.metric_words import is_evaluation
from ..encodings.numbers import nanoseconds
from ..encodings.protobuf import BYTES, FIXED32, VARINT, double, fields, float32, message, signed, text, varints
from ..encodings.tfrecord import records
from ..held_out import folder_part
from ..scalars import Scalar, courses_of
from ..source import ImportedRun, ReadOptions, UnreadableSource

#: Part of every event file's name.
MARK: Final = "tfevents"

#: ``struct`` format letters for a TensorProto's ``tensor_content``, by ``DataType``.
_LETTERS: Final = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 17: "H", 19: "e", 22: "I", 23: "Q"}
_BFLOAT16: Final = 14


class TensorBoardReader:
    """Reader for event files; several in a folder are one run, as TensorBoard shows it.

    Folders that differ in the part of the data alone are one run, too: Keras' ``train`` and ``validation``. So is a
    run's folder with ``eval`` in it, as TensorFlow's Estimator writes them. Their tags are named ``train/TAG`` and
    ``validation/TAG``.
    """

    kind = "tensorboard"
    title = "TensorBoard event files (scalars and scalar tensors)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the name contains ``MARK`` and the first record, a short one with the file version, fits the head."""
        return MARK in path.name and len(head) >= 12 and int.from_bytes(head[:8], "little") < len(head)

    def source_of(self, path: Path) -> Path:
        """Return the folder of the run; of two that differ in the part of the data, the training's."""
        folder = path.parent
        part = folder_part(folder)
        if part is None:
            return folder
        other = next((other for other in part.counterparts() if _has_events(other)), None)
        if (part.is_sure or other is not None) and _has_events(folder.parent):
            return folder.parent
        if other is None:
            return folder
        return other if part.left and part.word else folder if part.left else folder.parent

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Return nothing: every file of the source is itself recognised."""
        return ()

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a folder, usually one."""
        scalars, problem = _scalars(files, options)
        if not scalars:
            raise problem or UnreadableSource("these event files hold no scalars", where=str(files[0]))
        for run, facts in enumerate(courses_of(scalars, problem, options)):
            yield ImportedRun(facts, identity=str(run) if run else "")


def _scalars(files: Sequence[Path], options: ReadOptions) -> tuple[list[Scalar], UnreadableSource | None]:
    """Return all scalars, files in order of their first scalar's time, and the last problem, if any."""
    found: list[list[Scalar]] = []
    folders = {path.parent for path in files}
    problem: UnreadableSource | None = None
    for path in files:
        scalars: list[Scalar] = []
        found.append(scalars)
        prefix = _prefix(path.parent) if len(folders) > 1 else ""
        try:
            plugins: dict[str, str] = {}
            for record in records(path, is_growing=options.is_growing):
                scalars.extend(_scalars_of(record, prefix, plugins, len(found)))
        except UnreadableSource as error:
            problem = error if error.where else UnreadableSource(error.what, where=str(path))
    found.sort(key=lambda scalars: scalars[0].wall_ns if scalars else 0)
    ordered = [scalar for scalars in found for scalar in scalars]
    return (_of_part(ordered, *folders) if len(folders) == 1 else ordered), problem


def _has_events(folder: Path) -> bool:
    """Whether a folder holds an event file."""
    return any(folder.glob(f"*{MARK}*"))


def _prefix(folder: Path) -> str:
    """Return what the tags of a folder have in front where it is a part of a run."""
    part = folder_part(folder)
    if part is None:
        return ""
    if folder.name.startswith("eval_"):  # The Estimator has one for each of several evaluations.
        return f"{folder.name}/"
    return f"{part.word or 'train'}/"


def _of_part(scalars: list[Scalar], folder: Path) -> list[Scalar]:
    """Return the scalars of a folder with the part in their tags, if its name alone says that they are evaluations."""
    part = folder_part(folder)
    if part is None or not (part.word and part.is_sure) or part.left:
        return scalars
    if any(is_evaluation(tag) or tag.casefold().startswith("train") for tag in {scalar.tag for scalar in scalars}):
        return scalars
    return [scalar._replace(tag=f"{part.word}/{scalar.tag}") for scalar in scalars]


def _scalars_of(record: bytes, prefix: str, plugins: dict[str, str], stream: int) -> Iterator[Scalar]:
    """Yield the scalars of an ``Event``. Only a tag's first event names its plugin."""
    wall, step, summary = 0.0, 0, b""
    for field, wire, value in fields(record):
        if field == 1:
            wall = double(value)
        elif field == 2 and wire == VARINT and isinstance(value, int):
            step = signed(value)
        elif field == 5 and wire == BYTES:
            summary = message(value)
    wall_ns = nanoseconds(wall) or 0
    for field, _, entry in fields(summary):
        if field == 1:
            tag, value_of = _value(message(entry), plugins)
            if value_of is not None:
                yield Scalar(prefix + tag, step, wall_ns, value_of, stream)


def _value(entry: bytes, plugins: dict[str, str]) -> tuple[str, float | None]:
    """Return tag and number of a ``Summary.Value``; None for the number where it holds no scalar."""
    tag, simple, tensor, metadata = "", None, None, None
    for field, wire, value in fields(entry):
        if field == 1:
            tag = text(value)
        elif field == 2 and wire == FIXED32:
            simple = float32(value)
        elif field == 8:
            tensor = message(value)
        elif field == 9:
            metadata = message(value)
    if metadata is not None:
        plugins.setdefault(tag, _plugin(metadata))
    if simple is not None or tensor is None:
        return tag, simple
    return tag, _number_of_tensor(tensor) if plugins.get(tag, "scalars") == "scalars" else None


def _plugin(metadata: bytes) -> str:
    """Return the plugin of a ``SummaryMetadata``; ``scalars`` where it names none."""
    for field, _, value in fields(metadata):
        if field == 1:
            for inner, _, name in fields(message(value)):
                if inner == 1:
                    return text(name)
    return "scalars"


def _number_of_tensor(tensor: bytes) -> float | None:
    """Return the single number of a ``TensorProto``; None where it has none, or several."""
    dtype, content, numbers = 0, b"", []
    for field, wire, value in fields(tensor):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 2 and _elements(message(value)) != 1:
            return None
        elif field == 4:
            content = message(value)
        elif field in (5, 6):
            letter = "f" if field == 5 else "d"
            numbers.extend(_unpacked(letter, message(value)))
        elif field in (7, 10, 11, 13, 16, 17):
            raw = varints(message(value)) if wire == BYTES else [value] if isinstance(value, int) else []
            numbers.extend(_from_integers(dtype, raw))
    if content:
        numbers = _from_content(dtype, content)
    return numbers[0] if len(numbers) == 1 else None


def _elements(shape: bytes) -> int:
    """Return the number of elements of a ``TensorShapeProto``."""
    count = 1
    for field, _, dimension in fields(shape):
        if field == 2:
            count *= next((signed(v) for f, _, v in fields(message(dimension)) if f == 1 and isinstance(v, int)), 0)
    return count


def _unpacked(letter: str, packed: bytes) -> list[float]:
    size = struct.calcsize(letter)
    return [
        float(value) for value in struct.unpack(f"<{len(packed) // size}{letter}", packed[: len(packed) // size * size])
    ]


def _from_content(dtype: int, content: bytes) -> list[float]:
    if dtype == _BFLOAT16 and len(content) == 2:
        return _unpacked("f", b"\0\0" + content)
    letter = _LETTERS.get(dtype)
    return _unpacked(letter, content) if letter and len(content) == struct.calcsize(f"<{letter}") else []


def _from_integers(dtype: int, raw: Sequence[int]) -> list[float]:
    """Convert integer fields to floats; half floats are stored as the integers of their bits."""
    if dtype in (19, _BFLOAT16):
        return [value for bits in raw for value in _from_content(dtype, (bits & 0xFFFF).to_bytes(2, "little"))]
    return [float(signed(value)) if dtype != 23 else float(value) for value in raw]
