"""A mark for tests that fail or hang while coverage is measured."""

from __future__ import annotations

import os

import pytest

#: Coverage takes a lock in a traced call, and a signal handler that raises there leaves it taken. It also writes files.
not_measured = pytest.mark.skipif("COVERAGE_RUN" in os.environ, reason="coverage is measured, and disturbs this test")
