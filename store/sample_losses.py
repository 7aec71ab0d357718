"""Packed sample losses as Python values: what a rule sees of them, whichever file they came from."""

from __future__ import annotations

import json
import struct
from typing import Final

from .errors import DamagedLog
from .journal.format import NO_IDS, TEXT_IDS, SampleLosses

_ID: Final = struct.Struct("<q")


def loss_values(samples: SampleLosses) -> tuple[float, ...]:
    """The losses in order of recording, as the float32 that were recorded. Shape (n,)."""
    return struct.unpack(f"<{len(samples)}f", samples.losses)


def id_texts(samples: SampleLosses) -> list[str] | None:
    """The ids as text, integers in decimal, in order of recording. Shape (n,). None when none were recorded.

    Raises:
        DamagedLog: They cannot be read, or are more or fewer than the samples.
    """
    if samples.id_kind == NO_IDS:
        return None
    try:
        ids = json.loads(samples.ids) if samples.id_kind == TEXT_IDS else [i for (i,) in _ID.iter_unpack(samples.ids)]
        if len(ids) != len(samples):
            raise ValueError(f"{len(ids)} for {len(samples)} samples")
    except (ValueError, TypeError, struct.error) as error:
        raise DamagedLog(f"sample ids that cannot be read ({error})", fix="Look at what wrote them") from None
    return [*map(str, ids)]
