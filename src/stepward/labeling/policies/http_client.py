"""A small HTTP/1.1 client: POST a body, read a body, keep the connection.

General clients spend milliseconds of CPU time on a request, which at a thousand rollouts in flight is more than
the rest of the labelling; this one does what a JSON endpoint needs and nothing else: no redirects, no cookies, no
compression, no proxies.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_MOST_BODY_BYTES = 1 << 28


class BrokenConnection(Exception):
    """The other side closed, answered something that is not HTTP/1.1, or sent half a response."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Attributes:
        host: Name or address.
        port: Port.
        tls: Whether the connection is encrypted.
        path: Begins every path, without a slash at the end.
    """

    host: str
    port: int
    tls: bool
    path: str

    @property
    def authority(self) -> str:
        """Host and port as a header writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: status, headers (names in lower case) and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_target(url: str) -> Target:
    """Raises ValueError on anything but ``http://HOST[:PORT][/PATH]`` or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with http:// or https:// and names a host")
    if parts.query or parts.fragment or not parts.path.isascii() or " " in parts.path:
        raise ValueError("a base URL ends with its path")
    tls = parts.scheme == "https"
    return Target(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))


@dataclass(slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False


class HttpClient:
    """Connections to one target, opened as needed and kept when idle.

    Args:
        target: Where requests go.
        headers: Sent with every request.
        most_idle: Idle connections that are kept.
    """

    def __init__(self, target: Target, headers: Mapping[str, str], *, most_idle: int) -> None:
        self.target = target
        self._head = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        self._most_idle = most_idle
        self._idle: deque[_Connection] = deque()
        self._closed = False
        self._context = ssl.create_default_context() if target.tls else None

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request and read its answer.

        Raises:
            OSError: No connection.
            BrokenConnection: It broke before the answer was whole.
        """
        extra = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        head = (
            f"POST {self.target.path}{path} HTTP/1.1\r\nhost: {self.target.authority}\r\n"
            f"content-length: {len(body)}\r\n{self._head}{extra}\r\n"
        )
        data = head.encode("latin-1") + body
        while True:
            connection = await self._connection()
            reused = connection.used
            connection.used = True
            keep = False
            try:
                connection.writer.write(data)
                response, keep = await _read_response(connection.reader)
                return response
            except _Stale:
                # The server closed an idle connection while the request was on its way: it has not seen it.
                if not reused:
                    raise BrokenConnection("closed without an answer") from None
            except (
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                ConnectionError,
                ValueError,
            ) as fault:
                raise BrokenConnection(f"{type(fault).__name__}: {fault}") from fault
            finally:
                # A cancelled request leaves here too: closing tells the engine to stop.
                if keep and not self._closed and len(self._idle) < self._most_idle:
                    self._idle.append(connection)
                else:
                    connection.writer.close()

    def close(self) -> None:
        """Close the idle connections; those in use close after their answer."""
        self._closed = True
        while self._idle:
            self._idle.pop().writer.close()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.writer.close()
        reader, writer = await asyncio.open_connection(self.target.host, self.target.port, ssl=self._context)
        return _Connection(reader, writer)


class _Stale(Exception):
    """A connection closed before the first byte of an answer."""


async def _read_response(reader: asyncio.StreamReader) -> tuple[Response, bool]:
    """(response, whether the connection can be used again)."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as fault:
        if not fault.partial:
            raise _Stale from fault
        raise
    except ConnectionError as fault:
        raise _Stale from fault
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not an HTTP/1.1 answer: {first[:40]!r}")
    status = int(rest[:3])
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        if not 0 <= length <= _MOST_BODY_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        body = await reader.readexactly(length)
    else:
        body = await reader.read(_MOST_BODY_BYTES)
        return Response(status, headers, body), False
    keep = "close" not in headers.get("connection", "").lower() and version != "HTTP/1.0"
    return Response(status, headers, body), keep


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        length = int(line.split(b";")[0], 16)
        total += length
        if total > _MOST_BODY_BYTES:
            raise ValueError(f"an answer of more than {_MOST_BODY_BYTES} bytes")
        chunk = await reader.readexactly(length + 2)
        if length == 0:
            if chunk != b"\r\n":
                await reader.readuntil(b"\r\n\r\n")
            return b"".join(chunks)
        chunks.append(chunk[:-2])
