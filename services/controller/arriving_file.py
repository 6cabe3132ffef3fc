"""Read a file that arrives on an event loop, in another thread."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future

from pentimento.files.file_sums import BlockHashes
from pentimento.files.safetensors_header import header_length


class ArrivingFile:
    """Read the bytes of chunks as they arrive, in one thread, hash their blocks, and keep the first ones of a
    safetensors file, up to its header's end. Only the loop may call `close`: the thread's next read raises an error."""

    def __init__(self, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """Create the reader, on the event loop."""
        self.head = b""
        self.blocks = BlockHashes()
        self._chunks = chunks
        self._size_bytes = size_bytes
        self._loop = asyncio.get_running_loop()
        self._left = b""
        self._arriving: Future[bytes] | None = None
        self._is_closed = False

    def read(self, size: int, /) -> bytes:
        """Wait for a chunk, and return at most `size` bytes of it; none at the end. Raises the chunks' errors."""
        if not self._left:
            if self._is_closed:
                raise asyncio.CancelledError
            self._arriving = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            self._left = self._arriving.result()
            self._keep_head()
            self.blocks.add(self._left)
        data, self._left = self._left[:size], self._left[size:]
        return data

    def close(self) -> None:
        """End the thread's reading."""
        self._is_closed = True
        if self._arriving is not None:
            self._arriving.cancel()

    async def _next(self) -> bytes:
        async for chunk in self._chunks:
            if chunk:
                return chunk
        return b""

    def _keep_head(self) -> None:
        try:
            wanted = 8 + header_length(self.head, self._size_bytes) if len(self.head) >= 8 else 8
        except ValueError:
            return
        if len(self.head) < wanted:
            self.head += self._left
