"""Run a suite as in production: PostgreSQL with a synchronous standby, S3 over HTTP, a standby of frontdoor and
controller, each process on a virtual host and started again when it ends, and an address that leads to the active
frontdoor, as Kubernetes' services do."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc.aio
import psutil
from grpc_health.v1 import health_pb2_grpc
from sqlalchemy import text

from benchmarks.suites.faulty_link import FaultyLink
from benchmarks.suites.host_faults import SteppedClock, small_disk
from benchmarks.suites.journal_events import transaction
from benchmarks.suites.virtual_hosts import VirtualNetwork, virtual_network
from lab.fixtures.postgresql import server_directory
from lab.fixtures.postgresql_pair import PostgresqlPair, running_pair
from lab.fixtures.s3_server import running_s3_server
from pentimento.stores.objects import open_objects
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.models import find_controlnets, find_encoder, find_model, with_shipped
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import is_serving, wait_until_serving
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import plan_suite
from pentimento.supervisor.suite_settings import ProcessSpec, SuiteSettings

WORKERS = 2
# One is never disturbed: a request without any would rightly fail.
CONTROLNETS = 2
STANDBYS = 2
RPC_PORT, HTTP_PORT = 7000, 8080
# Far more than a run's index and journal need, and quickly filled.
INDEX_BYTES, POSTGRESQL_BYTES = 192 << 20, 512 << 20
# For the tensors between workers and ControlNets, in place of /dev/shm.
SHARED_BYTES = 64 << 20
AGAIN_AFTER_S = 0.2
LOOK_S = 0.1
SHARED = "shared"
ON_HOST = "benchmarks.suites.on_host"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# Names the store's owner (ADR 0003).
_MARK = "owner/journal"
_RESULTS = "select image_key from journal_requests where image_key is not null"
_CACHED = "select key from cache_objects"
_OPEN_GRANTS = "select request_id from cache_grants where entry_id is null"


class KeptProcess:
    """Run a process on its host and by its clock, and start it again when it ends."""

    def __init__(self, spec: ProcessSpec, namespace: str, clock: SteppedClock, mark: str, logs: LogView) -> None:
        self.spec = spec
        self.clock = clock
        self.starts = 0
        self._namespace = namespace
        self._mark = mark
        self._logs = logs
        self._child: Child | None = None

    async def run(self) -> None:
        """Keep the process running until cancelled."""
        on_line = partial(self._logs.line, self.spec.name)
        arguments = (self._namespace, self.spec.module, *self.spec.arguments)
        try:
            while True:
                self.starts += 1
                self._child = await start_child(ON_HOST, arguments, self._mark, on_line, self.clock.environment)
                await self._child.wait()
                await asyncio.sleep(AGAIN_AFTER_S)
        finally:
            if self._child is not None:
                self._child.kill_group()

    @property
    def process(self) -> psutil.Process | None:
        """Return the process, or None between an end and the next start."""
        with suppress(psutil.Error):
            return psutil.Process(self._child.pid) if self._child is not None else None
        return None


@dataclass
class ProductionSuite:
    """Hold the running suite. `address`: of the active frontdoor; `http`: of the edge; `objects`: the link to S3;
    `index`: the disk of the gateway's index; `shared`: the memory for tensors between processes; `active`: by service,
    the process that leads."""

    server: PostgresqlPair
    network: VirtualNetwork
    journal: str
    cache: str
    objects_url: str
    objects: FaultyLink
    index: Path
    shared: Path
    address: str
    http: str
    processes: dict[str, KeptProcess] = field(default_factory=dict)
    active: dict[str, "ActiveProcess"] = field(default_factory=dict)

    def leader(self, service: str) -> str:
        """Return the name of the service's active process, or of its only one."""
        return self.active[service].name if service in self.active else service

    def orphan_objects(self) -> list[str]:
        """Return the keys, except the mark, that neither the journal nor the cache names."""
        keys = list(open_objects(self.objects_url).keys())
        named = column(self.journal, _RESULTS) | column(self.cache, _CACHED)
        return [key for key in keys if key not in named and key != _MARK]

    def open_grants(self) -> int:
        """Count the cache's reservations that are neither committed, released nor expired."""
        return len(column(self.cache, _OPEN_GRANTS))


def column(ledger_url: str, query: str) -> set[str]:
    """Return the first column of a query's rows."""
    with transaction(ledger_url) as connection:
        return {str(row[0]) for row in connection.execute(text(query))}


