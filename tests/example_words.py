"""The keys, functions and window words that need an example of their own: all but the plainest."""

from __future__ import annotations

from typing import Final

from steptape.rules.policy_file import controllers, policy
from steptape.rules.readings.call import WINDOW_KEYWORDS
from steptape.rules.readings.table import FUNCTIONS

_PLAIN_FUNCTIONS: Final = """
    mean sum min max std var median quantile slope detrended_std count first last argmin argmax ema peak lag delta
    len series times_fired steps_since any_rank max_rank min_rank spread abs clamp isfinite round
    sqrt exp log math_trunc math_floor math_ceil math_sqrt int float str list tuple dict set any all sorted
"""
_PLAIN_WORDS: Final = frozenset({"last", "steps", "epochs", "skip", "half"})

_PLAIN_ROOT_KEYS: Final = """
    name description extends without rename params controller_metrics operations cooldowns controllers
"""
_PLAIN_CONTROLLER_KEYS: Final = """
    name triggers rule operations patience config for cooldown once between severity message mode
"""

ROOT_KEYS: Final = {key.name for key in policy.DOCUMENT_KEYS}.difference(_PLAIN_ROOT_KEYS.split())
CONTROLLER_KEYS: Final = {key.name for key in controllers.CONTROLLER_KEYS}.difference(_PLAIN_CONTROLLER_KEYS.split())
EXAMPLE_FUNCTIONS: Final = frozenset(FUNCTIONS).difference(_PLAIN_FUNCTIONS.split())
WINDOW_WORDS: Final = frozenset(WINDOW_KEYWORDS) - _PLAIN_WORDS
