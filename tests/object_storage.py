"""S3 on loopback for tests: moto's server, with faults that a test orders."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

KEYS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "2",
    "AWS_EC2_METADATA_DISABLED": "true",
}

#: Answers a request in moto's place, or returns None: takes the method, the path with its query, and what moto does.
Fault = Callable[[str, str, Callable[[], "Answer"]], "Answer | None"]


@dataclass
class Answer:
    """An answer: its status line, headers and body."""

    status: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str, value: str) -> Answer:
        """Return a copy with another value of a header."""
        kept = [each for each in self.headers if each[0].lower() != name.lower()]
        return Answer(self.status, [*kept, (name, value)], self.body)


class ObjectService:
    """The service.

    Attributes:
        endpoint: Its URL.
        fault: What answers before moto; None for nothing.
        requests: The methods and paths of the requests so far.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                """Print nothing."""

        self.fault: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answered, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the service."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @functools.cached_property
    def client(self) -> Any:
        """The client of boto3."""
        import boto3

        names = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": "us-east-1"}
        return boto3.session.Session(**names).client("s3", endpoint_url=self.endpoint)

    def count(self, method: str, text: str) -> int:
        """Return the number of requests of a method whose path holds a text."""
        return sum(each == method and text in path for each, path in self.requests)

    def _answered(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"] + (f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else "")
        self.requests.append((method, path))
        fault = self.fault
        answer = None if fault is None else fault(method, path, lambda: self._moto(environ))
        answer = answer or self._moto(environ)
        start(answer.status, answer.headers)
        return [answer.body]

    def _moto(self, environ: dict[str, Any]) -> Answer:
        told = Answer("")

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            told.status, told.headers = status, headers

        told.body = b"".join(self._app(environ, start))
        return told


class Place:
    """An own bucket of one test.

    Attributes:
        address: ``s3://BUCKET/runs``.
    """

    def __init__(self, service: ObjectService, name: str) -> None:
        self.service, self.name, self.client = service, name, service.client
        self.client.create_bucket(Bucket=name)
        self.address = f"s3://{name}/runs"

    def names(self) -> list[str]:
        """Return the keys of all objects below the prefix."""
        found = self.client.list_objects_v2(Bucket=self.name)
        return [entry["Key"].removeprefix("runs/") for entry in found.get("Contents", [])]

    def get(self, key: str) -> bytes:
        """Return an object below the prefix."""
        content: bytes = self.client.get_object(Bucket=self.name, Key=f"runs/{key}")["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        """Write an object below the prefix."""
        self.client.put_object(Bucket=self.name, Key=f"runs/{key}", Body=content)


def failing(times: int, *, status: str = "503 Slow Down", text: str = "", method: str = "") -> Fault:
    """Return a fault that answers the first requests to some paths with an error."""
    left = iter(range(times))

    def fault(asked: str, path: str, _: Callable[[], Answer]) -> Answer | None:
        if text in path and method in ("", asked) and next(left, None) is not None:
            code = "".join(status.split()[1:])
            body = f"<Error><Code>{code}</Code><Message>a test ordered it</Message></Error>".encode()
            return Answer(status, [("Content-Length", str(len(body))), ("Content-Type", "application/xml")], body)
        return None

    return fault


def cutting(times: int, text: str) -> Fault:
    """Return a fault that breaks the connection in the middle of the first answers for some paths."""
    left = iter(range(times))

    def fault(method: str, path: str, moto: Callable[[], Answer]) -> Answer | None:
        if method != "GET" or text not in path or next(left, None) is None:
            return None
        answer = moto().header("Content-Length", str(len(moto().body)))
        return Answer(answer.status, answer.headers, answer.body[:-9])

    return fault
