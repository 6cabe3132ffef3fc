"""Run a worker that answers any number of images immediately.

python -m benchmarks.suites.instant_worker ADDRESS PICTURE_BYTES
"""

import asyncio
import sys

from lab.fixtures.paced_worker import PacedWorker, serve

CREDITS = 256


async def main(address: str, picture_bytes: int) -> None:
    """Serve until the process is stopped."""
    worker = PacedWorker("instant", credit_count=CREDITS)  # type: ignore[abstract]
    worker.picture_bytes = picture_bytes
    server = await serve(worker, address)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
