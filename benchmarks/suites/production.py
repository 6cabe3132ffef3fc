"""Run a suite as in production: PostgreSQL, S3 over HTTP, a standby of frontdoor and controller, each process started
again when it ends, and an address that leads to the active frontdoor, as Kubernetes' services do."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc.aio
import psutil
from grpc_health.v1 import health_pb2_grpc
from sqlalchemy import text

from benchmarks.suites.faulty_link import FaultyLink
from benchmarks.suites.journal_events import transaction
from lab.fixtures.postgresql import PostgresqlServer, running_server
from lab.fixtures.s3_server import running_s3_server
from pentimento.cli.suite_running import with_free_port
from pentimento.stores.objects import open_objects
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.models import find_encoder, find_model, with_shipped
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import is_serving, wait_until_serving
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import plan_suite
from pentimento.supervisor.suite_settings import ProcessSpec, SuiteSettings

WORKERS = 2
AGAIN_AFTER_S = 0.2
LOOK_S = 0.1
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# Names the store's owner (ADR 0003).
_MARK = "owner/journal"
_RESULTS = "select image_key from journal_requests where image_key is not null"
_CACHED = "select key from cache_objects"
_OPEN_GRANTS = "select request_id from cache_grants where entry_id is null"


class KeptProcess:
    """Run a process, and start it again when it ends."""

    def __init__(self, spec: ProcessSpec, mark: str, logs: LogView) -> None:
        self.spec = spec
        self.starts = 0
        self._mark = mark
        self._logs = logs
        self._child: Child | None = None

    async def run(self) -> None:
        """Keep the process running until cancelled."""
        on_line = partial(self._logs.line, self.spec.name)
        try:
            while True:
                self.starts += 1
                self._child = await start_child(self.spec.module, self.spec.arguments, self._mark, on_line)
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
    """Hold the running suite. `address`: of the active frontdoor; `http`: of the edge; `objects`: the link to S3."""

    server: PostgresqlServer
    journal: str
    cache: str
    objects_url: str
    objects: FaultyLink
    address: str
    http: str
    processes: dict[str, KeptProcess] = field(default_factory=dict)

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
    with (
        tempfile.TemporaryDirectory(prefix="pmt-", ignore_cleanup_errors=True) as folder,
        running_server() as server,
        running_s3_server() as store,
        in_environment(CREDENTIALS | environment),
    ):
        objects = FaultyLink(lambda: int(store.rpartition(":")[2]))
        await objects.start()
        state = StateDirectory(Path(folder))
        state.make()
        url = f"s3://pentimento?create_bucket=true&endpoint=http://127.0.0.1:{objects.port}"
        ledgers = {name: server.new_database() for name in ("frontdoor", "gateway", "controller")}
        logs = LogView(state.logs, show=False, width=0)
        suite = ProductionSuite(server, ledgers["frontdoor"], ledgers["gateway"], url, objects, "", "")
        specs = planned(suite, state, ledgers)
        suite.processes = {spec.name: KeptProcess(spec, str(state.path), logs) for spec in specs}
        active = ActiveFrontdoor([spec.address for spec in specs if spec.module == "services.frontdoor"])
        route = FaultyLink(active.port)
        # The edge was planned with this port.
        route.port = int(suite.address.rpartition(":")[2])
        await route.start()
        tasks = [asyncio.create_task(process.run()) for process in suite.processes.values()]
        tasks.append(asyncio.create_task(active.watch()))
        try:
            single = [spec for spec in specs if "--standby" not in spec.arguments]
            await asyncio.gather(active.found.wait(), *(wait_until_serving(spec.address) for spec in single))
            yield suite
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await route.close()
            await objects.close()
            shutil.rmtree(state.sockets, ignore_errors=True)


def planned(suite: ProductionSuite, state: StateDirectory, ledgers: dict[str, str]) -> list[ProcessSpec]:
    """Return the processes of `pentimento up` with the stores of production, and a standby of each controller and
    frontdoor. Fills in the suite's addresses."""
    suite.address, suite.http = (with_free_port("--listen", "127.0.0.1:0") for _ in range(2))
    encoder = find_encoder("tiny-clip").path
    settings = SuiteSettings(
        models=(find_model("tiny-heavy"),),
        encoder=encoder,
        copies=WORKERS,
        device="cpu",
        http=suite.http,
        profiles=with_shipped((), encoder),
    )
    controllers = [f"unix:{state.sockets / f'controller-{number}.sock'}" for number in range(2)]
    frontdoors = [with_free_port("--listen", "127.0.0.1:0") for _ in range(2)]
    standbys = {"controller": controllers, "frontdoor": frontdoors}
    found = []
    for spec in plan_suite(settings, state).processes:
        name = spec.module.rpartition(".")[2]
        own = {"vectordb_gateway": "gateway"}.get(name, name)
        given = {"--frontdoor-address": suite.address, "--controller-address": ",".join(controllers)}
        given |= {"--ledger-url": ledgers.get(own, ""), "--objects-url": suite.objects_url}
        changed = with_flags(spec.arguments, given)
        if name not in standbys:
            found.append(replace(spec, arguments=changed))
        for number, listen in enumerate(standbys.get(name, ())):
            flags = {"--listen": listen, "--instance-id": f"{name}-{number}"}
            arguments = (*with_flags(changed, flags), "--standby")
            found.append(replace(spec, name=f"{name}-{number}", address=listen, arguments=arguments))
    return found


def with_flags(arguments: Sequence[str], values: dict[str, str]) -> tuple[str, ...]:
    """Return the arguments with other values of the flags that they have."""
    flags = ("", *arguments)
    return tuple(values.get(flag, argument) for flag, argument in zip(flags, arguments, strict=False))


class ActiveFrontdoor:
    """Watch which frontdoor serves, by its health, as a readiness probe does."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._active: str | None = None
        self.found = asyncio.Event()

    def port(self) -> int | None:
        """Return the port of the active frontdoor, None without one."""
        return None if self._active is None else int(self._active.rpartition(":")[2])

    async def watch(self) -> None:
        """Look until cancelled."""
        channels = {address: grpc.aio.insecure_channel(address) for address in self._addresses}
        healths = {address: health_pb2_grpc.HealthStub(channel) for address, channel in channels.items()}
        while True:
            serving = await asyncio.gather(*(is_serving(health) for health in healths.values()))
            there = [address for address, serves in zip(healths, serving, strict=True) if serves]
            if self._active not in there:
                self._active = there[0] if there else None
            if there:
                self.found.set()
            await asyncio.sleep(LOOK_S)