@contextmanager
def in_environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of this process and its later children during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@asynccontextmanager
async def production_suite(environment: dict[str, str]) -> AsyncIterator[ProductionSuite]:
    """Run the suite inside the block, once the active frontdoor and all single processes serve."""
    with ExitStack() as stack:
        state = StateDirectory(Path(stack.enter_context(temporary_folder())))
        state.make()
        stack.callback(shutil.rmtree, state.sockets, ignore_errors=True)
        specs = planned(state)
        network = stack.enter_context(virtual_network([spec.name for spec in specs]))
        _, store, entrance, first, second = network.near
        server = stack.enter_context(running_pair(first, second, postgresql_disk))
        endpoint = stack.enter_context(running_s3_server()).removeprefix("http://")
        stack.enter_context(in_environment(CREDENTIALS | environment))
        objects = FaultyLink(lambda: endpoint, store)
        await objects.start()
        active = {
            service: ActiveProcess({spec.name: on_network(network, spec) for spec in specs if is_of(spec, service)})
            for service in ("controller", "frontdoor")
        }
        route = FaultyLink(active["frontdoor"].address, entrance)
        await route.start()
        ledgers = {name: server.new_database() for name in ("frontdoor", "gateway", "controller")}
        url = f"s3://pentimento?create_bucket=true&endpoint=http://{objects.address}"
        index = stack.enter_context(small_disk(state.path / "index", INDEX_BYTES))
        shared = stack.enter_context(small_disk(state.path / SHARED, SHARED_BYTES))
        suite = ProductionSuite(
            *(server, network, ledgers["frontdoor"], ledgers["gateway"], url, objects, index, shared),
            *(route.address, f"{network.address('edge')}:{HTTP_PORT}"),
        )
        suite.active = active
        logs = LogView(state.logs, show=False, width=0)
        placed = [placed_on(network, spec, specs, suite, ledgers) for spec in specs]
        for spec in placed:
            clock = SteppedClock(state.path / f"{spec.name}.clock")
            namespace = network.hosts[spec.name].namespace
            suite.processes[spec.name] = KeptProcess(spec, namespace, clock, str(state.path), logs)
        tasks = [asyncio.create_task(process.run()) for process in suite.processes.values()]
        tasks += [asyncio.create_task(one.watch()) for one in active.values()]
        try:
            single = [spec for spec in placed if "--standby" not in spec.arguments]
            found = (one.found.wait() for one in active.values())
            await asyncio.gather(*found, *(wait_until_serving(spec.address) for spec in single))
            yield suite
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await route.close()
            await objects.close()


@contextmanager
def postgresql_disk() -> Iterator[Path]:
    """Make a server's directory on its own disk."""
    with server_directory() as folder, small_disk(folder, POSTGRESQL_BYTES):
        yield folder


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that ends with its block."""
    return tempfile.TemporaryDirectory(prefix="pmt-", ignore_cleanup_errors=True)


def planned(state: StateDirectory) -> list[ProcessSpec]:
    """Return the processes of `pentimento up`, and a standby of each controller and frontdoor."""
    encoder = find_encoder("tiny-clip").path
    shared = {"shared-memory-dir": state.path / SHARED}
    settings = SuiteSettings(
        models=(find_model("tiny-heavy"),),
        encoder=encoder,
        copies=WORKERS,
        device="cpu",
        http=f"127.0.0.1:{HTTP_PORT}",
        profiles=with_shipped((), encoder),
        controlnets=find_controlnets("tiny"),
        controlnet_copies=CONTROLNETS,
        # Images must not depend on the requests that run at the same time.
        flags={"unet_worker": shared, "controlnet_svc": {**shared, "max-batch": 1}},
    )
    found = []
    for spec in plan_suite(settings, state).processes:
        if not (is_of(spec, "controller") or is_of(spec, "frontdoor")):
            found.append(spec)
            continue
        for number in range(STANDBYS):
            name = f"{spec.name}-{number}"
            flags = (*with_flags(spec.arguments, {"--instance-id": name}), "--standby")
            found.append(replace(spec, name=name, arguments=flags))
    return found


def is_of(spec: ProcessSpec, service: str) -> bool:
    """Return whether the process belongs to the service."""
    return spec.module == f"services.{service}"


def on_network(network: VirtualNetwork, spec: ProcessSpec) -> str:
    """Return the address of a process on its host."""
    return f"{network.address(spec.name)}:{RPC_PORT}"


def placed_on(
    network: VirtualNetwork,
    spec: ProcessSpec,
    specs: Sequence[ProcessSpec],
    suite: ProductionSuite,
    ledgers: Mapping[str, str],
) -> ProcessSpec:
    """Return the process on its host, with the others' addresses and the stores of production."""
    addresses = {other.address: on_network(network, other) for other in specs}
    arguments = [addresses.get(argument, argument) for argument in spec.arguments]
    controllers = [on_network(network, other) for other in specs if is_of(other, "controller")]
    listen, service = on_network(network, spec), spec.module.rpartition(".")[2].removeprefix("vectordb_")
    given = {"--listen": listen, "--http-listen": suite.http, "--controller-address": ",".join(controllers)}
    given |= {"--frontdoor-address": suite.address, "--objects-url": suite.objects_url}
    given |= {"--ledger-url": ledgers.get(service, "")}
    return replace(spec, address=listen, arguments=with_flags(arguments, given))


def with_flags(arguments: Sequence[str], values: dict[str, str]) -> tuple[str, ...]:
    """Return the arguments with other values of the flags that they have."""
    flags = ("", *arguments)
    return tuple(values.get(flag, argument) for flag, argument in zip(flags, arguments, strict=False))


class ActiveProcess:
    """Watch which process of a service serves, by its health, as a readiness probe does."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._active: str | None = None
        # The last one that served.
        self.name = next(iter(addresses))
        self.found = asyncio.Event()

    def address(self) -> str | None:
        """Return the address of the active process, None without one."""
        return None if self._active is None else self._addresses[self._active]

    async def watch(self) -> None:
        """Look until cancelled."""
        channels = {name: grpc.aio.insecure_channel(address) for name, address in self._addresses.items()}
        healths = {name: health_pb2_grpc.HealthStub(channel) for name, channel in channels.items()}
        while True:
            serving = await asyncio.gather(*(is_serving(health) for health in healths.values()))
            there = [name for name, serves in zip(healths, serving, strict=True) if serves]
            if self._active not in there:
                self._active = there[0] if there else None
            if self._active is not None:
                self.name = self._active
                self.found.set()
            await asyncio.sleep(LOOK_S)
