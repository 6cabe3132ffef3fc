"""Build servers: listening, health, reflection, wrapped handlers, and the sequence from start to stop."""

import asyncio
import gc
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToJson, Parse
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from pentimento.domain.tenants import Role
from pentimento.rpc import health
from pentimento.rpc.access import ANY_TOKEN, Access, declared_access
from pentimento.rpc.call_limits import EdgeCalls
from pentimento.rpc.callers import caller_check
from pentimento.rpc.credentials import server_credentials, server_tls
from pentimento.rpc.memory import collect_in_quiet_moments, give_back_freed_memory
from pentimento.rpc.pipeline import Handler, Pipeline
from pentimento.rpc.process import StopSignals, completes
from pentimento.rpc.relay import Relay
from pentimento.rpc.relay.listener import ALPN
from pentimento.rpc.settings import (
    BOUNDS,
    SOCKET_PATH_BYTES,
    RpcServerSettings,
    ServerBounds,
    TraceDetail,
    is_local,
    is_unix,
)
from pentimento.rpc.tokens import KeyRing, open_identities
from pentimento.rpc.transport import (
    SocketFile,
    allow_files,
    claimed_socket,
    files_of,
    private_directory,
    remove_own,
    server_options,
    socket_file,
)
from pentimento.settings import SettingsError
from pentimento.telemetry import MetricsServer, configure_logging, start_metrics_server
from pentimento.telemetry.tracing import start_tracing

logger = logging.getLogger(__name__)

# After the drain only watches are open, which end only with the server: time to flush a last answer.
STREAM_GRACE_S = 0.5
# Calls from before the stop are taken one after the other: after this time without one, none is left.
QUIET_S = 0.005
REFUSE_S = 1.0
# For last answers in transit; gRPC waits no longer than they take.
FLUSH_S = 3.0
SWITCH_INTERVAL_S = 0.0005
V1ALPHA = reflection.SERVICE_NAME
# Servers of one user that may relay connections of the same port, each on another host.
SAME_PORTS = 16


class Registrar:
    """Replace a grpc.aio.Server in generated `add_…_to_server` functions, and keep the handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[object]) -> None:
        """Ignore the call: the same handlers arrive by method name through the other method."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        self.handlers.update(method_handlers)


