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
# By argument of `client_settings` and the SDK's clients: environment variable and help.
TLS_FILES = {
    "tls_ca_file": ("PENTIMENTO_TLS_CA_FILE", "PEM authorities of the server: call it over TLS"),
    "tls_client_cert_file": (
        "PENTIMENTO_TLS_CLIENT_CERT_FILE",
        "PEM certificate to show to a server that asks for one (mTLS)",
    ),
    "tls_client_key_file": ("PENTIMENTO_TLS_CLIENT_KEY_FILE", "PEM private key of that certificate"),
}


def tls_options(command: Command) -> Command:
    """Add the options of TLS: the trusted authorities and the client's certificate."""
    for name, (variable, text) in reversed(TLS_FILES.items()):
        command = click.option(flag_of(name), name, type=PRESENT, envvar=variable, help=text)(command)
    return command


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def tls_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given files of `tls_options` by name. UsageError for a file that needs another one."""
    given = {name: options[name] for name in TLS_FILES}
    try:
        client_settings(**given)
    except InvalidArgument as error:
        lacking = error.violations[0]
        raise click.UsageError(f"{flag_of(lacking.field)} {lacking.description}") from None
    return given


def calling(address: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return the decorator that adds `--json`, the option `address` and the options for the suite here, the token and
    TLS."""

    def decorate(command: Command) -> Command:
        options: tuple[Callable[[Any], Any], ...] = (tls_options, token_option, address, state_dir_option, json_option)
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
