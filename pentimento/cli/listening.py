"""Validate the addresses that a suite listens on, and check that they are free, before it starts."""

import errno
import socket
from collections.abc import Callable, Mapping

import click

from pentimento.domain.errors import FailedPrecondition
from pentimento.rpc.settings import check_address, is_unix


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
