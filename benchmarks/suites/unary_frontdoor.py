"""Run a frontdoor with a unary `Generate`, to measure its cost. It replaces `Submit` and has the messages of
`Generate`.

python -m benchmarks.suites.unary_frontdoor FLAGS
"""

from contextlib import aclosing
from typing import Any

import grpc

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.rpc import current_caller, run_service
from pentimento.wire.codec import decode, encode
from services.frontdoor import wiring
from services.frontdoor.__main__ import main
from services.frontdoor.servicer import IMAGE_SERVICE, ImageServicer

METHOD = f"/{IMAGE_SERVICE}/Submit"


def add_unary(servicer: ImageServicer, server: Any) -> None:
    """Add the service with the unary method."""

    async def generate(request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        asked = decode(request.request, ImageRequest)
        events = servicer.api.generate(current_caller().tenant, asked, request.idempotency_key, omit_progress=True)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Completed):
                    return encode(event, pb.GenerateResponse)
        raise RuntimeError("the stream ended without an image")

    add_ImageServiceServicer_to_server(servicer, server)
    parse, serialise = pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString
    server.handlers["Submit"] = grpc.unary_unary_rpc_method_handler(generate, parse, serialise)


if __name__ == "__main__":
    vars(wiring)["add_ImageServiceServicer_to_server"] = add_unary
    run_service(main)
