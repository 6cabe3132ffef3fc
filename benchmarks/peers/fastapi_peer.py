"""Measure HTTP alone, done as vLLM does it: FastAPI handlers with pydantic models on uvicorn, with a constant answer.

python -m benchmarks.peers.fastapi_peer PICTURE_BYTES     prints its port; serves until its input ends
"""

import asyncio
import base64
import socket
import sys
import time
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field


class PeerRequest(BaseModel):
    """Declare OpenAI's request as a server of this kind does."""

    model: str | None = None
    prompt: str
    n: int = Field(1, ge=1, le=10)
    size: str | None = "auto"
    quality: str | None = "auto"
    response_format: str = "b64_json"
    output_format: str | None = "png"
    user: str | None = None
    negative_prompt: str | None = None
    num_inference_steps: int | None = Field(None, ge=1)
    guidance_scale: float | None = None
    seed: int | None = None


class PeerImage(BaseModel):
    """One image of an answer."""

    b64_json: str | None = None
    url: str | None = None


class PeerAnswer(BaseModel):
    """A whole answer."""

    created: int
    data: list[PeerImage]


def peer_app(picture_bytes: int) -> FastAPI:
    """Return an application that answers every request with the same image."""
    image = base64.b64encode(bytes(picture_bytes)).decode()
    app = FastAPI()

    async def generations(request: PeerRequest) -> Any:
        return PeerAnswer(created=int(time.time()), data=[PeerImage(b64_json=image)])

    app.add_api_route("/v1/images/generations", generations, methods=["POST"], response_model=PeerAnswer)
    return app


async def serve(picture_bytes: int) -> None:
    """Serve on a free port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    # As in the edge: the body of an answer does not wait for the acknowledgement of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(peer_app(picture_bytes), log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
