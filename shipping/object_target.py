"""A prefix of an S3 bucket as the target of a push."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ..store.errors import StoreAway, StoreNotFound, TelemetryError
from ..store.objects.bucket import Bucket
from .errors import PushRefused, TargetAway


class ObjectTarget:
    """Object storage computes nothing, so it takes no chunks as a ``Target`` does: ``ObjectPush`` writes the objects.

    Args:
        address: ``s3://BUCKET[/PREFIX]``.

    Attributes:
        bucket: The prefix.

    Raises:
        TelemetryError: The address is none, or the extra ``s3`` is not installed.
    """

    def __init__(self, address: str) -> None:
        if find_spec("pyarrow") is None:
            what = "a push to object storage needs pyarrow, which is not installed"
            raise TelemetryError(what, fix="Install steptape with its dependencies, or push to a server")
        self.bucket = Bucket(address)

    def close(self) -> None:
        """Do nothing: connections end with the process."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of a bucket into those of a target."""
    try:
        yield
    except StoreAway as error:
        raise TargetAway(error.what, where=error.where, fix=error.fix) from None
    except StoreNotFound as error:
        raise PushRefused(error.what, where=error.where, got=error.got, fix=error.fix) from None
