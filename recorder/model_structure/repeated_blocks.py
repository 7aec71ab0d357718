"""Finds the repeated blocks of a model by structure alone: a tree of modules in, the nodes of the blocks out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from torch.nn import Embedding, Module

from .module_tree import ModuleNode


def attention_in(block: ModuleNode) -> ModuleNode | None:
    """Return the first self-attention module of a block; None without any. Names decide before classes."""
    inside = [node for node in block.walk() if node is not block and not node.is_cross_attention]
    for by_class in (False, True):
        for node in inside:
            if node.is_attention(by_class=by_class):
                return node
    return None


def repeated_blocks(root: ModuleNode) -> list[ModuleNode]:
    """Return the blocks of a model in the order of registration; none if nothing repeats.

    Blocks are modules of one class side by side, or in one ``ModuleList``, ``Sequential`` or ``ModuleDict``. Those with
    an attention module come first: all stacks of them, so that an encoder's blocks precede the decoder's. Without
    attention, blocks are the class that holds the most parameters, and else the layers of the class that repeats most.
    """
    return _attention_blocks(root) or _composite_blocks(root) or _layers(root)


def _families(root: ModuleNode) -> Iterator[list[ModuleNode]]:
    """Yield the modules of one class below each module, through plain containers."""
    for parent in root.walk():
        if parent.is_container and parent is not root:
            continue
        by_kind: dict[type[Module], list[ModuleNode]] = defaultdict(list)
        for member in parent.members():
            by_kind[member.kind].append(member)
        yield from by_kind.values()


def _attention_blocks(root: ModuleNode) -> list[ModuleNode]:
    kept = {
        id(member)
        for family in _families(root)
        for member in family
        if (len(family) > 1 or (member.parent is not None and member.parent.is_container))
        and not member.is_attention(by_class=True)
        and not member.is_attention(by_class=False)
        and attention_in(member) is not None
    }
    blocks = [node for node in root.walk() if id(node) in kept]
    # A stack of blocks repeats, too, where an encoder and a decoder share a class: the innermost are the blocks.
    return [node for node in blocks if not any(id(inner) in kept for inner in node.walk() if inner is not node)]


def _composite_blocks(root: ModuleNode) -> list[ModuleNode]:
    families = _merged(
        [node for node in family if node.is_composite and not _is_stage(node)] for family in _repeated(root)
    )
    return _in_order(root, max(families, key=_total_size, default=[]))


def _layers(root: ModuleNode) -> list[ModuleNode]:
    families = _merged([node for node in family if not node.is_composite] for family in _repeated(root))
    return _in_order(root, max(families, key=lambda family: (len(family), _total_size(family)), default=[]))


def _repeated(root: ModuleNode) -> Iterator[list[ModuleNode]]:
    """Yield the families of two or more modules with weights, without embeddings, normalisation and experts."""
    for family in _families(root):
        members = [node for node in family if _is_candidate(node)]
        if len(members) > 1:
            yield members


def _is_candidate(node: ModuleNode) -> bool:
    if isinstance(node.inner, Embedding) or node.is_norm or "expert" in node.name.lower():
        return False
    return any(each.own_matrices() for each in node.walk())


def _is_stage(node: ModuleNode) -> bool:
    """Whether it holds a list of composite modules of one class: those are the blocks, not the stage."""
    for container in node.children:
        kinds = [each.kind for each in container.members() if each.is_composite] if container.is_container else []
        if len(kinds) > len(set(kinds)) and "expert" not in container.name.lower():
            return True
    return False


def _merged(families: Iterable[list[ModuleNode]]) -> list[list[ModuleNode]]:
    by_kind: dict[type[Module], list[ModuleNode]] = defaultdict(list)
    for family in families:
        for node in family:
            by_kind[node.kind].append(node)
    return list(by_kind.values())


def _in_order(root: ModuleNode, family: list[ModuleNode]) -> list[ModuleNode]:
    """Return a family in the order of the tree, without those inside of others."""
    chosen = {id(node) for node in family}
    return [
        node for node in root.walk() if id(node) in chosen and not any(id(each) in chosen for each in node.ancestors())
    ]


def _total_size(family: list[ModuleNode]) -> int:
    return sum(node.size() for node in family)
