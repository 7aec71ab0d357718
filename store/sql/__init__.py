"""Runs read-only SQL over runs in DuckDB: views, statements and their limits."""
