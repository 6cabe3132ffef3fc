"""Call a suite from commands, and report failures of the call."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import cli, describe
from pentimento.cli.adapters import list_all
from pentimento.cli.calls import naming, own_token_file
from pentimento.cli.control import stopping, told
from pentimento.domain.errors import Unauthenticated, Unavailable
from pentimento.supervisor.state import Endpoint

NOBODY = "unix:/nonexistent/socket"


def test_a_controller_that_cannot_be_reached_is_named() -> None:
    done = CliRunner().invoke(list_all, ["--controller-address", NOBODY])

    assert isinstance(done.exception, Unavailable)
    assert str(done.exception) == f"{NOBODY}: the server cannot be reached"


def test_message_of_own_process_is_unchanged() -> None:
    with pytest.raises(Unavailable, match=r"^no worker is there$"), naming("here:1"):
        raise Unavailable("NO_WORKER", "no worker is there")


def test_suite_token_is_default() -> None:
    closed = Endpoint("", "", "", "", "/run/service-token", 1)

    assert own_token_file(closed, "") == Path("/run/service-token")
    assert own_token_file(closed, "another") is None
    assert own_token_file(Endpoint("", "", "", "", "", 1), "") is None


def test_missing_token_names_its_option() -> None:
    lacking = Unauthenticated("TOKEN_REQUIRED", 'this call needs metadata "authorization: Bearer <token>"')

    assert "--token" in describe(lacking)
    assert describe(Unauthenticated("UNKNOWN_TOKEN", "the token is not known")) == "the token is not known"


def test_stop_command_names_state_directory_unless_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert stopping(Path(".pentimento")) == "pentimento down"
    assert stopping(tmp_path / "my suite") == f"pentimento down --state-dir '{tmp_path}/my suite'"


def test_one_process_serves_and_two_serve() -> None:
    assert (told(1), told(2)) == ("1 process serves", "2 processes serve")


@pytest.mark.parametrize(
    ("there", "lacking"), [(("ca.crt", "tls.crt"), "tls.key is missing"), (("tls.crt", "tls.key"), "ca.crt is missing")]
)
def test_incomplete_tls_directory_is_wrong_usage_naming_flag(
    there: tuple[str, str], lacking: str, tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).touch()

    done = CliRunner().invoke(cli, ["jobs", "list", "--address", NOBODY, "--tls-dir", str(tmp_path)])

    assert done.exit_code == 2
    assert f"Error: Invalid value for '--tls-dir': {tmp_path}: {lacking}" in done.output


def test_an_option_that_lacks_another_is_wrong_usage() -> None:
    done = CliRunner().invoke(cli, ["status", "--record", "samples.jsonl"])

    assert (done.exit_code, "Error: --record needs --watch\n" in done.output) == (2, True)


@pytest.mark.parametrize("option", ["--listen=here", "--http=unix:/there", "--http=127.0.0.1:65536"])
def test_an_address_that_is_none_is_refused_before_anything_is_started(option: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["up", option, "--state-dir", str(tmp_path / "state")])

    assert (done.exit_code, f"Error: {option.partition('=')[0]} must be " in done.output) == (2, True)
    assert not (tmp_path / "state").exists()
