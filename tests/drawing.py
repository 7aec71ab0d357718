"""How many examples the tests draw, and from which seed, under the profile of hypothesis that is in force.

The profiles are registered in ``conftest.py``: ``repeated`` draws the same examples each time, ``explore`` ten times
as many new ones, ``reseeded`` as many new ones as ``repeated``.
"""

from __future__ import annotations

import random

from hypothesis import settings


def scaled(count: int) -> int:
    """The count that a test names for ``repeated``, times the profile's factor."""
    return count * settings().max_examples // 100


def examples(count: int) -> settings:
    """Settings of a test that needs fewer or more examples than 100; the decorator of such a test."""
    return settings(max_examples=scaled(count))


def seed() -> int:
    """A seed for what draws by itself: always the same under ``repeated``, else a new one."""
    return 1 if settings().derandomize else random.SystemRandom().getrandbits(32)
