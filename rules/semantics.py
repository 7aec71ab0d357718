"""Versions of the rule semantics: the meaning of a policy, as runs record it."""

from __future__ import annotations

from typing import Final

#: Increases when the same policy and the same events may give different decisions than before.
SEMANTICS_VERSION: Final = 2

#: Versions that the engine still evaluates with their original meaning, for recorded policies.
KNOWN_SEMANTICS: Final = frozenset({1, SEMANTICS_VERSION})

#: The first version with facts about the run. In version 1 their names (``step``, ``epoch``, ...) were ordinary series,
#: and ``lr`` had no second name.
FIRST_WITH_CONTEXT: Final = 2
