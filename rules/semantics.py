"""Versions of the rules' semantics: the meaning of a policy, as runs record it."""

from __future__ import annotations

from typing import Final

#: Increases when the same policy and the same events may give other decisions than before.
SEMANTICS_VERSION: Final = 2

#: Versions under which recorded policies can still be decided as they were meant.
KNOWN_SEMANTICS: Final = frozenset({1, SEMANTICS_VERSION})

#: The first version with facts about the run. In version 1 their names (``step``, ``epoch``, ...) were series like any
#: other, and ``lr`` had one name only.
FIRST_WITH_CONTEXT: Final = 2
