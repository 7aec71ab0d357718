"""Defines ``Emission``: the values that probes add to the event of an update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ..late_values import Bundle


class Emission(NamedTuple):
    """The values that probes add to one event.

    Attributes:
        numbers: Metrics on the host.
        vectors: Vectors by name.
        texts: Attributes of the event.
        bundles: Metrics on devices.
    """

    numbers: Mapping[str, float] = {}
    vectors: Mapping[str, Any] = {}
    texts: Mapping[str, str] = {}
    bundles: tuple[Bundle, ...] = ()

    @classmethod
    def joined(cls, emissions: Iterable[Emission]) -> Emission:
        """Return the values of several watches as those of one."""
        joined = NO_EMISSION
        for each in emissions:
            joined = cls(
                {**joined.numbers, **each.numbers},
                {**joined.vectors, **each.vectors},
                {**joined.texts, **each.texts},
                (*joined.bundles, *each.bundles),
            )
        return joined


NO_EMISSION: Final = Emission()
