"""Start a suite in the background: the same command in a new session, watched until it serves."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from pentimento.cli.json_output import say
from pentimento.supervisor.child import source_path
from pentimento.supervisor.state import DEFAULT_STATE, Endpoint, StateDirectory

LOOK_S = 0.1


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
        endpoint = await_serving(supervisor, state)
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


def await_serving(supervisor: "subprocess.Popen[bytes]", state: StateDirectory) -> Endpoint | None:
    """Wait until a supervisor's suite serves and return its addresses; None if it ended before."""
    while supervisor.poll() is None:
        endpoint = state.endpoint()
        if endpoint is not None and endpoint.supervisor_pid == supervisor.pid:
            return endpoint
        time.sleep(LOOK_S)
    return None


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


def wait_until_gone(state: StateDirectory) -> None:
    """Wait until no suite runs in a state directory."""
    while state.owner() is not None:
        time.sleep(LOOK_S)
