"""Start one suite of two workers that requires a token for every call."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pentimento.domain.tenants import Role
from pentimento.rpc import new_token, token_entry
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from tests.e2e.folder_suite import FolderSuite
from tests.support.edge_packages import missing

STARTED = FolderSuite(Path(__file__).parent)


@dataclass(frozen=True)
class Guarded:
    """Hold the tokens of a suite: two users of different tenants, and one token for each other role."""

    suite: LocalSuite
    user: str
    other_user: str
    admin: str
    service: str
    tenant_admin: str

    def client(self, token: str = "") -> AsyncClient:
        return AsyncClient(self.suite.endpoint.public, token=token)


@pytest.fixture(scope="session")
def guarded(patient_frontdoors: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start two workers with one model, which share every guided image."""
    user, other, admin, service, tenant_admin = (new_token() for _ in range(5))
    entries = [
        token_entry(user, "acme", frozenset({Role.USER})),
        token_entry(other, "other", frozenset({Role.USER})),
        token_entry(admin, "acme", frozenset({Role.ADMIN})),
        token_entry(service, "acme", frozenset({Role.SERVICE})),
        token_entry(tenant_admin, "acme", frozenset({Role.TENANT_ADMIN})),
    ]
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text("\n".join(entries))
    together = {"PENTIMENTO_FRONTDOOR_LATENT_PARALLEL": "always"}
    with STARTED:
        flags = ["--workers", "2", "--token-file", str(file), "--admin-listen", "127.0.0.1:0"]
        flags += [] if missing() else ["--http", "127.0.0.1:0"]
        suite = STARTED.enter_context(local_suite(flags, environment=together))
        yield Guarded(suite, user, other, admin, service, tenant_admin)


@pytest.hookimpl(trylast=True)  # after the test's own fixtures
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    STARTED.end_before(nextitem)
