"""The keys, functions and window words of the language that version 4 has added, as the code has them."""

from __future__ import annotations

from typing import Final

from steptape.rules.functions.table import FUNCTIONS
from steptape.rules.language.window_arguments import WINDOW_KEYWORDS
from steptape.rules.policy_file import controller_fields, schema

_EARLIER_FUNCTIONS: Final = """
    mean sum min max std var median quantile slope detrended_std count first last argmin argmax ema peak lag delta
    len series fired times_fired steps_since holding any_rank max_rank min_rank spread abs clamp isnan isfinite round
    sqrt exp log math_trunc math_floor math_ceil math_sqrt int float str list tuple dict set any all sorted
"""
_EARLIER_WORDS: Final = frozenset({"last", "steps", "epochs", "skip", "half"})

NEWER_ROOT_KEYS: Final = frozenset(schema._NEWER_ROOT_KEYS)
NEWER_CONTROLLER_KEYS: Final = frozenset(controller_fields.NEWER_KEYS)
NEWER_FUNCTIONS: Final = frozenset(FUNCTIONS).difference(_EARLIER_FUNCTIONS.split())
NEWER_WINDOW_WORDS: Final = frozenset(WINDOW_KEYWORDS) - _EARLIER_WORDS
