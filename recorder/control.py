"""What rules ask of the training loop, as flags that the loop reads after each call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Control:
    """The orders in force. One live object per recorder.

    ``should_stop`` stays once set. The others clear when they are served: ``should_evaluate`` by ``Recorder.evaluate``,
    ``should_save`` by ``Recorder.save``, ``should_log`` by ``Recorder.log``, ``should_stop_epoch`` by the next epoch's
    begin.
    """

    should_stop: bool = False
    should_stop_epoch: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
