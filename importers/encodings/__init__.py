"""Low-level decoders that the readers share: lines, numbers, protocol buffers, TFRecord, LevelDB, SQLite."""
