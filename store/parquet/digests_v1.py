"""Digests of columns as the first format of ``digests.json`` has them: each value counts, and a byte for each row.

Nothing is digested so any more. What was must be found again for good, and what is shared with later formats stays.
"""

from __future__ import annotations

import pyarrow as pa

from .column_digests import ColumnDigests, EachValue, LongDigests, PresenceDigest, TableDigests, bits


def first_table_digests(table: str) -> TableDigests:
    """The digests to be taken of a table of this name, empty."""
    return LongDigests() if table == "metrics" else ColumnDigests(lambda _: EachValue(_FirstPlaces()))


class _FirstPlaces(PresenceDigest):
    """Which rows of a column have a value: a byte for each."""

    def present(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """The values of more rows, which are counted."""
        if values.null_count:
            self._digest.update(bits(values.is_valid().cast(pa.uint8()).combine_chunks()))
        else:
            self._digest.update(b"\1" * len(values))
        present = values.drop_null()
        return present.cast(pa.string()) if pa.types.is_dictionary(present.type) else present
