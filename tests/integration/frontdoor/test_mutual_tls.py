"""Call a frontdoor that requires client certificates."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.fixtures.certificates import Authority
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
    tls = {"tls_dir": authority.issue("server").directory, "mutual_tls": True}
    async with running_suite(folder, tls=tls) as suite:
        yield suite.frontdoor.server.bound_addresses[-1]


async def command(*arguments: str) -> Result:
    """Run a command in a thread, because it runs its own event loop."""
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_clients_with_known_certificate_are_served(address: str, authority: Authority) -> None:
    known = authority.issue("client").directory

    def asked() -> int:
        with Client(address, retries=ONCE, tls_dir=str(known)) as client:
            return len(client.list_models())

    async with AsyncClient(address, retries=ONCE, tls_dir=known) as client:
        assert len(await client.list_models()) == 1
    assert await asyncio.to_thread(asked) == 1


async def test_clients_without_known_certificate_are_refused(address: str, authority: Authority, folder: Path) -> None:
    stranger = Authority(folder, "strangers").issue("stranger").trusting(authority)

    for given in (authority.directory, stranger.directory):
        async with AsyncClient(address, retries=ONCE, tls_dir=given) as client:
            with pytest.raises(Unavailable):
                await client.list_models()


@pytest.mark.slow
async def test_commands_show_their_certificate_to_every_service(address: str, authority: Authority) -> None:
    known = f"--tls-dir={authority.issue('client').directory}"
    nobody = f"--tls-dir={authority.directory}"

    jobs = await command("jobs", "list", "--json", "--address", address, known)
    status = [f"--{name}-address={address}" for name in ("controller", "frontdoor", "gateway")]
    seen = await command("status", "--json", *status, known)
    refused = [
        await command("jobs", "list", "--address", address, nobody),
        await command("adapters", "list", "--controller-address", address, nobody),
        await command("tenant", "list", "--admin-address", address, nobody),
    ]
    # A frontdoor does not serve the controller's or the administrator's methods, but its answer shows that it was
    # reached.
    reached = [
        await command("adapters", "list", "--controller-address", address, known),
        await command("tenant", "list", "--admin-address", address, known),
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
    places = find_places(given, "", client_settings(shown.directory), folder)
    shown.key.write_text("-----BEGIN ")

    assert (await look(*places)).frontdoor is not None


async def test_environment_may_name_tls_directory(
    address: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENTIMENTO_TLS_DIR", str(authority.issue("client").directory))

    assert (await command("jobs", "list", "--address", address)).exit_code == 0


async def test_unusable_certificate_files_are_named(authority: Authority) -> None:
    known = authority.issue("client")
    known.key.write_bytes(authority.issue("other").key.read_bytes())
    with pytest.raises(SettingsError, match=r"client/tls\.key, .*KEY_VALUES_MISMATCH"):
        AsyncClient("127.0.0.1:1", tls_dir=known.directory)
    known.authorities.unlink()
    with pytest.raises(InvalidArgument, match=f"^tls_dir: {known.directory}: ca.crt is missing, which verifies"):
        AsyncClient("127.0.0.1:1", tls_dir=known.directory)


async def test_worker_joining_during_certificate_change_is_watched(folder: Path, authority: Authority) -> None:
    shown = authority.issue("frontdoor")
    settings = replace(settings_of(folder), channels=client_settings(shown.directory))
    lay_tables(settings.ledger_url)
    journal = open_journal(settings.ledger_url)
    frontdoor = wire(settings, journal, 1)
    shown.key.write_text("-----BEGIN ")
    try:
        frontdoor.fleet.links.follow({"127.0.0.1:1": False})
    finally:
        await frontdoor.close()
        journal.close()
