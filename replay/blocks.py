"""Cuts a sequence into blocks for workers: each long enough to outweigh its overhead, short enough to share.

Takes the arguments, and how long earlier blocks took. Returns the next block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

_Answer = TypeVar("_Answer")
_Asked = TypeVar("_Asked")

#: Seconds that a block should take. A task of Ray adds 1 to 5 ms, so a block of this length hides them.
BLOCK_S: Final = 1.0
#: Growth from one size to the next. The first run in a process also loads modules, and says little about the others.
_GROWTH: Final = 8
#: Blocks per worker into which the rest is cut at least, so that all workers finish at about the same time.
_SHARES: Final = 2


class Blocks(Generic[_Asked]):
    """The blocks of a sequence, in order. The first ones hold one argument each, to measure.

    Args:
        asked: The arguments.
    """

    def __init__(self, asked: Sequence[_Asked]) -> None:
        self._asked = asked
        self._given = 0
        self._size = 1

    @property
    def is_done(self) -> bool:
        """Whether every argument has been given out."""
        return self._given == len(self._asked)

    def take(self, workers: int) -> Sequence[_Asked]:
        """Return the next block; empty at the end.

        Args:
            workers: Number of workers that share the rest.
        """
        share = math.ceil((len(self._asked) - self._given) / (_SHARES * max(workers, 1)))
        block = self._asked[self._given : self._given + min(self._size, share)]
        self._given += len(block)
        return block

    def measure(self, size: int, took_s: float) -> None:
        """Adapt the size of the blocks to come to the time that a block took.

        Args:
            size: Number of arguments in the block.
            took_s: Seconds that they took.
        """
        fitting = size * BLOCK_S / took_s if took_s > 0 else math.inf
        self._size = max(1, int(min(fitting, _GROWTH * size)))


def timed_answers(function: Callable[[_Asked], _Answer], block: Sequence[_Asked]) -> tuple[list[_Answer], float]:
    """Call a function with each argument of a block; return the results, and the seconds that they took.

    Raises:
        Exception: Whatever the function raises, with a note that names its argument.
    """
    answers, began_s = [], time.monotonic()
    for one in block:
        with named_in_errors(one):
            answers.append(function(one))
    return answers, time.monotonic() - began_s


def worked_answer(function: Callable[[_Asked], _Answer], asked: _Asked) -> tuple[_Answer, float]:
    """Call a function; return its result, and the seconds of processor time that this thread took.

    Raises:
        Exception: Whatever the function raises, with a note that names its argument.
    """
    began_s = time.thread_time()
    with named_in_errors(asked):
        answer = function(asked)
    return answer, time.thread_time() - began_s


@contextmanager
def named_in_errors(asked: object) -> Iterator[None]:
    """Name the argument in any error that the block raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised for {asked!r}")
        raise
