"""The process that trains: its signals, its end, and the process that seals its runs."""
