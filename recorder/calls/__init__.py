"""The calls of a loop: the fast path of ``step``, and warnings about calls that record something else than meant."""
