"""HTTP and the pages over a store of runs. This room reads through the store only, and needs no torch."""
