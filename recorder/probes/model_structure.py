"""Finds what probes watch in a model: blocks, sentinel blocks and tensors, normalisation layers.

A model and ``sites`` go in, a ``ModelStructure`` comes out. It holds no reference to the model itself, only to modules
and parameters inside of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

from torch.nn import Embedding, Module, Parameter

from ...store.errors import TelemetryError
from .module_tree import ModuleNode, tree_of

#: The greatest number of main weights of a block that are sentinel tensors. A decoder's block with cross-attention and
#: a gated MLP has 11; a block of experts has hundreds.
SENTINEL_WEIGHTS: Final = 12
COMPILED: Final = "it lies in a region of torch.compile, which runs no hooks"
_NO_BLOCKS: Final = "no repeated blocks are found in the model; name them in sites={'blocks': 'layers.*'}"
_DEBUG: Final = 2
_POSITION: Final = re.compile(r"(^|[._])(wpe|pos)", re.IGNORECASE)
_TOKEN_TYPE: Final = re.compile(r"type|segment|relative", re.IGNORECASE)
_FINAL: Final = re.compile(r"final|last|_f$", re.IGNORECASE)

#: The keys of ``sites``, with what their modules are.
KEYS: Final = {
    "blocks": "the repeated blocks, in depth order",
    "attention": "the self-attention module of each block",
    "attention_scores": "modules that output the masked scores; of an nn.Softmax the input counts",
    "norms": "normalisation layers, whose metrics carry the module's name",
}
Sites: TypeAlias = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A repeated block of a model.

    Attributes:
        index: Its number from 0, in depth order.
        name: The name of the module.
        module: The module whose output is the block's.
        main_weights: Its attention and MLP matrices, by name. A weight that blocks share belongs to the first.
        attention: Its self-attention module; None without any.
        scores: The module that ``sites`` names for the attention scores; None without any.
        attention_norm: The normalisation layer in front of the attention module; None without any.
        is_compiled: Whether a hook on the block would run inside a compiled region.
        is_compiled_inside: The same for modules inside the block.
    """

    index: int
    name: str
    module: Module
    main_weights: Mapping[str, Parameter]
    attention: Module | None
    scores: Module | None
    attention_norm: Module | None
    is_compiled: bool
    is_compiled_inside: bool


@dataclass(frozen=True, slots=True, eq=False)
class ModelStructure:
    """The parts of a model that probes watch.

    Attributes:
        blocks: The repeated blocks in depth order; an encoder's come before the decoder's.
        sentinels: The indices of the sentinel blocks: the first, the middle and the last.
        parameters: All parameters by name, shared ones once.
        sentinel_parameters: Token and position embedding, final norm, output layer unless tied, and the main weights of
            the sentinel blocks.
        final_norm: The normalisation layer after the last block; None without any.
        named_norms: The normalisation layers that ``sites`` names; they replace those of structure.
        absent: Why something has no metrics, by the name or pattern of the metrics.
    """

    blocks: tuple[Block, ...]
    sentinels: tuple[int, ...]
    parameters: Mapping[str, Parameter]
    sentinel_parameters: Mapping[str, Parameter]
    final_norm: Module | None
    named_norms: Mapping[str, Module]
    absent: Mapping[str, str]

    @property
    def norm_sites(self) -> dict[str, Module]:
        """The normalisation layers of sentinel blocks and the final one, by site."""
        return self.norm_sites_at(1)

    def blocks_at(self, level: int) -> tuple[Block, ...]:
        """Return the blocks whose inside is watched at a level: the sentinels, in debug all, in minimal none."""
        if level >= _DEBUG:
            return self.blocks
        return tuple(self.blocks[index] for index in self.sentinels) if level else ()

    def parameters_at(self, level: int) -> Mapping[str, Parameter]:
        """Return the parameters with metrics of their own at a level."""
        if level >= _DEBUG:
            return self.parameters
        return self.sentinel_parameters if level else {}

    def norm_sites_at(self, level: int) -> dict[str, Module]:
        """Return the normalisation layers that are watched at a level, by site."""
        if not level or self.named_norms:
            return dict(self.named_norms) if level else {}
        sites = {
            f"block_{block.index}/attn_norm": block.attention_norm
            for block in self.blocks_at(level)
            if not block.is_compiled_inside
        }
        sites["final_norm"] = self.final_norm
        return {site: module for site, module in sites.items() if module is not None}


