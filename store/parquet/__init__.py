"""Sealed runs: Parquet tables made from journals, their readers, and digests of their columns."""
