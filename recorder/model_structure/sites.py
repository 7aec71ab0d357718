"""Reads ``sites=``, with which a loop names the modules of a model that structure does not show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeAlias

from ...store.errors import TelemetryError
from .module_tree import ModuleNode

#: The keys of ``sites``, with what their modules are.
KEYS: Final = {
    "blocks": "the repeated blocks, in depth order",
    "attention": "the self-attention module of each block",
    "attention_scores": "modules that output the masked scores; of an nn.Softmax the input counts",
    "norms": "normalisation layers, whose metrics carry the module's name",
}

Sites: TypeAlias = Mapping[str, str | Sequence[str]]


def matched(root: ModuleNode, sites: Sites | None, key: str) -> list[ModuleNode]:
    """Return the modules that a key names, in the order of the tree; none without the key.

    Raises:
        TelemetryError: A pattern matches no module.
    """
    value = (sites or {}).get(key, ())
    nodes = [node for node in root.walk() if node is not root]
    names: set[str] = set()
    for pattern in (value,) if isinstance(value, str) else value:
        found = {node.name for node in nodes if _matches(pattern, node.name)}
        if not found:
            raise TelemetryError(
                "no module of the model has this name", where=f"sites[{key!r}]", got=pattern, fix=_near(pattern, nodes)
            )
        names |= found
    return [node for node in nodes if node.name in names]


def checked(sites: Sites | None) -> None:
    """Check the keys of ``sites``.

    Raises:
        TelemetryError: It is no mapping of texts or sequences, or a key is unknown.
    """
    if not isinstance(sites or {}, Mapping):
        raise TelemetryError("not a mapping", where="sites", got=type(sites).__name__, fix=f"Keys: {', '.join(KEYS)}")
    for key, value in (sites or {}).items():
        if not isinstance(value, (str, list, tuple)) or not all(isinstance(each, str) for each in value):
            raise TelemetryError("not a pattern or a list of them", where=f"sites[{key!r}]", got=value)
        if key not in KEYS:
            near = get_close_matches(str(key), KEYS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(KEYS)}"
            raise TelemetryError("unknown key", where="sites", got=key, fix=hint)


def per_block(blocks: Sequence[ModuleNode], nodes: Sequence[ModuleNode], key: str) -> dict[str, ModuleNode]:
    """Return the module of each block, by the block's name.

    A module belongs to the block that holds it. If no block holds any, the first belongs to the first block.

    Raises:
        TelemetryError: A block holds two of them, or their number is not that of the blocks.
    """
    owners = {block.name for block in blocks}
    held = [(above.name, node) for node in nodes for above in (node, *node.ancestors()) if above.name in owners]
    if nodes and not held and len(nodes) == len(blocks):
        held = [(block.name, node) for block, node in zip(blocks, nodes, strict=True)]
    found = dict(held)
    if len(found) < len(nodes):
        fix = "Name one module in each block"
        raise TelemetryError(f"{len(nodes)} modules for {len(blocks)} blocks", where=f"sites[{key!r}]", fix=fix)
    return found


def _matches(pattern: str, name: str) -> bool:
    """Whether a name has this form. ``*`` stands for any characters but dots."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]*"), name) is not None


def _near(pattern: str, nodes: Sequence[ModuleNode]) -> str:
    forms = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", node.name) for node in nodes))
    near = get_close_matches(pattern, forms, n=3, cutoff=0.5) or forms[:5]
    listed = ", ".join(repr(form) for form in near) or "none"
    return f"Near names: {listed}"
