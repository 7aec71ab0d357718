"""The number of examples that tests draw, and their seed, under the active hypothesis profile.

``conftest.py`` registers the profiles: ``repeated`` draws the same examples each time, ``explore`` ten times as many
new ones, ``reseeded`` as many new ones as ``repeated``.
"""

from __future__ import annotations

import random

from hypothesis import settings


def scaled(count: int) -> int:
    """Return the count that a test names for ``repeated``, times the profile's factor."""
    return count * settings().max_examples // 100


def examples(count: int) -> settings:
    """Return a decorator for a test that needs fewer or more than 100 examples."""
    return settings(max_examples=scaled(count))


def seed() -> int:
    """Return a seed for other random generators: constant under ``repeated``, otherwise new."""
    return 1 if settings().derandomize else random.SystemRandom().getrandbits(32)
