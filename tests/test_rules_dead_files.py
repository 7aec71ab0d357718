"""``check`` warns of each file in ``data/dead-files/files.txt``: files that load, and can never act as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from steptape.rules.checks.findings import findings_of
from steptape.rules.policy_file.policy import parse_policy

FILES = (Path(__file__).parent / "data" / "dead-files" / "files.txt").read_text(encoding="utf-8")
CONTROLLER = {"name": "c", "triggers": "[on_step_end]", "rule": "loss > 2", "operations": "[]"}


class DeadFile(NamedTuple):
    """A file, and the warning of it."""

    kind: str
    words: str
    text: str
    line: int
    column: int


def dead_files() -> list[DeadFile]:
    """Return the files of the table."""
    return [_file(*block.partition("\n")[::2]) for block in re.split(r"^== ", FILES, flags=re.MULTILINE)[1:]]


def _file(heading: str, block: str) -> DeadFile:
    text = block.strip("\n") + "\n"
    if "controllers:" not in text:
        own, _, top = text.partition("--\n")
        given = {line.split(":")[0] for line in own.splitlines()}
        lines = [*own.splitlines(), *(f"{key}: {value}" for key, value in CONTROLLER.items() if key not in given)]
        text = f"{top}controllers:\n  -\n" + "".join(f"    {line}\n" for line in lines)
    before = text.partition("¶")[0]
    kind, _, words = heading.partition(": ")
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    return DeadFile(kind, words, text.replace("¶", ""), *place)


@pytest.mark.parametrize("file", dead_files(), ids=lambda file: file.words[:60])
def test_a_file_that_cannot_act_as_written_is_warned_of(file: DeadFile) -> None:
    """With the kind, at the place, and in these words."""
    found = findings_of(parse_policy(file.text, source="p.yaml"))
    said = [(str(each.code), each.line, each.column) for each in found if file.words in each.message]

    assert said == [(file.kind, file.line, file.column)], "\n".join(map(str, found))
