"""Nodes of generated code, and the names in it that mean the same for every policy.

No name comes from the policy file. What a policy's rules read is numbered by ``Names``: ``s3`` is the list of values of
a series and ``n3`` the series itself, ``m0`` the cell of a controller metric, ``x0`` a function that reads a window,
``a0`` a fold over a series, ``h0`` the past decisions of a controller, ``t0`` the newest change of a state, ``y0``
whether a milestone is reached, ``z0`` a function of a family, ``k_epoch`` a function that reads a fact about the run.
"""

from __future__ import annotations

import ast
from typing import Final

#: The parameter of all generated functions.
EVENT: Final = "event"
#: The values of all ranks.
RANKS: Final = "ranks"
#: The name of the member that code is evaluated for.
MEMBER_NAME: Final = "member"


def name(identifier: str) -> ast.expr:
    """Return the node that reads a variable."""
    return ast.Name(identifier, ast.Load())


def call(function: ast.expr, *arguments: ast.expr) -> ast.expr:
    """Return the node that calls a function."""
    return ast.Call(function, list(arguments), [])


def attribute(of: ast.expr, field: str) -> ast.expr:
    """Return the node that reads an attribute."""
    return ast.Attribute(of, field, ast.Load())