class RpcServer:
    """Run a process's gRPC side: `add` services, then `run_until_stopped`; tests call `start` and `stop` instead."""

    def __init__(
        self,
        settings: RpcServerSettings,
        service: str,
        keys: KeyRing | None = None,
        *,
        takes_turns: bool = False,
        bounds: ServerBounds = BOUNDS,
    ) -> None:
        """Prepare a server. `service` is the name in logs and instance id; `keys` are accepted in addition to the token
        file; `takes_turns`: host:port connections alternate, so that none waits for another's calls (Linux).
        SettingsError if tokens, certificates or rules of callers cannot be read."""
        self.settings = settings
        self._bounds = bounds
        self.service = service
        named = settings.instance_id.replace("{hostname}", socket.gethostname())
        self.instance_id = named or f"{service}-{secrets.token_hex(4)}"
        self.bound_addresses: tuple[str, ...] = ()
        self._identities = open_identities(settings.token_file, keys)
        pem = settings.tls.served
        self._credentials = server_credentials(pem)
        self._relay: Relay | None = None
        if takes_turns and sys.platform == "linux":
            self._relay = Relay(server_tls(pem, ALPN), bounds.max_connections)
        turns = self._relay.turns if self._relay is not None else None
        relayed = self._relay.names_of if self._relay is not None else lambda peer: None
        check_names = caller_check(settings.tls_callers_file, relayed)
        self._pipeline = Pipeline(self._identities, settings, bounds, turns, check_names)
        self._health = health.HealthServicer()
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._server: grpc.aio.Server | None = None
        # The socket at which gRPC accepts relayed connections.
        self._relayed_at: Path | None = None
        self._socket_files: list[SocketFile] = []
        self._names: list[str] = []
        self._metrics: MetricsServer | None = None
        self._stopping = asyncio.Lock()

    @property
    def running_count(self) -> int:
        """Return the running calls and streams of the services."""
        return self._pipeline.running_count

    @property
    def edges(self) -> EdgeCalls:
        """Return the counts of the edges that call."""
        return self._pipeline.edges

    @property
    def metrics_address(self) -> str:
        """Return host:port of /metrics while it is served, else ""."""
        return self._metrics.address if self._metrics is not None else ""

    def add(
        self,
        add_to_server: Callable[[Any, Any], None],
        servicer: object,
        full_name: str,
        roles: frozenset[Role] | None = None,
    ) -> None:
        """Serve `servicer` as "package.Service", with its contract's roles and sizes; `roles` are those of a contract
        of others, which names none. KeyError if the contract is not loaded."""
        access = declared_access(full_name)
        if roles is not None:
            access = {name: replace(one, roles=roles) for name, one in access.items()}
        self._add(add_to_server, servicer, full_name, access)
        self._health.add_service(full_name)

    def _add(
        self,
        add_to_server: Callable[[Any, Any], None],
        servicer: object,
        full_name: str,
        access: Mapping[str, Access],
        *,
        limited: bool = True,
    ) -> None:
        registrar = Registrar()
        add_to_server(servicer, registrar)
        wrapped = {
            name: self._pipeline.wrap(f"/{full_name}/{name}", handler, access[name], limited=limited)
            for name, handler in registrar.handlers.items()
        }
        self._handlers.append(grpc.method_handlers_generic_handler(full_name, wrapped))
        self._names.append(full_name)

    def _add_kit_services(self) -> None:
        """Add health, open to all and never rejected for load, and reflection, which needs a token once tokens are
        configured."""
        add_health = health_pb2_grpc.add_HealthServicer_to_server
        anyone = dict.fromkeys(("Check", "Watch", "List"), Access(frozenset({Role.ANYONE})))
        self._add(add_health, self._health, health.SERVICE_NAME, anyone, limited=False)
        described = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(described)
        # Tools try version 1 first, which has the messages of v1alpha. They need its description in the answers, and no
        # package includes it.
        Default().Add(Parse(MessageToJson(described).replace("v1alpha", "v1"), FileDescriptorProto()))
        names = (V1ALPHA.replace("v1alpha", "v1"), V1ALPHA)
        servicer = reflection.aio.ReflectionServicer((*self._names, *names))
        for name in names:
            access = {"ServerReflectionInfo": Access(ANY_TOKEN)}
            self._add(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, servicer, name, access)

    async def start(self) -> None:
        """Listen, with health NOT_SERVING, and fill in `bound_addresses`. SettingsError if an address cannot be
        bound."""
        self._add_kit_services()
        relayed = [address for address in self.settings.listen if self._relay is not None and not is_unix(address)]
        options = server_options(self._bounds, self._pipeline.largest_request_bytes, len(relayed))
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers(tuple(self._handlers))
        try:
            for address in self.settings.listen:
                self.bound_addresses += (self._bind(self._server, address),)
            self._bind_relayed(self._server)
            await self._server.start()
            if self._relay is not None and self._relayed_at is not None:
                self._relay.start(self._relayed_at)
            self._metrics = open_metrics(self.settings.metrics_listen)
        except BaseException:
            await self.stop()
            raise
        logger.info("listening", extra={"addresses": ",".join(self.bound_addresses)})
        reachable = [address for address in self.bound_addresses if not is_local(address)]
        if reachable and self.settings.token_file is None:
            logger.warning(
                "no token file: any caller that reaches these addresses may call everything",
                extra={"addresses": ",".join(reachable)},
            )

    def _bind(self, server: grpc.aio.Server, address: str) -> str:
        """Bind the address and return the actual one: a free port replaces port 0."""
        try:
            if is_unix(address):
                self._bind_unix(server, unix_path(address))
                return address
            if self._relay is not None:
                return self._relay.listen(address)
            if self._credentials is not None:
                port = server.add_secure_port(address, self._credentials)
            else:
                port = server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise SettingsError(f"--listen {address}: cannot be bound; is it in use?") from error
        return f"{address.rpartition(':')[0]}:{port}"

    def _bind_relayed(self, server: grpc.aio.Server) -> None:
        """Bind the relay's socket, in the directory of the local processes' socket if there is one, which is cleaned up
        as a whole. Other servers there may have the same port on another host."""
        relayed = [address for address in self.bound_addresses if not is_unix(address)]
        if self._relay is None or not relayed:
            return
        port = relayed[0].rpartition(":")[2]
        names = [f"{port}.relay", *(f"{port}-{number}.relay" for number in range(2, SAME_PORTS + 1))]
        directory = self._relay_directory(names[-1])
        for name in names:
            with suppress(SettingsError):
                self._bind_unix(server, directory / name)
                self._relayed_at = directory / name
                return
        raise SettingsError(f"--listen {relayed[0]}: {SAME_PORTS} others have such a port, and sockets in {directory}")

    def _relay_directory(self, longest_name: str) -> Path:
        for address in filter(is_unix, self.bound_addresses):
            directory = unix_path(address).parent
            if len(os.fsencode(directory / longest_name)) <= SOCKET_PATH_BYTES:
                return directory
        return private_directory("pentimento-relay")

    def _bind_unix(self, server: grpc.aio.Server, path: Path) -> None:
        with claimed_socket(path):
            server.add_insecure_port(f"unix:{path}")
            self._socket_files.append(socket_file(path))

    def set_serving(self) -> None:
        """Set health SERVING, for the process and each of its services."""
        self._health.set(True)

    def set_not_serving(self) -> None:
        """Set health NOT_SERVING; calls are still answered."""
        self._health.set(False)

    def hold_back(self, reason: str) -> None:
        """Set health NOT_SERVING while there is a reason, in any other state."""
        self._health.hold_back(reason)

    def reload_tokens(self) -> None:
        """Read the token file again, as on SIGHUP; a malformed one changes nothing and is logged."""
        self._identities.reload()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Reject new calls, wait up to `grace_s` for unary ones, then end the remaining calls and remove sockets."""
        self.set_not_serving()
        await self._pipeline.close(grace_s, STREAM_GRACE_S)
        await self._pipeline.refuse_waiting(QUIET_S, REFUSE_S, self._pass_calls)
        if self._relay is not None:
            # Calls that could not be rejected in time find their connection closed; calls in gRPC are rejected.
            self._relay.turns.close()
            await self._pipeline.refuse_waiting(QUIET_S, REFUSE_S, self._pass_calls)
        # One stop at a time: grpc.aio crashes when two overlap.
        async with self._stopping:
            if self._server is not None:
                await self._server.stop(FLUSH_S)
            if self._relay is not None:
                await self._relay.close(FLUSH_S)
        self._release()

    def _pass_calls(self) -> bool:
        """Return whether calls wait for their turn, or are in gRPC without a handler."""
        return self._relay is not None and self._relay.turns.pass_calls

    def _release(self) -> None:
        """Release all that outlives the gRPC server, except paths that a successor owns already."""
        files, self._socket_files = self._socket_files, []
        self.bound_addresses, self._relayed_at = (), None
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.close()
        for file in files:
            remove_own(file)

    async def run_until_stopped(
        self, warm: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a process: listen, `warm`, SERVING, wait for SIGTERM or SIGINT, NOT_SERVING, `drain`, stop.

        The drain and the calls still running get `drain_timeout_s` together. A second signal ends the drain
        immediately, a third the process. SIGHUP reads the token file again. An error of `warm` stops the server and is
        raised.
        """
        configure_logging(self.service, self.instance_id, self.settings.log_level, self.settings.log_format)
        stop_tracing = self._start_tracing()
        # Imported objects stay: to scan them delays every call for 10 to 20 ms in each full collection.
        gc.freeze()
        # A busy thread (a ledger's writer, a store's) blocks the event loop for this time, 5 ms by default.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        allow_files(files_of(self.settings.listen, self._bounds.max_connections, takes_turns=self._relay is not None))
        with StopSignals(self.reload_tokens) as signals:
            await self.start()
            housekeeping = (
                asyncio.create_task(give_back_freed_memory()),
                asyncio.create_task(collect_in_quiet_moments(lambda: self._pipeline.activity)),
            )
            try:
                if await completes(warm, signals.asked):
                    self.set_serving()
                    logger.info("serving")
                    await signals.asked.wait()
                    await completes(lambda: self._drain(drain), signals.insisted)
            finally:
                for task in housekeeping:
                    task.cancel()
                await self.stop()
                await asyncio.to_thread(stop_tracing)
                logger.info("stopped")

    def _start_tracing(self) -> Callable[[], None]:
        details = self.settings.trace_details
        steps, gen_ai = TraceDetail.STEPS in details, TraceDetail.PROMPTS in details
        return start_tracing(self.service, self.instance_id, steps=steps, gen_ai=gen_ai)

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Let running work end, within `drain_timeout_s` for everything."""
        self.set_not_serving()
        logger.info("draining", extra={"timeout_s": self.settings.drain_timeout_s})
        end = time.monotonic() + self.settings.drain_timeout_s
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await drain()
        except TimeoutError:
            logger.warning("work remained when the drain timed out")
        await self.stop(max(end - time.monotonic(), 0.0))


def unix_path(address: str) -> Path:
    return Path(address.removeprefix("unix:"))


def open_metrics(listen: str) -> MetricsServer | None:
    try:
        return start_metrics_server(listen)
    except OSError as error:
        raise SettingsError(f"--metrics-listen {listen}: {error.strerror}") from error
