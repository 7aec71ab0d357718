"""The calls of a loop: the fast path of ``step``, what a call gives as bytes, and warnings about calls."""
