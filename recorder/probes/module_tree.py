"""Reads a model as a tree of named modules: wrappers of PyTorch are passed over, and a shared module appears once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from torch.nn import Embedding, Module, ModuleDict, ModuleList, Parameter, Sequential
from torch.nn.parameter import UninitializedParameter

#: The attribute of each wrapper that holds the wrapped module. Names, because importing FSDP costs 300 ms.
_WRAPPED: Final = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
_CONTAINERS: Final = (Sequential, ModuleList, ModuleDict)
_TABLE: Final = re.compile(r"bias|pos_|position|table|scale", re.IGNORECASE)
_ATTENTION_NAME: Final = re.compile(r"att(n|ention)|^mha$", re.IGNORECASE)
_ATTENTION_CLASS: Final = re.compile(r"(Attention|Attn)\d*$", re.IGNORECASE)
_CROSS: Final = re.compile(r"cross|enc_?dec", re.IGNORECASE)


@dataclass(eq=False, slots=True)
class ModuleNode:
    """A module of a model.

    Attributes:
        name: Its name in ``named_modules()`` of the innermost model, without the parts that wrappers add.
        module: The module to which a hook is attached: the outermost wrapper, if there is any.
        inner: The module itself.
        parent: The node that holds it; None for the root.
        children: The modules it holds, in the order of registration.
        is_compiled: Whether a hook on ``module`` would run inside a region of ``torch.compile``, or not at all.
        is_compiled_inside: The same for modules inside of it.
    """

    name: str
    module: Module
    inner: Module
    parent: ModuleNode | None
    is_compiled: bool
    is_compiled_inside: bool
    children: list[ModuleNode] = field(default_factory=list)

    def walk(self) -> Iterator[ModuleNode]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def members(self) -> Iterator[ModuleNode]:
        """Yield the modules it holds directly or through plain containers."""
        for child in self.children:
            if child.is_container:
                yield from child.members()
            else:
                yield child

    def ancestors(self) -> Iterator[ModuleNode]:
        """Yield the nodes that hold it, from the nearest on."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def component(self) -> str:
        """The last component of the name."""
        return self.name.rpartition(".")[2]

    @property
    def kind(self) -> type[Module]:
        """The class that the user's code names. FSDP2 puts a subclass ``FSDP...`` in its place."""
        classes = type(self.inner).__mro__
        return next(each for each in classes if not each.__name__.startswith("FSDP"))

    @property
    def is_container(self) -> bool:
        """Whether it only holds others. A subclass of ``Sequential`` is a block of its own."""
        return self.kind in _CONTAINERS

    @property
    def is_norm(self) -> bool:
        """Whether it is a normalisation layer."""
        return "norm" in self.kind.__name__.lower() and not self.children

    @property
    def is_composite(self) -> bool:
        """Whether it holds two weights or more. A convolution with its normalisation holds one."""
        return sum(len(node.own_matrices()) for node in self.walk()) > 1

    @property
    def is_cross_attention(self) -> bool:
        """Whether its name says that it attends to another sequence."""
        return _CROSS.search(self.component) is not None or _CROSS.search(self.kind.__name__) is not None

    def is_attention(self, *, by_class: bool) -> bool:
        """Whether its name, or its class's name, is that of an attention module, and it holds projections."""
        named = _ATTENTION_CLASS.search(self.kind.__name__) if by_class else _ATTENTION_NAME.search(self.component)
        if named is None or self.is_container or not (self.children or len(self.own_matrices()) > 1):
            return False
        return any(node.own_matrices() for node in self.walk())

    def own_parameters(self) -> dict[str, Parameter]:
        """Return its own parameters by local name."""
        return {name: value for name, value in self.inner._parameters.items() if value is not None}

    def own_matrices(self) -> dict[str, Parameter]:
        """Return its own weights of two dimensions or more by local name, without embeddings and tables of positions.

        A lazy parameter counts unless it is a bias: its shape is unknown.
        """
        if isinstance(self.inner, Embedding) or self.is_norm:
            return {}
        return {
            name: value
            for name, value in self.own_parameters().items()
            if not _TABLE.search(name) and (is_lazy(value) or value.dim() >= 2)
        }

    def size(self) -> int:
        """Return the number of elements of all its parameters, shared ones once; lazy ones have none."""
        return sum(0 if is_lazy(value) else value.numel() for value in self.inner.parameters())


def is_lazy(value: Parameter) -> bool:
    """Whether a parameter has no shape yet."""
    return isinstance(value, UninitializedParameter)


def tree_of(model: Module) -> ModuleNode:
    """Return the tree of a model, which begins at the innermost module of all wrappers."""
    return _node("", model, None, False, set())


def innermost(module: Module) -> Module:
    """Return the module inside of all wrappers."""
    while (inside := _inside(module)) is not None:
        module = inside
    return module


def _inside(module: Module) -> Module | None:
    for each in type(module).__mro__:
        if (attribute := _WRAPPED.get(each.__name__)) is not None:
            return module._modules.get(attribute)
    return None


def _node(name: str, outer: Module, parent: ModuleNode | None, is_compiled: bool, seen: set[int]) -> ModuleNode:
    module, is_compiled_inside = outer, is_compiled
    while True:
        if getattr(module, "_compiled_call_impl", None) is not None:
            is_compiled_inside = True
            # ``module.compile()`` compiles the module's hooks, too, where a wrapper's own hooks run outside.
            is_compiled = is_compiled or module is outer
        inside = _inside(module)
        if inside is None:
            break
        is_compiled_inside = is_compiled_inside or hasattr(module, "_orig_mod")
        module = inside
    node = ModuleNode(name, outer, module, parent, is_compiled, is_compiled_inside)
    seen.add(id(module))
    for child_name, child in module.named_children():
        if id(innermost(child)) not in seen:
            path = f"{name}.{child_name}" if name else child_name
            node.children.append(_node(path, child, node, is_compiled_inside, seen))
    return node
