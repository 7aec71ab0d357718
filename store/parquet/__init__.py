"""Seals journals into Parquet tables, reads these tables, and computes digests of their columns."""
