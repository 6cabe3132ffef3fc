"""Start a suite in the background, stop it and change its numbers of processes."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from pentimento.cli.connection import running_suite, state_dir_option
from pentimento.cli.options import FiniteRange, json_option, say
from pentimento.domain.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument
from pentimento.supervisor.child import source_path
from pentimento.supervisor.local import await_endpoint
from pentimento.supervisor.scaling import MAX_REPLICAS, GroupStatus, ReplicaFiles
from pentimento.supervisor.state import DEFAULT_STATE, Endpoint, StateDirectory

LOOK_S = 0.05


def start_detached(state: StateDirectory, *, as_json: bool) -> int:
    """Run this command without `--detach`; return 0 once all processes serve, or its exit code if it ends before. An
    interrupt stops the started processes. FailedPrecondition if a suite runs here."""
    # The log belongs to the running suite.
    state.check_free()
    state.make()
    log = state.logs / "up.log"
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with log.open("w") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "pentimento.cli", *arguments, "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": source_path()},
            start_new_session=True,
        )
    try:
        endpoint = await_endpoint(supervisor, state)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    if endpoint is None:
        nothing = f"pentimento: the suite ended before it served, and {log} is empty: is its disk full?\n"
        click.echo(log.read_text() or nothing, nl=False, err=True)
        return supervisor.returncode or 1
    words = f"serving at {endpoint.public or endpoint.frontdoor}; stop it with `{stopping(state.path)}`"
    say(serving_document(endpoint, state), words, as_json=as_json)
    return 0


def serving_document(endpoint: Endpoint, state: StateDirectory) -> dict[str, Any]:
    """Return a suite's addresses as a JSON document, "" for missing ones."""
    return {
        "public": endpoint.public,
        "http": endpoint.http,
        "frontdoor": endpoint.frontdoor,
        "controller": endpoint.controller,
        "gateway": endpoint.gateway,
        "state_dir": str(state.path),
        "supervisor_pid": endpoint.supervisor_pid,
    }


def stopping(path: Path) -> str:
    """Return the command that stops a suite."""
    place = "" if path.resolve() == DEFAULT_STATE.resolve() else f" --state-dir {shlex.quote(str(path))}"
    return f"pentimento down{place}"


@click.command()
@click.option("--now", is_flag=True, help="do not drain")
@json_option
@state_dir_option
def down(now: bool, as_json: bool, state_dir: Path) -> None:
    """Stop the suite of this state directory; accepted requests are finished first."""
    state = StateDirectory(state_dir)
    owner = state.owner()
    if owner is None:
        raise FailedPrecondition("NO_SUITE", f"no suite runs on {state_dir}")
    os.kill(owner, signal.SIGQUIT if now else signal.SIGTERM)
    while state.owner() is not None:
        time.sleep(LOOK_S)
    say({"stopped": str(state_dir)}, f"stopped the suite of {state_dir}", as_json=as_json)


@click.command()
@click.argument("service")
@click.argument("count", type=click.IntRange(1, MAX_REPLICAS))
@click.option("--timeout-s", type=FiniteRange(min=0.0), default=120.0, show_default=True, help="0: do not wait")
@json_option
@state_dir_option
def scale(service: str, count: int, timeout_s: float, as_json: bool, state_dir: Path) -> None:
    """Set the number of processes of SERVICE in the suite that runs here: embedder, controlnet_svc, unet_worker (with
    several models unet_worker/MODEL). New ones start immediately; removed ones finish their requests first."""
    suite, files = running_suite(state_dir), ReplicaFiles(state_dir.resolve())
    groups = files.there()
    if not state_dir.is_dir():
        message = f"{state_dir} was removed while its suite runs: stop the suite and start it again"
        raise FailedPrecondition("STATE_REMOVED", message)
    if service not in groups:
        raise InvalidArgument.of("service", f"must be one of {', '.join(groups)}, got {service!r}")
    files.want(service, count)
    os.kill(suite.supervisor_pid, signal.SIGUSR1)
    if timeout_s:
        there = len(wait_until_settled(files, service, count, groups[service], timeout_s).states)
        say({"service": service, "process_count": there}, f"{service}: {told(there)}", as_json=as_json)
    elif as_json:
        say({"service": service, "wanted_count": count}, "", as_json=True)


def told(count: int) -> str:
    """Describe how many processes serve."""
    return "1 process serves" if count == 1 else f"{count} processes serve"


def wait_until_settled(
    files: ReplicaFiles, service: str, count: int, before: GroupStatus, timeout_s: float
) -> GroupStatus:
    """Wait until the processes match the request and return them. FailedPrecondition with their output if some do not
    start; DeadlineExceeded."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        status = files.there().get(service)
        if status is None:
            raise FailedPrecondition("NOT_SCALED", f"{service}: the suite has stopped")
        if status.failures and status.failures != before.failures:
            said = "; ".join(f"{name} {why}" for name, why in status.failures.items())
            raise FailedPrecondition("NOT_SCALED", f"{service}: {said}")
        if status.wanted == count and status.settled:
            return status
        time.sleep(LOOK_S)
    raise DeadlineExceeded("NOT_SCALED", f"{service}: not {count} processes after {timeout_s:.0f} s; it continues")
