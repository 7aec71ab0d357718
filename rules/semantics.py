"""Versions of the rule semantics: the meaning of a policy, as runs record it."""

from __future__ import annotations

from typing import Final

#: Increases when the same policy and the same events may give different decisions than before.
SEMANTICS_VERSION: Final = 4

#: Versions that the engine still evaluates with their original meaning, for recorded policies.
KNOWN_SEMANTICS: Final = frozenset({1, 2, 3, SEMANTICS_VERSION})

#: The first version with facts about the run. In version 1 their names (``step``, ``epoch``, ...) were ordinary series,
#: and ``lr`` had no second name.
FIRST_WITH_CONTEXT: Final = 2

#: The first version that judges steps in their order, so that late values decide like punctual ones. Before, a step
#: without a late value of its own was judged before the late values of earlier steps had arrived.
FIRST_IN_STEP_ORDER: Final = 3

#: The first version that refuses a message whose format does not fit its value. Before, the message said so.
FIRST_WITH_CHECKED_FORMATS: Final = 3

#: The first version that warns of keys that no value of a controller metric has had. Warnings are recorded.
FIRST_WITH_KEY_WARNINGS: Final = 3

#: The first version in which ``updates_applied``, ``updates_skipped``, ``tokens_seen`` and ``undefined`` are facts, not
#: series.
FIRST_WITH_NEWER_FACTS: Final = 4

#: The first version whose files may define names, and whose controllers have ``requires`` and ``every``.
FIRST_WITH_NEWER_KEYS: Final = 4
