"""Defines ``Effect``, what an operation does to the training loop."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """The effect of an operation on the training loop.

    ``STEER`` and ``ADJUST`` are requests, which the loop answers with a receipt: ``STEER`` changes the trajectory, and
    ``ADJUST`` does not. The last two are for operations of your own: ``NOTIFY`` sends a notification and leaves the
    training unchanged; ``ACT`` may change it in a way that no record of another run can show.
    """

    STOP = "stop"
    STOP_EPOCH = "stop_epoch"
    SAVE = "save"
    EVALUATE = "evaluate"
    LOG = "log"
    MESSAGE = "message"
    STEER = "steer"
    ADJUST = "adjust"
    NOTIFY = "notify"
    ACT = "act"
