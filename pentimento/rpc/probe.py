"""Report by the exit code whether a process serves: `python probe.py unix:/run/service.sock [SERVICE]`.

0 when grpc.health.v1 answers SERVING for the service, "" by default, 1 with one line on stderr otherwise. `liveness`
serves while the process answers. Health checks of containers run it through a unix socket of the service, which needs
neither TLS nor a token; an address of host:port is called without TLS.
"""

import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_S = 3.0
# As the suite's own channels, it uses no proxy of the environment.
OPTIONS = (("grpc.enable_http_proxy", 0),)


def status_of(address: str, service: str = "", *, deadline_s: float = DEADLINE_S) -> str:
    """Return the name of the service's health status, or of the gRPC code if the process did not answer."""
    with grpc.insecure_channel(address, OPTIONS) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=deadline_s)
        except grpc.RpcError as error:
            return str(error.code().name)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m pentimento.rpc.probe ADDRESS [SERVICE]\n")
        return 2
    status = status_of(*arguments)
    if status == "SERVING":
        return 0
    sys.stderr.write(f"{arguments[0]}: {status}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
