"""Reads the folder of a training of Stable-Baselines3: ``monitor.csv`` of its environments, ``evaluations.npz``."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..encodings.lines import TextLines
from ..encodings.numbers import nanoseconds, number, step_of
from ..source import UNFINISHED, Fact, ImportedRun, Omissions, ReadOptions, UnreadableSource

_EVALUATIONS: Final = "evaluations.npz"
_MONITOR: Final = "monitor.csv"

#: Monitors of one training: one environment's, or those of several, by number.
_OF_TRAINING: Final = re.compile(r"(?:\d+\.)*\.?monitor\.csv")

#: Arrays of ``evaluations.npz``, one value for each episode of an evaluation, and the names of their means in the log.
_MEANS: Final = {"results": "eval/mean_reward", "ep_lengths": "eval/mean_ep_length", "successes": "eval/success_rate"}


class _Episode(NamedTuple):
    """An episode of the training: when it ended, in seconds since 1970, its length in steps, and its values."""

    ended_s: float
    length: int
    values: Mapping[str, float]


class StableBaselinesReader:
    """Reader for the monitors and evaluations of Stable-Baselines3, and for monitors of OpenAI's Baselines.

    A step is one of an environment. The episodes of all environments are counted in the order of their ends, as
    Stable-Baselines3 plots them.
    """

    kind = "stable_baselines"
    title = "Stable-Baselines3 monitor.csv and evaluations.npz"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether it is a monitor, which begins with its settings, or the archive of evaluations."""
        if path.name == _EVALUATIONS:
            return head.startswith(b"PK") and b"timesteps.npy" in head
        return path.name.endswith(_MONITOR) and head.startswith(b"#{")

    def source_of(self, path: Path) -> Path:
        """Return the folder for files of a training; a monitor of another name is a source of its own."""
        return path.parent if path.name == _EVALUATIONS or _OF_TRAINING.fullmatch(path.name) else path

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Return nothing: every file of the source is itself recognised."""
        return ()

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the run: its episodes as ``step_end``, its evaluations as ``evaluate``, by step."""
        omissions = Omissions(str(files[0] if len(files) == 1 else files[0].parent))
        config: dict[str, Any] = {}
        episodes: list[_Episode] = []
        evaluations: list[Fact] = []
        problems: list[UnreadableSource] = []
        for path in files:
            try:
                if path.name == _EVALUATIONS:
                    evaluations += _evaluations(path)
                else:
                    episodes += _episodes(path, omissions, config, is_growing=options.is_growing)
            except UnreadableSource as error:
                problems.append(error)
        episodes.sort(key=lambda episode: episode.ended_s)
        steps = itertools.accumulate(episode.length for episode in episodes)
        facts = [
            Fact("step_end", step, episode.values, time_ns=nanoseconds(episode.ended_s) or 0)
            for step, episode in zip(steps, episodes, strict=True)
        ]
        facts = sorted(facts + evaluations, key=lambda fact: fact.step)
        started_ns = nanoseconds(config.get("t_start")) or None
        yield ImportedRun(_told(facts, problems, omissions), config=config, started_ns=started_ns)


def _told(facts: Iterable[Fact], problems: Sequence[UnreadableSource], omissions: Omissions) -> Iterator[Fact]:
    yield from facts
    for problem in problems:
        raise problem
    omissions.tell()


def _episodes(path: Path, omissions: Omissions, config: dict[str, Any], *, is_growing: bool) -> Iterator[_Episode]:
    """Yield the episodes of a monitor; add its settings to the configuration, where they are the first."""
    lines = TextLines(path)
    text = iter(lines)
    try:
        settings = json.loads(next(text, "").removeprefix("#"))
        started_s = float(settings["t_start"])
    except (ValueError, KeyError, TypeError):
        raise UnreadableSource("its first line holds no settings with t_start", where=str(path)) from None
    if started_s < config.get("t_start", math.inf):
        config.update(settings, t_start=started_s)
    for index, row in enumerate(csv.DictReader(text), start=3):
        try:
            values = {name: held for name, cell in row.items() if cell and (held := number(cell)) is not None}
            yield _Episode(started_s + values.pop("t"), step_of(values["l"], ""), values)
        except (KeyError, TypeError, UnreadableSource):
            omissions.add(f"{path.name}, line {index}", "no episode with its reward r, length l and time t")
    if lines.unfinished and not is_growing:
        omissions.add(path.name, f"last line: {UNFINISHED}")


def _evaluations(path: Path) -> Iterator[Fact]:
    """Yield the evaluations of the archive: means over their episodes."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            steps = arrays["timesteps"].tolist()
            held = {name: arrays[array].tolist() for array, name in _MEANS.items() if array in arrays.files}
        for step, *episodes in zip(steps, *held.values(), strict=True):
            yield Fact(
                "evaluate", step_of(step, ""), {name: _mean(own) for name, own in zip(held, episodes, strict=True)}
            )
    except Exception as error:  # numpy raises whatever its parsers of zip, headers and arrays do.
        raise UnreadableSource(f"no evaluations of Stable-Baselines3 ({error})", where=str(path)) from None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
