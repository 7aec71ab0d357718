"""DuckDB: the views, read-only statements, and their limits."""
