"""`pentimento scale`."""

import os
import signal
import time
from pathlib import Path

import click

from pentimento.cli.connection import running_suite, state_dir_option
from pentimento.cli.json_output import json_option, say
from pentimento.cli.numbers import FiniteRange
from pentimento.domain.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument
from pentimento.supervisor.scaling import MAX_REPLICAS, GroupStatus, ReplicaFiles

LOOK_S = 0.05


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