def structure_of(model: Module, sites: Sites | None = None) -> ModelStructure:
    """Find the structure of a model, by the shape of its module tree and by ``sites``.

    Args:
        model: The model, also in DistributedDataParallel, FSDP or torch.compile.
        sites: Names of modules where structure does not show them. Each key replaces what structure finds:

            - ``blocks``: the repeated blocks, in depth order;
            - ``attention``: the self-attention module of each block;
            - ``attention_scores``: modules that output masked attention scores; of an ``nn.Softmax`` the input counts;
            - ``norms``: normalisation layers; their metrics are ``Activations/MODULE NAME/...``.

            A value is one pattern or a list of them. A pattern is a name of ``named_modules()``; ``*`` stands for any
            characters but dots: ``{"blocks": "transformer.h.*", "attention_scores": "transformer.h.*.attn.scores"}``.

    Raises:
        TelemetryError: ``sites`` has an unknown key, or a pattern that matches no module.
    """
    _checked(sites)
    root = tree_of(model)
    nodes = _matched(root, sites, "blocks") or _repeated_blocks(root)
    scores = _per_block(nodes, _matched(root, sites, "attention_scores"), "attention_scores")
    attention = _per_block(nodes, _matched(root, sites, "attention"), "attention")
    norms = {node.name: node for node in _matched(root, sites, "norms")}
    if not attention:
        attention = {node.name: found for node in nodes if (found := _attention_in(node)) is not None}
    parameters, names = _parameters(root)
    blocks = tuple(_blocks(nodes, attention, scores, names))
    sentinels = tuple(sorted({0, len(blocks) // 2, len(blocks) - 1})) if blocks else ()
    final_norm = _final_norm(nodes)
    tensors = [*_embeddings(root, nodes), *_own(final_norm), *_output_layer(root, nodes)]
    for index in sentinels:
        tensors += list(blocks[index].main_weights.values())[:SENTINEL_WEIGHTS]
    is_hidden = final_norm is None or final_norm.is_compiled
    return ModelStructure(
        blocks=blocks,
        sentinels=sentinels,
        parameters=parameters,
        sentinel_parameters={names[id(value)]: value for value in tensors},
        final_norm=None if is_hidden or final_norm is None else final_norm.module,
        named_norms={name: node.module for name, node in norms.items() if not node.is_compiled},
        absent=_absences(blocks, sentinels, final_norm, norms),
    )


def _parameters(root: ModuleNode) -> tuple[dict[str, Parameter], dict[int, str]]:
    """Return all parameters by name, and the name of each by its identity: the first of a shared one."""
    parameters: dict[str, Parameter] = {}
    names: dict[int, str] = {}
    for node in root.walk():
        for local, value in node.own_parameters().items():
            if id(value) not in names:
                name = f"{node.name}.{local}" if node.name else local
                names[id(value)], parameters[name] = name, value
    return parameters, names


def _blocks(
    nodes: Sequence[ModuleNode],
    attention: Mapping[str, ModuleNode],
    scores: Mapping[str, ModuleNode],
    names: Mapping[int, str],
) -> Iterator[Block]:
    taken: set[int] = set()
    for index, node in enumerate(nodes):
        matrices = [value for each in node.walk() for value in each.own_matrices().values()]
        own = {names[id(value)]: value for value in matrices if id(value) not in taken}
        taken |= {id(value) for value in own.values()}
        inner, score = attention.get(node.name), scores.get(node.name)
        norm = None if inner is None else _norm_before(inner, node)
        yield Block(
            index=index,
            name=node.name,
            module=node.module,
            main_weights=own,
            attention=None if inner is None else inner.module,
            scores=None if score is None else score.module,
            attention_norm=None if norm is None else norm.module,
            is_compiled=node.is_compiled,
            is_compiled_inside=node.is_compiled_inside,
        )


def _norm_before(attention: ModuleNode, block: ModuleNode) -> ModuleNode | None:
    """Return the first normalisation layer beside an attention module, or beside what holds it in the block.

    The order of registration says little: ``Activations`` checks at run time that it runs first.
    """
    if getattr(block.inner, "norm_first", True) is False:
        return None
    for above in attention.ancestors():
        norms = [child for child in above.children if child.is_norm]
        if norms or above is block:
            return norms[0] if norms else None
    return None


def _final_norm(blocks: Sequence[ModuleNode]) -> ModuleNode | None:
    """Return the normalisation layer beside the list of the last block, or beside what holds it, and after it."""
    if not blocks:
        return None
    below = blocks[-1]
    for above in blocks[-1].ancestors():
        place = above.children.index(below)
        after = [each for child in above.children[place + 1 :] for each in _reach(child)]
        later = [each for each in after if each.is_norm and "emb" not in each.component.lower()]
        earlier = [child for child in above.children[:place] if child.is_norm and _FINAL.search(child.component)]
        if later or earlier:
            return (later or earlier)[0]
        below = above
    return None


def _reach(node: ModuleNode) -> Iterator[ModuleNode]:
    """Yield a node, or what a plain container holds."""
    if node.is_container:
        yield from node.members()
    else:
        yield node


def _outside(root: ModuleNode, blocks: Sequence[ModuleNode]) -> list[ModuleNode]:
    inside = {id(each) for block in blocks for each in block.walk()}
    return [node for node in root.walk() if id(node) not in inside]


def _embeddings(root: ModuleNode, blocks: Sequence[ModuleNode]) -> Iterator[Parameter]:
    """Yield the first token embedding and the first position embedding outside of the blocks."""
    token: Parameter | None = None
    position: Parameter | None = None
    for node in _outside(root, blocks):
        is_table = isinstance(node.inner, Embedding)
        for local, value in node.own_parameters().items():
            if _POSITION.search(f"{node.component}.{local}"):
                position = value if position is None else position
            elif is_table and not _TOKEN_TYPE.search(node.component):
                token = value if token is None else token
    yield from (value for value in (token, position) if value is not None)


def _own(node: ModuleNode | None) -> Iterator[Parameter]:
    if node is not None:
        yield from node.own_parameters().values()


def _output_layer(root: ModuleNode, blocks: Sequence[ModuleNode]) -> Iterator[Parameter]:
    """Yield the weight of the last layer, if it comes after the blocks and is not tied to an embedding."""
    order = list(root.walk())
    last = next((node for node in reversed(order) if node.own_matrices() and not node.children), None)
    if last is None or (blocks and order.index(last) <= order.index(blocks[-1])):
        return
    if any(last is each for block in blocks for each in block.walk()):
        return
    tied = {
        id(value) for node in order if isinstance(node.inner, Embedding) for value in node.own_parameters().values()
    }
    yield from (value for value in last.own_matrices().values() if id(value) not in tied)


def _absences(
    blocks: Sequence[Block],
    sentinels: Sequence[int],
    final_norm: ModuleNode | None,
    norms: Mapping[str, ModuleNode],
) -> dict[str, str]:
    absent = {f"Activations/{name}/*": COMPILED for name, node in norms.items() if node.is_compiled}
    if not blocks:
        absent["*/block_*"] = _NO_BLOCKS
    elif all(block.attention is None for block in blocks):
        absent["Attention/block_*"] = "no attention module is found in the blocks; name it in sites={'attention': ...}"
    if not norms and final_norm is None:
        absent["Activations/final_norm/*"] = "no normalisation layer is found after the last block"
    elif not norms and final_norm is not None and final_norm.is_compiled:
        absent["Activations/final_norm/*"] = COMPILED
    for index in sentinels:
        if len(blocks[index].main_weights) > SENTINEL_WEIGHTS:
            reason = f"of {len(blocks[index].main_weights)} main weights the first {SENTINEL_WEIGHTS} are sentinels"
            absent[f"gradients/{blocks[index].name}.*"] = reason
    return absent


def _repeated_blocks(root: ModuleNode) -> list[ModuleNode]:
    """Return the blocks of a model in the order of registration; none if nothing repeats.

    Blocks are modules of one class side by side, or in one ``ModuleList``, ``Sequential`` or ``ModuleDict``. Those with
    an attention module come first: all stacks of them, so that an encoder's blocks precede the decoder's. Without
    attention, blocks are the class that holds the most parameters, and else the layers of the class that repeats most.
    """
    return _attention_blocks(root) or _composite_blocks(root) or _layers(root)


def _attention_in(block: ModuleNode) -> ModuleNode | None:
    """Return the first self-attention module of a block; None without any. Names decide before classes."""
    inside = [node for node in block.walk() if node is not block and not node.is_cross_attention]
    for by_class in (False, True):
        for node in inside:
            if node.is_attention(by_class=by_class):
                return node
    return None


def _attention_blocks(root: ModuleNode) -> list[ModuleNode]:
    kept = {
        id(member)
        for family in _families(root)
        for member in family
        if (len(family) > 1 or (member.parent is not None and member.parent.is_container))
        and not member.is_attention(by_class=True)
        and not member.is_attention(by_class=False)
        and _attention_in(member) is not None
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


def _families(root: ModuleNode) -> Iterator[list[ModuleNode]]:
    """Yield the modules of one class below each module, through plain containers."""
    for parent in root.walk():
        if parent.is_container and parent is not root:
            continue
        by_kind: dict[type[Module], list[ModuleNode]] = defaultdict(list)
        for member in parent.members():
            by_kind[member.kind].append(member)
        yield from by_kind.values()


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


def _checked(sites: Sites | None) -> None:
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


def _matched(root: ModuleNode, sites: Sites | None, key: str) -> list[ModuleNode]:
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


def _per_block(blocks: Sequence[ModuleNode], nodes: Sequence[ModuleNode], key: str) -> dict[str, ModuleNode]:
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
