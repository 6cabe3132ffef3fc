"""Receive webhooks on 127.0.0.1 over real sockets, with set answers, and keep the requests."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@dataclass
class WebhookServer:
    """`answers` are sent in order, the last one repeatedly; None means no answer."""

    answers: list[bytes | None] = field(default_factory=lambda: [OK])
    port: int = 0
    connections: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for(self, count: int) -> None:
        """Wait for that number of requests."""
        while len(self.requests) < count:
            self.news.clear()
            await self.news.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.requests.append((first, headers, body))
            self.news.set()
            if answer is None:
                # Wait until the caller closes.
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def running_webhook_server(tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[WebhookServer]:
    """Serve on a free port during the block."""
    server = WebhookServer(**options)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", server.port, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
