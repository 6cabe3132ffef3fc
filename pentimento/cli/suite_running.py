"""Run a planned suite until it is stopped: lock the state directory, start the processes, print their addresses."""

import asyncio
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from pentimento.cli.control import serving_document, stopping
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.domain.fleet import Fleet
from pentimento.domain.reasons import Reason
from pentimento.files.private_files import make_private_directory
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import check_address, client_settings, is_unix
from pentimento.supervisor.access import SuiteTokens, keep_receipt_key, keep_signing_key, write_grant_key
from pentimento.supervisor.cells import cell_names, remembered_counts
from pentimento.supervisor.models import WEIGHTS
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import Surroundings
from pentimento.supervisor.scaling import ReplicaFiles
from pentimento.supervisor.state import Endpoint, StateDirectory, clean_leftovers, make_private
from pentimento.supervisor.suite import longest_drain_s, plan_suite, stores, unix_address
from pentimento.supervisor.suite_settings import Suite, SuiteSettings
from pentimento.supervisor.supervisor import AFTER_DRAIN_S, STOP_TIMEOUT_S, Supervisor


def with_free_port(flag: str, listen: str, check: Callable[[str, str], None] = check_address) -> str:
    """Replace port 0 by a free port, so that the address is known before the frontdoor binds it. UsageError for an
    invalid address."""
    if not listen:
        return ""
    try:
        check(flag, listen)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    host, _, port = listen.rpartition(":")
    if is_unix(listen) or port != "0":
        return listen
    with _socket(host) as probe:
        probe.bind((host.strip("[]"), 0))
        return f"{host}:{probe.getsockname()[1]}"


def check_ports_are_free(listens: Mapping[str, str]) -> None:
    """Raise FailedPrecondition with the option if another process listens on one of the addresses. Other errors are
    left to the process that binds it."""
    for flag, listen in listens.items():
        if listen and not is_unix(listen):
            _check_port(flag, listen)


def _check_port(flag: str, listen: str) -> None:
    host, _, port = listen.rpartition(":")
    try:
        with _socket(host) as probe:
            # Lingering connections of an ended listener do not prevent a new one.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(port)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"{flag} {listen} is taken by another process: {flag} {host}:0 takes a free port, {flag} '' none"
            raise FailedPrecondition("ADDRESS_TAKEN", message) from None


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


LOOK_S = 0.05
LIMIT_S = 120.0
# The controller plans with a worker once it is registered; one without a model may stay unplanned.
PLANNED_LIMIT_S = 2.0
WORKERS = ("services.unet_worker", "lab.emulation.emulated_worker")


class FleetArrival:
    """Wait for a suite's workers.

    `fleet` calls the controller; `last_line` returns the last line of a process's output. After the wait, `unprofiled`
    has the models without a profile that the policy needs."""

    def __init__(
        self,
        suite: Suite,
        fleet: Callable[[], Awaitable[Fleet]],
        last_line: Callable[[str], str],
        limit_s: float = LIMIT_S,
    ) -> None:
        self.unprofiled: tuple[str, ...] = ()
        self._workers = frozenset(spec.name for spec in suite.processes if spec.module in WORKERS)
        self._fleet = fleet
        self._last_line = last_line
        self._limit_s = limit_s

    async def __call__(self) -> str:
        """Wait until every worker is registered and return ""; after the time limit return the reason."""
        began, missing, why = time.monotonic(), self._workers, ""
        while missing:
            try:
                missing = self._workers - _registered(await self._fleet())
                why = ""
            except PentimentoError as error:
                why = f"the controller does not answer: {error}"
            if not missing:
                break
            if time.monotonic() - began > self._limit_s:
                return self._late(missing, why)
            await asyncio.sleep(LOOK_S)
        await self._read_unprofiled()
        return ""

    async def _read_unprofiled(self) -> None:
        limit = time.monotonic() + PLANNED_LIMIT_S
        planned: frozenset[str] = frozenset()
        with suppress(PentimentoError):
            while self._workers - planned and time.monotonic() < limit:
                fleet = await self._fleet()
                planned = frozenset(one.worker_id for one in fleet.plan.assignments)
                lacking = {one.model for one in fleet.unplanned if one.reason == Reason.PROFILE_MISSING}
                self.unprofiled = tuple(sorted(lacking))
                await asyncio.sleep(LOOK_S)

    def _late(self, missing: Iterable[str], why: str) -> str:
        names = sorted(missing)
        said = why or "; ".join(f"{name}'s last line: {self._last_line(name)}" for name in names)
        return f"{', '.join(names)} did not register with the controller within {self._limit_s:.0f} s; {said}"


def _registered(fleet: Fleet) -> frozenset[str]:
    return frozenset(status.replica.instance_id for status in fleet.replicas if status.live)


def banner(settings: SuiteSettings, endpoint: Endpoint, state: Path, unprofiled: Sequence[str]) -> Iterator[str]:
    """Yield the lines, each with its topic first. `unprofiled`: models that the policy cannot plan with."""
    if settings.emulated is not None:
        yield "EMULATED  devices with profiled times: no image is generated"
    if endpoint.http:
        yield f"HTTP      http://{endpoint.http} (the console; OpenAI's images API under /v1)"
    yield f"gRPC      {endpoint.public or endpoint.frontdoor}"
    if endpoint.admin:
        yield f"admin     {endpoint.admin}"
    for model in settings.models:
        yield f"model     {model.name}{f' from {model.path}' if model.path.name != model.name else ''}"
    if settings.cells != (1,):
        yield f"cells     {', '.join(cell_names(settings.cells[0]))}"
    if settings.cascade is not None:
        yield f"cascade   {' → '.join(settings.cascade.models)}"
    if unprofiled:
        yield f"policy    {lacking(settings, unprofiled)}"
    yield f"files     {state} (logs, images, journal)"
    yield f"stop      {stopping(state)}"


