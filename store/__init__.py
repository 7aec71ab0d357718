"""The event log of training runs: appends events, reads them back as Arrow tables, SQL views and events.

The writing side runs inside training loops and never loads duckdb or pyarrow.
"""
