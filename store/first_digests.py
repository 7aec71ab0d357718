"""Digests of columns as the first format of ``digests.json`` has them: each value counts, and a byte for each row.

Nothing is digested so any more. What was must be found again for good, and what is shared with later formats stays.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from .column_digests import ColumnDigest, ColumnDigests, LongDigests, TableDigests, bits, characters


def first_table_digests(table: str) -> TableDigests:
    """The digests to be taken of a table of this name, empty."""
    return LongDigests() if table == "metrics" else ColumnDigests(lambda _: _FirstColumn())


class _FirstColumn:
    """One column."""

    def __init__(self) -> None:
        self._count = 0
        self._places = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()

    def add(self, values: pa.ChunkedArray) -> None:
        """More rows."""
        if values.null_count:
            self._places.update(bits(values.is_valid().cast(pa.uint8()).combine_chunks()))
        else:
            self._places.update(b"\1" * len(values))
        present = values.drop_null().combine_chunks()
        self._count += len(present)
        if pa.types.is_dictionary(present.type):
            present = present.dictionary_decode()
        if pa.types.is_list(present.type):
            self._lengths.update(bits(pc.list_value_length(present).cast(pa.int64())))
            self._values.update(bits(present.flatten()))
        elif pa.types.is_string(present.type) or pa.types.is_large_string(present.type):
            texts = present.cast(pa.large_binary())
            self._lengths.update(bits(pc.binary_length(texts)))
            self._values.update(characters(texts))
        else:
            self._values.update(bits(present))

    def taken(self) -> ColumnDigest:
        """The digest so far."""
        return ColumnDigest(self._count, self._places.hexdigest(), self._lengths.hexdigest(), self._values.hexdigest())
