"""Reads one run or a whole store at one moment, from journals and Parquet alike."""
