"""Whether the loop's own checkpoints remain under a policy, or the policy's replace them."""

from __future__ import annotations

from enum import StrEnum

from ...rules.control import Effect
from ...rules.policy_file.policy import Policy


class Saves(StrEnum):
    """The checkpoints of a run under a policy.

    Attributes:
        KEEP: The loop's own up to the stop, and those that the policy asks for at other steps.
        REPLACE: If rules of the policy save, only those that they ask for; else the loop's own.
    """

    KEEP = "keep"
    REPLACE = "replace"


def saving_controllers(policy: Policy) -> list[int]:
    """Return the indices of the controllers that save."""
    return [
        index
        for index, controller in enumerate(policy.controllers)
        if not controller.is_shadow and any(policy.effects(name) is Effect.SAVE for name in controller.operations)
    ]


def asks_for_checkpoints(policy: Policy) -> bool:
    """Whether rules of the policy save."""
    return bool(saving_controllers(policy))


def drops_own_checkpoints(policy: Policy, saves: Saves) -> bool:
    """Whether the policy's checkpoints replace the loop's own."""
    return saves is Saves.REPLACE and asks_for_checkpoints(policy)
