"""Finds params, definitions, cooldowns and states that nothing in the file names, as a rename leaves them behind.

Takes a policy's YAML tree; yields the keys. A name that occurs anywhere as a word counts as used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final, NamedTuple

import yaml

from ..policy_file.document import children

#: The keys at the top that declare names, and the word for what each of them declares.
_DECLARING: Final = {"params": "param", "define": "definition", "cooldowns": "cooldown", "states": "state"}
#: What is for people, in a file and in a controller.
_FOR_PEOPLE: Final = frozenset({"name", "description"})
_WORD: Final = re.compile(r"\w+")
_IN_BRACES: Final = re.compile(r"\{[^{}]*\}")


class Unused(NamedTuple):
    """A declared name that nothing names.

    Attributes:
        key: The node of the name.
        what: What is wrong, and how to mend it.
    """

    key: yaml.ScalarNode
    what: str


def unused_names(root: yaml.Node | None, read: Iterable[str]) -> Iterator[Unused]:
    """Yield the names that a file declares and never names.

    Args:
        root: The top of the file.
        read: The names that its rules read as metrics.
    """
    top = list(_entries(root))
    metrics = sorted(read)
    users: dict[str, set[str | None]] = {}
    for name, words in (found for place in top for found in _words(*place)):
        for word in words:
            users.setdefault(word, set()).add(name)
    for section, node in top:
        for key in {key.value: key for key, _ in _entries(node)}.values() if section.value in _DECLARING else ():
            if not users.get(key.value, set()) - {key.value}:
                near = get_close_matches(key.value, metrics, n=1, cutoff=0.7)
                what = f"the {_DECLARING[section.value]} '{key.value}' is used nowhere"
                meant = f"The rules read '{near[0]}' as a metric: is it meant?" if near else "Leave it out."
                yield Unused(key, f"{what}. {meant}")


def _entries(node: yaml.Node | None) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return ((key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode))


def _words(section: yaml.ScalarNode, node: yaml.Node) -> Iterator[tuple[str | None, set[str]]]:
    """Yield the words of the values under a key at the top, each with the name that it declares; None if it does not.

    What is for people holds none.
    """
    if section.value in _FOR_PEOPLE or section.value == "params":
        return
    if section.value in _DECLARING:
        for key, value in _entries(node):
            yield key.value, _words_within(value)
    else:
        yield None, _words_within(node, is_named=section.value == "controllers")


def _words_within(node: yaml.Node, *, is_named: bool = False) -> set[str]:
    waiting, found = [node], set[str]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, yaml.ScalarNode):
            found.update(_WORD.findall(each.value))
            continue
        for key, value in _entries(each):
            if key.value == "message" and isinstance(value, yaml.ScalarNode):
                found.update(word for field in _IN_BRACES.findall(value.value) for word in _WORD.findall(field))
            elif not (is_named and key.value == "name"):
                waiting.append(value)
        waiting += children(each) if isinstance(each, yaml.SequenceNode) else []
    return found
