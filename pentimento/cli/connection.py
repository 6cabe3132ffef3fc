"""Options for the suite's address, the token and TLS."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from pentimento.cli.options import json_option
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.rpc.settings import client_settings
from pentimento.supervisor.state import DEFAULT_STATE, Endpoint, StateDirectory

Command = TypeVar("Command", bound=Callable[..., Any])

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    envvar="PENTIMENTO_STATE_DIR",
    help="directory of the suite that `pentimento up` started",
)
token_option = click.option(
    "--token", envvar="PENTIMENTO_TOKEN", default="", help="token, or @FILE that holds it (a file stays out of `ps`)"
)
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)


def checked_tls(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Return the value of --tls-dir. BadParameter names a file that the directory lacks."""
    try:
        client_settings(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.violations[0].description) from None
    return value


tls_option = click.option(
    "--tls-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PENTIMENTO_TLS_DIR",
    callback=checked_tls,
    help="directory with ca.crt, to call servers over TLS, and with tls.crt and tls.key to show them (mTLS)",
)


def calling(address: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return the decorator that adds `--json`, the option `address` and the options for the suite here, the token and
    TLS."""

    def decorate(command: Command) -> Command:
        options: tuple[Callable[[Any], Any], ...] = (tls_option, token_option, address, state_dir_option, json_option)
        for option in options:
            command = option(command)
        return command

    return decorate


def read_token(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidArgument.of("token", f"{given[1:]} cannot be read: {why}") from error


def running_suite(state_dir: Path) -> Endpoint:
    """Return the suite of a state directory. FailedPrecondition says what to do if none serves, or how far one is."""
    state = StateDirectory(state_dir)
    endpoint = state.endpoint()
    if endpoint is None and state.owner() is not None:
        lines = "".join(f"\n  {name}: {line}" for name, line in state.last_lines().items())
        raise FailedPrecondition("SUITE_STARTING", f"the suite of {state_dir} does not serve yet{lines}")
    if endpoint is None:
        raise FailedPrecondition(
            "NO_SUITE", f"no suite serves from {state_dir}: start one with `pentimento up`, or give its address"
        )
    return endpoint


def frontdoor_address(options: Mapping[str, Any]) -> str:
    """Return the address of `connection_options`, else that of the suite here."""
    return str(options["address"] or running_suite(options["state_dir"]).frontdoor)


connection_options = calling(
    click.option(
        "--address",
        envvar="PENTIMENTO_ADDRESS",
        help="host:port or unix:/path of a frontdoor, instead of the suite's here",
    )
)
controller_options = calling(
    click.option("--controller-address", help="host:port or unix:/path, instead of the suite's here")
)
