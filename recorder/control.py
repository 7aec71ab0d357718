"""Defines the control flags: requests of rules that the training loop reads after each call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Control:
    """The control flags of one recorder. Each recorder has one live object.

    ``should_stop`` stays once set. Every other flag is cleared when it is served: ``should_evaluate`` by
    ``Recorder.evaluate``, ``should_save`` by ``Recorder.save``, ``should_log`` by ``Recorder.log``,
    ``should_stop_epoch`` by the next ``Recorder.epoch_begin``.
    """

    should_stop: bool = False
    should_stop_epoch: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
