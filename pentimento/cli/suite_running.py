"""Run a planned suite until it is stopped: lock the state directory, start the processes, print their addresses."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pentimento.cli.detached import serving_document
from pentimento.cli.fleet_arrival import FleetArrival
from pentimento.cli.listening import check_ports_are_free
from pentimento.cli.suite_banner import banner
from pentimento.clients.controller import ControllerClient
from pentimento.domain.fleet import Fleet
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.supervisor.access import SuiteTokens, keep_signing_key, write_grant_key
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import Surroundings
from pentimento.supervisor.scaling import ReplicaFiles
from pentimento.supervisor.state import Endpoint, StateDirectory, clean_leftovers, make_private
from pentimento.supervisor.suite import longest_drain_s, plan_suite, stores, unix_address
from pentimento.supervisor.suite_settings import Suite, SuiteSettings
from pentimento.supervisor.supervisor import AFTER_DRAIN_S, STOP_TIMEOUT_S, Supervisor

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
    arrival = fleet_arrival(suite, around.view, settings, state)

    def announce_served(seconds: float) -> None:
        announce(around.view, settings, state, as_json, seconds, arrival.unprofiled)

    try:
        return await supervisor.run(announce_served, ReplicaFiles(state.path), arrival)
    finally:
        if following:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        around.view.close()


def fleet_arrival(suite: Suite, view: LogView, settings: SuiteSettings, state: StateDirectory) -> FleetArrival:
    """Return the waiter for the suite's workers, which uses the suite's token."""

    async def fleet() -> Fleet:
        channels = replace(client_settings(), service_token_file=settings.service_token_file)
        async with open_channel(unix_address(state, "controller"), channels) as channel:
            return await ControllerClient(channel).fleet(CALL_TIMEOUT_S)

    return FleetArrival(suite, fleet, lambda name: "".join(view.tail(name, 1)))


def announce(
    view: LogView,
    settings: SuiteSettings,
    state: StateDirectory,
    as_json: bool,
    seconds: float,
    unprofiled: Sequence[str],
) -> None:
    """Publish the suite's addresses, so that `generate`, `status` and `down` find it."""
    endpoint = Endpoint(
        frontdoor=unix_address(state, "frontdoor"),
        public=settings.public,
        controller=unix_address(state, "controller"),
        gateway=unix_address(state, "gateway") if settings.cached else "",
        service_token_file=str(settings.service_token_file or ""),
        supervisor_pid=os.getpid(),
        http=settings.http,
        admin=settings.admin,
    )
    state.publish(endpoint)
    if as_json:
        view.document(json.dumps(serving_document(endpoint, state), ensure_ascii=False))
    view.note(f"the suite serves after {seconds:.1f} s")
    for line in banner(settings, endpoint, state.path, unprofiled):
        view.note(f"  {line}")
