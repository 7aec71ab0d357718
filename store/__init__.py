"""What happened: the event log of training runs. Events in; Arrow tables, SQL views and events out.

The writing side runs inside training loops and never loads duckdb or pyarrow.
"""
