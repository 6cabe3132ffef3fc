"""Call an external scaler as KEDA does: only grpcio and stubs made from the contract's text, no module of this suite.

    python keda_client.py STUBS HOST:PORT AUTHORITY [CERTIFICATE KEY]

Each line on stdin is a call in JSON, `{"rpc": …, "metadata": {…}, "metric": …}`; each answer is a line on stdout. A
stream's messages are followed for as long as the process runs, each with the monotonic second of its arrival.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

DEADLINE_S = 10.0


def main(stubs: str, address: str, authority: str, *pair: str) -> None:
    sys.path.insert(0, stubs)
    messages: Any = __import__("externalscaler_pb2")
    services: Any = __import__("externalscaler_pb2_grpc")
    certificate, key = (Path(pair[0]).read_bytes(), Path(pair[1]).read_bytes()) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(Path(authority).read_bytes(), key, certificate)
    with grpc.secure_channel(address, credentials) as channel:
        stub = services.ExternalScalerStub(channel)
        for line in sys.stdin:
            call = json.loads(line)
            ref = messages.ScaledObjectRef(name="one", namespace="images", scalerMetadata=call["metadata"])
            if call["rpc"].startswith("Stream"):
                threading.Thread(target=follow, args=(stub, call["rpc"], ref), daemon=True).start()
            else:
                is_metric = call["rpc"] == "GetMetrics"
                metric = call.get("metric", "")
                request = messages.GetMetricsRequest(scaledObjectRef=ref, metricName=metric) if is_metric else ref
                tell(answered(stub, call["rpc"], request))


def answered(stub: Any, rpc: str, request: Any) -> dict[str, Any]:
    """Return the fields of the answer, or of the error."""
    try:
        return fields(getattr(stub, rpc)(request, timeout=DEADLINE_S))
    except grpc.RpcError as error:
        return {"code": error.code().name, "message": error.details()}


def follow(stub: Any, rpc: str, ref: Any) -> None:
    try:
        for message in getattr(stub, rpc)(ref):
            tell({"stream": rpc, "at_s": time.monotonic(), **fields(message)})
    except grpc.RpcError as error:
        tell({"stream": rpc, "code": error.code().name})


def fields(message: Any) -> dict[str, Any]:
    """Return the message's fields by the contract's names, with defaults."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        found[field.name] = value if field.message_type is None else [fields(one) for one in value]
    return found


def tell(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
