"""One run or a whole store as of one moment, read from journals and Parquet alike."""
