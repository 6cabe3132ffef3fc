"""Paints one picture through Pentimento's public gRPC API, with nothing installed but grpcio and protobuf.

    python generate.py "a red circle on a white background" picture.png --address 127.0.0.1:50400

`PENTIMENTO_TOKEN` in the environment is sent as the bearer token of a suite that asks for one.
"""

import argparse
import os
import pathlib
import sys

import grpc

from pentimento.api.image.v1 import image_service_pb2, image_service_pb2_grpc


def main() -> None:
    parser = argparse.ArgumentParser(description="Paints one picture.")
    parser.add_argument("prompt")
    parser.add_argument("picture", type=pathlib.Path, help="PNG file to write")
    parser.add_argument("--address", default="127.0.0.1:50400")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    token = os.environ.get("PENTIMENTO_TOKEN")
    metadata = [("authorization", f"Bearer {token}")] if token else []
    request = image_service_pb2.GenerateRequest(
        request=image_service_pb2.ImageRequest(prompt=arguments.prompt, seed=arguments.seed)
    )
    with grpc.insecure_channel(arguments.address) as channel:
        stub = image_service_pb2_grpc.ImageServiceStub(channel)
        try:
            for event in stub.Generate(request, metadata=metadata, timeout=120):
                kind = event.WhichOneof("event")
                if kind == "accepted":
                    print(f"accepted {event.accepted.request_id}")
                elif kind == "progress":
                    print(f"step {event.progress.step} of {event.progress.step_count}")
                elif kind == "completed":
                    arguments.picture.write_bytes(event.completed.image)
                    print(f"completed {arguments.picture}: {event.completed.width_px}x{event.completed.height_px}")
        except grpc.RpcError as error:
            sys.exit(f"failed: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
