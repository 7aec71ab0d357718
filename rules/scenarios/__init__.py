"""Unit tests of policies: imagined runs and the decisions expected of them."""
