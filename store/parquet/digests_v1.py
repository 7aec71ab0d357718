"""Computes column digests in format 1 of ``digests.json``: every value is digested, and one presence byte per row.

No new digest uses this format. Old digests must verify forever, so code shared with later formats must not change.
"""

from __future__ import annotations

import pyarrow as pa

from .column_digests import ColumnDigests, EachValue, LongDigests, PresenceDigest, TableDigests, bits


def first_table_digests(table: str) -> TableDigests:
    """Return empty digests for a table of this name."""
    return LongDigests() if table == "metrics" else ColumnDigests(lambda _: EachValue(_FirstPlaces()))


class _FirstPlaces(PresenceDigest):
    """Digests which rows of a column have a value, as one byte per row."""

    def present(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Add more rows, and return their non-null values."""
        if values.null_count:
            self._digest.update(bits(values.is_valid().cast(pa.uint8()).combine_chunks()))
        else:
            self._digest.update(b"\1" * len(values))
        present = values.drop_null()
        return present.cast(pa.string()) if pa.types.is_dictionary(present.type) else present
