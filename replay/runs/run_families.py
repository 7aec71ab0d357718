"""Finds the family of a run: the runs that it is not independent of, because one project or sweep made them.

Takes what ``run.json`` says of a run, returns a key and a value. Intervals draw whole families.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.run_fields import config_value
from ...store.run_info import RunInfo, flattened

#: Keys that name a fact of the run. Any other key is one of its configuration.
OF_THE_RUN: Final = ("group", "tags", "name", "folder", "run")

#: Words of configuration keys whose values differ between runs of one configuration: seeds, paths and names of the run.
_OWN_WORDS: Final = frozenset(
    ("seed", "seeds", "path", "paths", "dir", "directory", "folder", "file", "logdir", "host", "hostname", "timestamp")
) | frozenset(("date", "datetime", "uuid", "desc", "description", "comment", "notes"))
_OWN_KEYS: Final = frozenset(("random_state", "run_name", "run_id", "exp_name", "exp_id", "id", "tag"))
_PATH_STARTS: Final = ("/", "./", "../", "~")

#: Parts of a text that differ between runs of one configuration: addresses, ids, dates, times, numbers of seeds, runs.
_OWN_PARTS: Final = re.compile(
    r"""0x[0-9a-f]+ | [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}
    | (?<!\d)(19|20)\d\d[-_./]?[01]\d[-_./]?[0-3]\d
    ([T\s_-]*[012]\d[:._-]?\d\d([:._-]?\d\d([.,]\d+)?)?)?([+-]\d\d:?\d\d)?
    | (jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[\s_-]?\d\d(?!\d) | (?<!\d)\d\d[:-]\d\d[:-]\d\d(?!\d)
    | (?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}(?![0-9a-z]) | (?<![a-z])(seed|run|trial|exp)[\W_]*\d+""",
    re.IGNORECASE | re.VERBOSE,
)

#: The key of runs that were imported from one folder.
SOURCE_FOLDER: Final = "source folder"

#: Parts of a source's folder that name its family: the import root and the first folder in it.
_FOLDER_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class Family:
    """A set of runs that are not independent of each other.

    Attributes:
        key: What tells it: the key that a user named, else ``configuration``, ``group`` or ``source folder``.
        value: The value that its runs share.
    """

    key: str
    value: str


#: A program that Python read from its input or from ``-c``.
_UNNAMED: Final = "unnamed program"

#: The key of runs that one configuration tells apart from others.
CONFIGURATION: Final = "configuration"

#: The family of results that no run on disk belongs to.
UNKNOWN_FAMILY: Final = Family(CONFIGURATION, "")


def family_of(info: RunInfo, key: str | None = None) -> Family:
    """Return the family of a run: the first of the named key, its configuration, its group, its source folder.

    The configuration counts without its numbers, seeds and names. A group, such as a project's name, holds runs of many
    kinds, so it counts only where nothing else tells them apart.

    Args:
        info: The run.
        key: ``group``, ``tags``, ``name``, ``folder``, ``run`` (each run is a family), or a key of the configuration,
            whole or its last part, as in questions for runs. A run without it has the family that it would have without
            a key.
    """
    if key is not None and (value := _value_of(info, key)):
        return Family(key, value)
    kept = _kept_of_config(info)
    if kept:
        return Family(CONFIGURATION, f"{_program(info)} {_digest(kept)}".strip())
    if info.group:
        return Family("group", info.group)
    if folder := _source_folder(info):
        return Family(SOURCE_FOLDER, folder)
    return Family(CONFIGURATION, _program(info))


def configuration_of(info: RunInfo) -> str:
    """Return a digest of a run's configuration, numbers included; empty without one.

    Seeds, paths, dates, ids and the run's name are left out: runs with equal digests are near-duplicates.
    """
    config = flattened(info.config).items()
    kept = {name: _shared(value, info.name) for name, value in config if not is_of_one_run(name, value)}
    return _digest(kept) if kept else ""


def family_values(info: RunInfo) -> dict[str, str]:
    """Return by each key that may tell families apart what a run has under it."""
    found = {key: _value_of(info, key) for key in ("group", "folder", "run")}
    config = flattened(info.config).items()
    return found | {name: json.dumps(value, default=str) for name, value in config if not _is_name(name, value)}


def family_choices(runs: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return how many families runs would be by each key that tells some apart, the fewest first.

    Args:
        runs: What each run has under each key, from ``family_values``.
    """
    counts = {
        key: len({one[key] for one in runs})
        for key in dict.fromkeys(key for one in runs for key in one)
        if all(key in one for one in runs)
    }
    chosen = {key: count for key, count in counts.items() if count > 1 or key == "group"}
    return dict(sorted(chosen.items(), key=lambda one: one[1]))


def _is_name(key: str, value: Any) -> bool:
    """Whether an entry of a configuration names a run. A seed tells repeats apart, so no family either."""
    return is_of_one_run(key, value) or isinstance(value, (list, dict))


def check_family_key(key: str, families: list[Family], infos: Iterator[RunInfo]) -> None:
    """Check that any run has the key of families that a user named.

    Args:
        key: The key.
        families: The families of the runs.
        infos: The runs, read only when no run has the key, for the error's suggestion.

    Raises:
        TelemetryError: None has.
    """
    if not families or any(family.key == key for family in families):
        return
    known = {*OF_THE_RUN, *(name for info in infos for name in flattened(info.config))}
    raise TelemetryError("no run has this key of families", got=key, fix=suggestion(key, known))


def _value_of(info: RunInfo, key: str) -> str:
    facts = {
        "group": info.group or "",
        "tags": ", ".join(sorted(info.tags)),
        "name": info.name,
        "folder": _source_folder(info),
        "run": info.run_id,
    }
    if key in facts:
        return facts[key]
    value = config_value(flattened(info.config), key.removeprefix("config."))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _source_folder(info: RunInfo) -> str:
    """Return the import root's name and the first folder in it that leads to the source; empty for a recorded run.

    A folder that a run is named after is the run's own, as a file is: it holds no other run.
    """
    folder = (info.source or {}).get("folder")
    if not isinstance(folder, str):
        return ""
    parts = PurePath(folder).parts
    is_own = len(parts) > 1 and parts[1:] == PurePath(info.name).parts
    return "/".join(parts[: len(parts) - is_own][:_FOLDER_PARTS])


def _program(info: RunInfo) -> str:
    """Return the name of the program that recorded a run; empty if it is not known."""
    argv = info.attempts[0].environment.get("argv")
    program = PurePath(str(argv[0])).name if isinstance(argv, list) and argv else ""
    return _UNNAMED if program in ("-", "-c") else program


def _kept_of_config(info: RunInfo) -> dict[str, object]:
    """Return the entries of a configuration that tell families: without numbers, seeds, paths, dates, the run's name.

    Runs that differ only in numbers are a parameter sweep, and a sweep is one family.
    """
    config = flattened(info.config).items()
    return {name: _shared(value, info.name) for name, value in config if not _is_own(name, value)}


def _digest(kept: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode(errors="surrogatepass")).hexdigest()[:10]


def is_of_one_run(name: str, value: Any) -> bool:
    """Whether an entry of a configuration names a run and says nothing of how it trains: a seed, a path, a date.

    Args:
        name: The key, dotted where it is nested.
        value: Its value.
    """
    key = name.rpartition(".")[2].casefold().replace("-", "_")
    if name.casefold() == "name" or key in _OWN_KEYS or not _OWN_WORDS.isdisjoint(key.split("_")):
        return True
    return isinstance(value, str) and value.startswith(_PATH_STARTS)


def _is_own(name: str, value: Any) -> bool:
    """Whether an entry of a configuration says nothing of a run's family: a number, a seed, a path, a name of a run."""
    numbers = value if isinstance(value, list) else [value]
    return is_of_one_run(name, value) or all(map(_is_number, numbers))


def _shared(value: Any, run_name: str) -> Any:
    """Return a value of a configuration without the parts of its texts that differ between runs.

    A run's name counts if it has a digit: a name without one may be a word of the configuration, such as a model's.
    """
    if isinstance(value, list):
        return [_shared(entry, run_name) for entry in value]
    if not isinstance(value, str):
        return value
    if any(map(str.isdigit, run_name)):
        value = re.sub(rf"(?<![^\W_]){re.escape(run_name)}(?![^\W_])", "", value, flags=re.IGNORECASE)
    return _OWN_PARTS.sub("", value)


def _is_number(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None or isinstance(value, (bool, int, float))
    try:
        float(value)
    except ValueError:
        return False
    return True
