"""Reads and writes objects below a prefix of an S3 bucket, with the errors of a store.

Credentials, region and endpoint come from the variables and files that AWS's own tools read.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import StoreAway, StoreNotFound, TelemetryError

_ADDRESS: Final = re.compile(r"s3:/{1,2}([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.IGNORECASE)

#: Statuses of answers by which the service says that it is busy, or has failed.
_BUSY: Final = frozenset((408, 425, 429, 500, 502, 503, 504))

#: Requests that are under way at a time.
CONNECTIONS: Final = 16

#: Bytes of an object that are read at a time.
_PIECE_BYTES: Final = 1 << 20

#: Size from which a file is uploaded in pieces, which may be repeated one by one.
_LARGE_BYTES: Final = 64 << 20

_MOST_DELETED: Final = 1000


class ObjectChanged(TelemetryError):
    """An object is not the one that a conditional request expected."""


class StoredObject(NamedTuple):
    """An object in a listing.

    Attributes:
        key: Its key below the prefix.
        etag: Changes with its content.
        heard_s: Seconds since it was written, by the service's clock.
    """

    key: str
    etag: str
    heard_s: float


class Content(NamedTuple):
    """The content of an object, its ``etag``, and the seconds since it was written."""

    content: bytes
    etag: str
    heard_s: float


class Bucket:
    """A prefix of a bucket.

    Args:
        address: ``s3://BUCKET[/PREFIX]``.
        endpoint: URL of the service; by default the one in the environment.

    Raises:
        StoreNotFound: The address is none.
        TelemetryError: The extra ``s3`` is not installed.
    """

    def __init__(self, address: str, endpoint: str | None = None) -> None:
        self.address = plain_address(address)
        self._name, _, prefix = self.address.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self.endpoint = endpoint_here() if endpoint is None else endpoint
        self._client = _client(self.endpoint)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix of this one.

        Raises:
            StoreNotFound, StoreAway: The bucket cannot be listed.
        """
        more: dict[str, str] = {}
        while True:
            with self._translated(self.address):
                answer = self._client.list_objects_v2(Bucket=self._name, Prefix=self._prefix + prefix, **more)
            for entry in answer.get("Contents", ()):
                age_s = _age_s(answer, entry["LastModified"])
                yield StoredObject(entry["Key"][len(self._prefix) :], entry["ETag"], age_s)
            if not answer.get("IsTruncated"):
                return
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def get(self, key: str, known: str = "") -> Content | None:
        """Return a small object; None if it still has the known etag.

        Raises:
            FileNotFoundError: There is no such object.
            StoreNotFound, StoreAway: It cannot be read.
        """
        with self._translated(key):
            answer = self._get(key, known)
            if answer is None:
                return None
            with closing(answer["Body"]) as body:
                return Content(body.read(), answer["ETag"], _age_s(answer, answer["LastModified"]))

    def pieces(self, key: str, span: slice | None = None) -> Iterator[bytes]:
        """Yield an object, or a span of its bytes, piece by piece. Raises as ``get``."""
        with self._translated(key):
            answer = self._get(key, span=span)
        with closing(answer["Body"]) as body:
            while True:
                with self._translated(key):
                    piece: bytes = body.read(_PIECE_BYTES)
                if not piece:
                    return
                yield piece

    def put(self, key: str, content: bytes, sha256: str, known: str | None = None) -> str:
        """Write an object and return its etag. The service checks the digest.

        Args:
            key: Its key.
            content: Its content.
            sha256: Its digest, in hexadecimal.
            known: The etag that it must have now; empty if it must not exist; None for no condition.

        Raises:
            ObjectChanged: The object has another etag.
            StoreNotFound, StoreAway: It cannot be written.
        """
        condition = {} if known is None else {"IfMatch": known} if known else {"IfNoneMatch": "*"}
        where = {"Bucket": self._name, "Key": self._prefix + key, "ChecksumSHA256": _base64(sha256)}
        try:
            with self._translated(key):
                return str(self._client.put_object(Body=content, **where, **condition)["ETag"])
        except FileNotFoundError:
            raise ObjectChanged("the object was deleted meanwhile", where=key) from None

    def put_file(self, key: str, path: Path, sha256: str) -> None:
        """Write an object from a file, a large one in pieces. Raises as ``put``, and FileNotFoundError without file."""
        if path.stat().st_size < _LARGE_BYTES:
            self.put(key, path.read_bytes(), sha256)
            return
        with open(path, "rb") as file, self._translated(key):
            self._client.upload_fileobj(file, self._name, self._prefix + key)

    def delete(self, keys: Collection[str]) -> None:
        """Delete objects; missing ones are ignored.

        Raises:
            StoreNotFound, StoreAway: They cannot be deleted.
        """
        doomed = [{"Key": self._prefix + key} for key in keys]
        for start in range(0, len(doomed), _MOST_DELETED):
            asked = {"Objects": doomed[start : start + _MOST_DELETED], "Quiet": True}
            with self._translated(self.address):
                self._client.delete_objects(Bucket=self._name, Delete=asked)

    def _get(self, key: str, known: str = "", span: slice | None = None) -> Any:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": known} if known else {}
        if span is not None:
            condition["Range"] = f"bytes={span.start}-{span.stop - 1}"
        try:
            return self._client.get_object(Bucket=self._name, Key=self._prefix + key, **condition)
        except ClientError as error:
            if _status(error) == 304:
                return None
            raise

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the errors of the client, and of its connection, into those of a store."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
        from urllib3.exceptions import HTTPError

        fix = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError):
            raise StoreNotFound("there are no credentials for the bucket", where=self.address, fix=fix) from None
        except ClientError as error:
            raise self._error_of(error, what) from None
        except (BotoCoreError, Boto3Error, HTTPError) as error:
            reason = f"the object storage does not answer ({type(error).__name__}: {error})"
            raise StoreAway(reason, where=self.address, fix="Check AWS_ENDPOINT_URL and the network") from None

    def _error_of(self, error: Any, what: str) -> Exception:
        status, code = _status(error), error.response.get("Error", {}).get("Code", "")
        if code == "NoSuchBucket":
            return StoreNotFound("there is no such bucket", where=self.address, fix="Create it, or check its name")
        if status in (404, 416):  # 416: it is shorter than the span.
            return FileNotFoundError(2, "no such object", f"{self.address}/{what}")
        if status in (409, 412):
            return ObjectChanged("the object was replaced meanwhile", where=what)
        if status in _BUSY:
            return StoreAway(f"the object storage answers with status {status} ({code})", where=self.address)
        reason = f"the object storage refuses access (status {status}, {code})"
        return StoreNotFound(
            reason, where=self.address, fix="Check the credentials, the region and the bucket's policy"
        )


def plain_address(address: str) -> str:
    """Return the one way to write an address.

    Raises:
        StoreNotFound: It is none.

    >>> plain_address("s3:/bucket/runs/")
    's3://bucket/runs'
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in (match[2] or "").split("/"):
        raise StoreNotFound("the address of a store in object storage must be s3://BUCKET[/PREFIX]", got=address)
    return f"s3://{match[1]}/{(match[2] or '').strip('/')}".rstrip("/")


def endpoint_here() -> str:
    """Return the URL of the service that the environment names; empty for AWS itself."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


@functools.lru_cache(maxsize=8)
def _client(endpoint: str) -> Any:
    """Return a client, which threads may share. Making one takes half a second."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        what = "stores in object storage need boto3, which is not installed"
        raise TelemetryError(what, fix="Run pip install 'steptape[s3]'") from error
    # Other services than AWS may not know the checksums that the client would add.
    config = Config(
        retries={"mode": "standard"},
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", endpoint_url=endpoint or None, config=config)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _age_s(answer: Any, written: datetime) -> float:
    """Return the seconds since an object was written. Both times are the service's."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return max(0.0, (parsedate_to_datetime(date) - written).total_seconds()) if date else 0.0


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
