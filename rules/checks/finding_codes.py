"""Names the kinds of findings. A server that only lists them need not load the rule engine."""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """The kind of a finding; the name by which a user can ignore it."""

    NAN_GUARD = "nan-guard"
    LENGTH = "length"
    WINDOW = "window"
    UNRECORDED = "unrecorded"
    PATIENCE = "patience"
    CONTRADICTION = "contradiction"
    KEY = "key"
    TYPE = "type"
    CONSTANT = "constant"
    FLOAT_EQUALITY = "float-equality"
    DIVISION = "division"
    NEAR_FACT = "near-fact"
    WILDCARD = "wildcard"
    RANGE = "range"
    DUPLICATE = "duplicate"
    STAGES = "stages"
