"""Many variants of a policy over many runs, evaluated on columns in exact agreement with the engine."""
