"""Reads a run's configuration from the file that its script keeps in the run's folder: ``hparams.yaml``, ``args.json``.

Which paths are a source's goes in; the files, and what they hold, come out. Nothing in a file is run or constructed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from .source import UnreadableSource

#: The last files of AlgoPerf and of Hydra; the others are Lightning's, Ultralytics', RLlib's and those of many scripts.
#: Where two files have a key, the first counts.
_NAMES: Final = (
    *("hparams.yaml", "hparams.json", "args.yaml", "args.json", "params.json"),
    *("config.yaml", "config.yml", "config.json", ".hydra/config.yaml", "meta_data_0.json"),
)

#: Prefixes of AlgoPerf's metadata about the machine, which are not settings of the run.
_READINGS: Final = ("cpu", "gpu", "mem.", "net.", "os_", "python_", "git_")

_MOST_BYTES: Final = 1024 * 1024

#: Bound on what aliases may repeat.
_MOST_VALUES: Final = 100_000


def companions_of(place: Path, files: Sequence[Path]) -> list[Path]:
    """Return the configurations in the folder of a source; none where the folder holds other logs of the same suffix.

    Args:
        place: The source: a file, or the folder that is one.
        files: Its files.
    """
    folder = place if place.is_dir() else place.parent
    found = [path for name in _NAMES if (path := folder / name).is_file()]
    return [] if not found or (folder != place and _is_shared(folder, files)) else found


def _is_shared(folder: Path, files: Sequence[Path]) -> bool:
    """Whether a folder holds files with the suffix of these that may be logs of other runs."""
    own, suffixes = {file.name for file in files}.union(_NAMES), {file.suffix.casefold() for file in files}
    with os.scandir(folder) as entries:
        return any(entry.name not in own and Path(entry.name).suffix.casefold() in suffixes for entry in entries)


def configuration(companions: Sequence[Path]) -> tuple[dict[str, object], str]:
    """Return what the files hold, and a sentence about the first that cannot be read; empty where each can."""
    config: dict[str, object] = {}
    doubt = ""
    for path in companions:
        try:
            found = _settings(path)
        except UnreadableSource as error:
            doubt = doubt or f"{path.name} is not read as the configuration ({error.what})"
            continue
        if path.name == "meta_data_0.json":
            found = {key: value for key, value in found.items() if not key.startswith(_READINGS)}
        config = {**found, **config}
    return config, doubt


def _settings(path: Path) -> dict[str, object]:
    """Return the mapping in a file.

    Raises:
        UnreadableSource: It cannot be read, or holds something else.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnreadableSource(f"it is larger than {_MOST_BYTES:,} bytes")
        data = path.read_bytes()
        document = json.loads(data) if path.suffix == ".json" else yaml.load(data, _PlainLoader)
        plain = _plain(document, [_MOST_VALUES])
    except OSError as error:
        raise UnreadableSource(str(error.strerror or error)) from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UnreadableSource(f"{error.problem or error.context}{line}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableSource(" ".join(str(error).split())) from None
    if not isinstance(plain, dict):
        raise UnreadableSource("it holds no names with values")
    return plain


def _plain(value: object, left: list[int]) -> object:
    """Return a copy with text for keys, without aliases.

    Raises:
        UnreadableSource: It has more values than are ``left``.
    """
    left[0] -= 1
    if left[0] < 0:
        raise UnreadableSource(f"it holds more than {_MOST_VALUES:,} values")
    if isinstance(value, Mapping):
        return {str(name): _plain(entry, left) for name, entry in value.items()}
    return [_plain(entry, left) for entry in value] if isinstance(value, list) else value


class _PlainLoader(yaml.SafeLoader):
    """The safe loader, with exponents as people write them, and with the tag of an object in its place."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave merge keys: nested ones would grow without bound."""


def _of_tag(loader: _PlainLoader, _: str, node: yaml.Node) -> Any:
    """Return the list that a tuple is, or the tag of any other object, which Lightning writes for what it saves."""
    if isinstance(node, yaml.SequenceNode) and node.tag.endswith("python/tuple"):
        return loader.construct_sequence(node, deep=True)
    return node.value if node.tag.endswith(":merge") else node.tag.rpartition("yaml.org,2002:")[2]


_PlainLoader.add_multi_constructor("", _of_tag)
#: YAML 1.1 reads ``1e-4`` as text.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)
