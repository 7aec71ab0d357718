"""The version of the rule semantics: the meaning of a policy, as runs record it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..store.errors import require_version
from ..store.run_info import Attempt

#: Increases when the same policy and the same events may give different decisions than before.
SEMANTICS_VERSION: Final = 4


def require_semantics(attempt: Attempt, folder: Path) -> None:
    """Refuse an attempt of a run whose rules had other semantics: they may decide otherwise today.

    Raises:
        UnsupportedVersion: Its policy was recorded under another version.
    """
    if attempt.policy is not None:
        where = f"{folder}, policy of attempt {attempt.attempt}"
        require_version("rule semantics", attempt.policy.semantics_version, SEMANTICS_VERSION, where=where)
