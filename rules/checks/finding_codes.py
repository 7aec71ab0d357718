"""Names the kinds of findings. A server that only lists them need not load the rule engine."""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """The kind of a finding; the name by which a user can ignore it."""

    NAN_GUARD = "nan-guard"
    DEAD = "dead"
    TIMING = "timing"
    STALE = "stale"
    UNUSED = "unused"
    WINDOW = "window"
    UNRECORDED = "unrecorded"
    CONTRADICTION = "contradiction"
    KEY = "key"
    TYPE = "type"
    FLOAT_EQUALITY = "float-equality"
    DIVISION = "division"
    NEAR_FACT = "near-fact"
    WILDCARD = "wildcard"
    DUPLICATE = "duplicate"
    NEGATIVE = "negative"
