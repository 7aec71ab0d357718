"""Training loops with a recorder in them, to read and to run."""
