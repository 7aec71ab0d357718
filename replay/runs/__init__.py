"""One run under one policy: its replay, its result, its validity labels, and the proof of its decisions."""
