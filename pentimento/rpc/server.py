"""The one server factory: listening, health, reflection, wrapped handlers, and the way from start to stop."""

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from pentimento.domain.identity import Role
from pentimento.rpc import health
from pentimento.rpc.access import ANY_TOKEN, allowed_roles
from pentimento.rpc.credentials import server_credentials
from pentimento.rpc.pipeline import Handler, Limits, Pipeline
from pentimento.rpc.settings import RpcServerSettings, is_unix
from pentimento.rpc.tokens import open_identities
from pentimento.rpc.transport import server_options
from pentimento.rpc.unix_sockets import claimed_socket
from pentimento.settings import SettingsError
from pentimento.telemetry import MetricsServer, configure_logging, start_metrics_server

logger = logging.getLogger(__name__)

# What is still open after the drain are watches, which end only with the server: time to flush a last answer, no more.
STREAM_GRACE_S = 0.5


class Registrar:
    """Stands in for a grpc.aio.Server in generated `add_…_to_server` functions, and keeps the handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[object]) -> None:
        """The same handlers come by method name through the other call."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        self.handlers.update(method_handlers)


class RpcServer:
    """A process's gRPC side: `add` services, then `run_until_stopped`; tests call `start` and `stop` instead."""

    def __init__(self, settings: RpcServerSettings, service: str) -> None:
        """`service` is the name in logs and instance id. SettingsError when tokens or certificates cannot be read."""
        self.settings = settings
        self.service = service
        self.instance_id = settings.instance_id or f"{service}-{secrets.token_hex(4)}"
        self.bound_addresses: tuple[str, ...] = ()
        self._identities = open_identities(settings.token_file)
        self._credentials = server_credentials(settings)
        limits = Limits(settings.max_concurrent_calls, settings.unary_deadline_ms / 1000)
        self._pipeline = Pipeline(self._identities, limits)
        self._health = health.HealthServicer()
        self._server = grpc.aio.server(options=server_options(settings.max_message_bytes))
        self._names = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._metrics: MetricsServer | None = None

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: object, full_name: str) -> None:
        """Serves `servicer` as "package.Service", roles by its contract. KeyError when the contract is not loaded."""
        roles = allowed_roles(full_name)
        self._add(add_to_server, servicer, full_name, roles)
        self._health.add_service(full_name)

    def _add(
        self,
        add_to_server: Callable[[Any, Any], None],
        servicer: object,
        full_name: str,
        roles: Mapping[str, frozenset[Role]],
        *,
        limited: bool = True,
    ) -> None:
        registrar = Registrar()
        add_to_server(servicer, registrar)
        wrapped = {
            name: self._pipeline.wrap(f"/{full_name}/{name}", handler, roles[name], limited=limited)
            for name, handler in registrar.handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(full_name, wrapped),))
        self._names.append(full_name)

    def _add_kit_services(self) -> None:
        """Health is open to all and never refused for load; reflection needs some token once tokens are configured."""
        add_health = health_pb2_grpc.add_HealthServicer_to_server
        anyone = dict.fromkeys(("Check", "Watch", "List"), frozenset({Role.ANYONE}))
        self._add(add_health, self._health, health.SERVICE_NAME, anyone, limited=False)
        servicer = reflection.aio.ReflectionServicer(self._names)
        add_reflection = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        self._add(add_reflection, servicer, reflection.SERVICE_NAME, {"ServerReflectionInfo": ANY_TOKEN})

    async def start(self) -> None:
        """Listens, health NOT_SERVING, and fills in `bound_addresses`. SettingsError when an address cannot be had."""
        self._add_kit_services()
        self.bound_addresses = tuple(self._bind(address) for address in self.settings.listen)
        await self._server.start()
        try:
            self._metrics = start_metrics_server(self.settings.metrics_listen)
        except OSError as error:
            await self._server.stop(None)
            raise SettingsError(f"--metrics-listen {self.settings.metrics_listen}: {error.strerror}") from error
        logger.info("listening", extra={"addresses": ",".join(self.bound_addresses)})

    def _bind(self, address: str) -> str:
        try:
            if is_unix(address):
                with claimed_socket(Path(address.removeprefix("unix:"))):
                    self._server.add_insecure_port(address)
                return address
            if self._credentials is not None:
                port = self._server.add_secure_port(address, self._credentials)
            else:
                port = self._server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise SettingsError(f"--listen {address}: cannot be bound; is it in use?") from error
        return f"{address.rpartition(':')[0]}:{port}"

    def set_serving(self) -> None:
        """Health SERVING, for the process and each of its services."""
        self._health.set(True)

    def set_not_serving(self) -> None:
        """Health NOT_SERVING; calls are still answered."""
        self._health.set(False)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Takes no more calls, waits up to `grace_s` for unary ones, then cancels what is left and removes sockets."""
        self.set_not_serving()
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pipeline.wait_until_unary_calls_end(), grace_s)
            await asyncio.wait({stopping}, timeout=min(grace_s, STREAM_GRACE_S))
        await self._server.stop(None)
        await stopping
        if self._metrics is not None:
            self._metrics.close()
        for address in self.settings.listen:
            if is_unix(address):
                Path(address.removeprefix("unix:")).unlink(missing_ok=True)

    async def run_until_stopped(
        self, warm: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]]
    ) -> None:
        """The life of a process: listen, `warm`, SERVING, wait for SIGTERM or SIGINT, NOT_SERVING, `drain`, stop.

        The drain and the calls still running get `drain_timeout_s` together. A second signal ends the drain at once, a
        third the process. SIGHUP reads the token file again. What `warm` raises stops the server and is raised.
        """
        configure_logging(self.service, self.instance_id, self.settings.log_level, self.settings.log_format)
        asked, insisted = asyncio.Event(), asyncio.Event()
        with self._signals(asked, insisted):
            await self.start()
            try:
                if await self._completes(warm, asked):
                    self.set_serving()
                    logger.info("serving")
                    await asked.wait()
                    await self._drain(drain, insisted)
            finally:
                await self.stop(0.0)
                logger.info("stopped")

    async def _drain(self, drain: Callable[[], Awaitable[None]], insisted: asyncio.Event) -> None:
        self.set_not_serving()
        logger.info("draining", extra={"timeout_s": self.settings.drain_timeout_s})
        end = time.monotonic() + self.settings.drain_timeout_s
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self._completes(drain, insisted)
        except TimeoutError:
            logger.warning("work was left when the drain timed out")
        await self._completes(lambda: self.stop(max(end - time.monotonic(), 0.0)), insisted)

    async def _completes(self, work: Callable[[], Awaitable[None]], interrupt: asyncio.Event) -> bool:
        """Runs `work` until it is done (True; raises what it raises) or until the event interrupts it (False)."""
        working = asyncio.ensure_future(work())
        interrupted = asyncio.ensure_future(interrupt.wait())
        try:
            await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            interrupted.cancel()
            working.cancel()
            await asyncio.gather(working, interrupted, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self, asked: asyncio.Event, insisted: asyncio.Event) -> Any:
        loop = asyncio.get_running_loop()
        stops = (signal.SIGTERM, signal.SIGINT)

        def on_stop() -> None:
            if asked.is_set():
                insisted.set()
                for number in stops:
                    loop.remove_signal_handler(number)
                    signal.signal(number, signal.SIG_DFL)
            asked.set()

        for number in stops:
            loop.add_signal_handler(number, on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._identities.reload)
        try:
            yield
        finally:
            for number in (*stops, signal.SIGHUP):
                loop.remove_signal_handler(number)
