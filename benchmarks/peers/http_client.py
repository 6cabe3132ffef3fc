"""Call HTTP/1.1 at little processor cost: prepared requests over persistent connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

PATH = "/v1/images/generations"


@dataclass(frozen=True)
class HttpAnswer:
    """Hold an answer; `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpClient:
    """Call one address with `token`, if not empty, over as many connections as are in use concurrently."""

    address: str
    token: str = ""
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    def request(self, document: dict[str, Any], path: str = PATH) -> bytes:
        """Return a request's bytes."""
        body = json.dumps(document).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}"] + ([f"Authorization: Bearer {self.token}"] if self.token else [])
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def ask(self, request: bytes) -> HttpAnswer:
        """Return the answer to a request."""
        async with self._connection() as (reader, writer):
            writer.write(request)
            return await read_answer(reader)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, _, port = self.address.rpartition(":")
        pair = self._kept() or await asyncio.open_connection(host, int(port), limit=1 << 22)
        try:
            yield pair
        except BaseException:
            pair[1].close()
            raise
        self._idle.append(pair)

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return an idle connection that the other end has not closed."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    def close(self) -> None:
        """Close idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    """Return the next answer of a connection, which must state its body's length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpAnswer(int(head[0].split(" ", 2)[1]), headers, body)
