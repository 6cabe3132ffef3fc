"""Call a frontdoor that requires client certificates."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.fixtures.certificates import Authority, Pair
from lab.fixtures.frontdoor_suite import running_suite, settings_of
from lab.fixtures.laid_ledgers import lay_tables
from lab.fixtures.paced_worker import PacedWorker
from pentimento.cli import cli
from pentimento.cli.status import find_places, look
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, Unavailable
from pentimento.rpc.settings import client_settings
from pentimento.sdk import AsyncClient, Client, RetryPolicy
from pentimento.settings import SettingsError
from pentimento.stores.ledger import open_journal
from services.frontdoor.wiring import wire

ONCE = RetryPolicy(tries=1)


@pytest.fixture(autouse=True)
def patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for each status, however busy the machine is."""
    monkeypatch.setattr("pentimento.cli.status.CALL_TIMEOUT_S", 60.0)


@pytest.fixture
def authority(folder: Path) -> Authority:
    return Authority(folder, "authority")


@pytest.fixture
async def address(folder: Path, worker: PacedWorker, authority: Authority) -> AsyncIterator[str]:
    shown = authority.issue("server")
    tls = {
        "tls_cert_file": shown.certificate,
        "tls_key_file": shown.key,
        "tls_client_ca_file": authority.certificate,
    }
    async with running_suite(folder, tls=tls) as suite:
        yield suite.frontdoor.server.bound_addresses[-1]


def files(authority: Authority, pair: Pair) -> dict[str, Any]:
    return {
        "tls_ca_file": authority.certificate,
        "tls_client_cert_file": pair.certificate,
        "tls_client_key_file": pair.key,
    }


async def command(*arguments: str, **given: Path) -> Result:
    """Run a command with these files, in a thread, because the command runs its own event loop."""
    flags = [part for name, file in given.items() for part in (f"--{name.replace('_', '-')}", str(file))]
    return await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *flags])


async def test_clients_with_known_certificate_are_served(address: str, authority: Authority) -> None:
    known = files(authority, authority.issue("client"))

    def asked() -> int:
        with Client(address, retries=ONCE, **known) as client:
            return len(client.list_models())

    async with AsyncClient(address, retries=ONCE, **known) as client:
        assert len(await client.list_models()) == 1
    assert await asyncio.to_thread(asked) == 1


async def test_clients_without_known_certificate_are_refused(address: str, authority: Authority, folder: Path) -> None:
    stranger = files(authority, Authority(folder, "strangers").issue("stranger"))

    nobody: dict[str, Any] = {"tls_ca_file": authority.certificate}
    for given in (nobody, stranger):
        async with AsyncClient(address, retries=ONCE, **given) as client:
            with pytest.raises(Unavailable):
                await client.list_models()


@pytest.mark.slow
async def test_commands_show_their_certificate_to_every_service(address: str, authority: Authority) -> None:
    known = files(authority, authority.issue("client"))
    nobody = {"tls_ca_file": authority.certificate}

    jobs = await command("jobs", "list", "--json", "--address", address, **known)
    status = [f"--{name}-address={address}" for name in ("controller", "frontdoor", "gateway")]
    seen = await command("status", "--json", *status, **known)
    refused = [
        await command("jobs", "list", "--address", address, **nobody),
        await command("adapters", "list", "--controller-address", address, **nobody),
        await command("tenant", "list", "--admin-address", address, **nobody),
    ]
    # A frontdoor does not serve the controller's or the administrator's methods, but its answer shows that it was
    # reached.
    reached = [
        await command("adapters", "list", "--controller-address", address, **known),
        await command("tenant", "list", "--admin-address", address, **known),
    ]

    assert (jobs.exit_code, jobs.stdout) == (0, "")
    assert json.loads(seen.stdout)["frontdoor"] is not None
    assert [type(one.exception) for one in refused] == [Unavailable] * 3
    assert [type(one.exception) for one in reached] == [FailedPrecondition] * 2


@pytest.mark.slow
async def test_status_continues_while_certificates_are_written(
    address: str, authority: Authority, folder: Path
) -> None:
    shown = authority.issue("watcher")
    given = dict.fromkeys(("controller", "frontdoor", "gateway"), address)
    places = find_places(given, "", client_settings(**files(authority, shown)), folder)
    shown.key.write_text("-----BEGIN ")

    assert (await look(*places)).frontdoor is not None


async def test_environment_may_name_certificate_files(
    address: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in files(authority, authority.issue("client")).items():
        monkeypatch.setenv(f"PENTIMENTO_{name.upper()}", str(file))

    assert (await command("jobs", "list", "--address", address)).exit_code == 0


async def test_unusable_certificate_files_are_named(authority: Authority) -> None:
    known = files(authority, authority.issue("client"))
    for lacking in known:
        with pytest.raises(InvalidArgument, match=f"^{lacking}: must be given"):
            AsyncClient("127.0.0.1:1", **{name: file for name, file in known.items() if name != lacking})
    other = known | {"tls_client_key_file": authority.issue("other").key}
    missing = known | {"tls_client_key_file": Path("/nonexistent.key")}
    for given, words in ((other, r"other\.key"), (missing, "nonexistent.key: cannot be read")):
        with pytest.raises(SettingsError, match=words):
            AsyncClient("127.0.0.1:1", **given)


async def test_worker_joining_during_certificate_change_is_watched(folder: Path, authority: Authority) -> None:
    shown = authority.issue("frontdoor")
    settings = replace(settings_of(folder), channels=client_settings(**files(authority, shown)))
    lay_tables(settings.ledger_url)
    journal = open_journal(settings.ledger_url)
    frontdoor = wire(settings, journal, 1)
    shown.key.write_text("-----BEGIN ")
    try:
        frontdoor.fleet.links.follow({"127.0.0.1:1": False})
    finally:
        await frontdoor.close()
        journal.close()
