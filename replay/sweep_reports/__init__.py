"""The page of a sweep: its best trade-offs, in sample and out of it."""