def lacking(settings: SuiteSettings, unprofiled: Sequence[str]) -> str:
    """Return that the policy waits for profiles, and the command that measures them."""
    paths = {
        model.name: model.name if model.path == WEIGHTS / model.name else shlex.quote(str(model.path))
        for model in settings.models
    }
    files = {name: f"{name}-cost.json" for name in unprofiled}
    measured = (f"pentimento profile cost {paths.get(name, name)} --out {file}" for name, file in files.items())
    flags = " ".join(f"--profiles {file}" for file in files.values())
    waits = f"{settings.policy or 'the planned cascade'} lacks what {', '.join(unprofiled)} cost here"
    return (
        f"{waits}; the workers keep their models until then: `{' && '.join(measured)}`, then `pentimento up … {flags}`"
    )


CALL_TIMEOUT_S = 5.0


def run_suite(settings: SuiteSettings, state: StateDirectory, *, show_logs: bool, as_json: bool = False) -> int:
    """Run a suite with its state directory locked; return the exit code."""
    # Until the event loop has its handlers, a signal must still run `finally`.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    state.acquire()
    try:
        ReplicaFiles(state.path).forget()
        leftovers = clean_leftovers(state.path, state.sockets)
        # After it: processes of a crashed supervisor may hold the ports.
        check_ports_are_free({"--listen": settings.public, "--http": settings.http, "--admin-listen": settings.admin})
        make_private(state.sockets)
        tokens = SuiteTokens(settings.token_file, state.sockets) if settings.token_file else None
        if tokens:
            tokens.write()
            settings = replace(settings, token_file=tokens.table, service_token_file=tokens.service_token)
        if settings.cached:
            settings = replace(settings, grant_key_file=write_grant_key(state.sockets))
        settings = replace(settings, signing_key_file=keep_signing_key(state.path))
        make_private_directory(stores(settings, state))
        settings = replace(settings, cells=remembered_counts(stores(settings, state), settings.cells[0]))
        if settings.admin:
            settings = replace(settings, receipt_key_file=keep_receipt_key(state.path))
        if settings.emulated is not None:
            settings.emulated.write_files(stores(settings, state))
        suite = plan_suite(settings, state)
        width = max(len(process.name) for process in suite.processes) if show_logs else 0
        # If stdout has one JSON document, text for people goes to stderr.
        view = LogView(state.logs, show=show_logs, width=width, people=sys.stderr if as_json else sys.stdout)
        if leftovers:
            view.note(f"ended {leftovers} processes that a crashed supervisor had left")
        return asyncio.run(supervise(suite, Surroundings(str(state.path), view), settings, state, tokens, as_json))
    finally:
        ReplicaFiles(state.path).forget()
        state.withdraw()
        shutil.rmtree(state.sockets, ignore_errors=True)
        state.release()


async def supervise(
    suite: Suite,
    around: Surroundings,
    settings: SuiteSettings,
    state: StateDirectory,
    tokens: SuiteTokens | None,
    as_json: bool,
) -> int:
    drain_s = longest_drain_s(suite, settings.config_file, os.environ)
    supervisor = Supervisor(suite, around, max(STOP_TIMEOUT_S, drain_s + AFTER_DRAIN_S))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.request_stop)
    loop.add_signal_handler(signal.SIGQUIT, supervisor.request_kill)
    loop.add_signal_handler(signal.SIGUSR1, supervisor.request_scaling)
    following = asyncio.create_task(tokens.follow(lambda text: around.view.note(text, error=True))) if tokens else None

    async def fleet() -> Fleet:
        channels = replace(client_settings(), service_token_file=settings.service_token_file)
        async with open_channel(unix_address(state, "controller"), channels) as channel:
            return await ControllerClient(channel).fleet(CALL_TIMEOUT_S)

    arrival = FleetArrival(suite, fleet, lambda name: "".join(around.view.tail(name, 1)))

    def announce(seconds: float) -> None:
        """Publish the suite's addresses, so that `generate`, `status` and `down` find it."""
        endpoint = endpoint_of(settings, state)
        state.publish(endpoint)
        if as_json:
            around.view.document(json.dumps(serving_document(endpoint, state), ensure_ascii=False))
        around.view.note(f"the suite serves after {seconds:.1f} s")
        for line in banner(settings, endpoint, state.path, arrival.unprofiled):
            around.view.note(f"  {line}")

    try:
        return await supervisor.run(announce, ReplicaFiles(state.path), arrival)
    finally:
        if following:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        around.view.close()


def endpoint_of(settings: SuiteSettings, state: StateDirectory) -> Endpoint:
    """Return the addresses of the suite of this process."""
    return Endpoint(
        frontdoor=unix_address(state, "frontdoor"),
        public=settings.public,
        controller=unix_address(state, "controller"),
        gateway=unix_address(state, "gateway") if settings.cached else "",
        service_token_file=str(settings.service_token_file or ""),
        supervisor_pid=os.getpid(),
        http=settings.http,
        admin=settings.admin,
    )
