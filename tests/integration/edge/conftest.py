import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.files.ed25519_keys import new_signing_key
from tests.support.edge_packages import missing
from tests.support.patient_connections import be_patient

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from services.edge.console.history import HistoryReader
    from services.edge.http.listener import HttpListener

collect_ignore_glob = ["test_*.py"] if missing() else []


@dataclass(frozen=True)
class EdgeUnderTest:
    """Hold a frontdoor with a paced worker, and an edge over it; `url` is the address of its HTTP."""

    suite: FrontdoorSuite
    worker: PacedWorker
    http: httpx.AsyncClient
    url: str
    listener: "HttpListener"
    history: "HistoryReader"

    async def generate(self, **values: object) -> httpx.Response:
        return await self.http.post("/v1/images/generations", json={"prompt": "a red circle", **values})


def openai_client(edge: EdgeUnderTest, path: str = "/v1", **options: Any) -> "AsyncOpenAI":
    """Return an unmodified OpenAI client of the edge. Importing its package takes 2 s."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{edge.url}{path}", api_key="any", timeout=60, **{"max_retries": 0, **options})


@pytest.fixture(autouse=True)
def patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for each service's status for a minute: the machine may be busy with other tests."""
    monkeypatch.setattr("services.edge.console.data.STATUS_TIMEOUT_S", 60.0)
    monkeypatch.setattr("services.edge.console.history.LOOK_TIMEOUT_S", 60.0)


@pytest.fixture
def limits() -> dict[str, Any]:
    """Return the listener settings that a test changes."""
    return {}


@pytest.fixture
async def edge(folder: Path, worker: PacedWorker, limits: dict[str, Any]) -> AsyncIterator[EdgeUnderTest]:
    async with edge_before(folder, worker, limits) as found:
        yield found


# Mark for tests that use `shared_edge`.
IN_A_SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_edge() -> AsyncIterator[EdgeUnderTest]:
    """Share one edge among a module's tests with refused calls, which leave no request for others to see."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as path, pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        folder, worker = Path(path), PacedWorker("w1")
        server = await serve(worker, f"unix:{folder / 'w1'}")
        async with edge_before(folder, worker, {}) as found:
            yield found
        await server.stop()


@asynccontextmanager
async def edge_before(folder: Path, worker: PacedWorker, limits: dict[str, Any]) -> AsyncIterator[EdgeUnderTest]:
    """Run an edge over a frontdoor of that worker, which listens in the folder."""
    from lab.fixtures.edge_suite import running_edge

    async with (
        running_suite(folder, signing_key_file=folder / "keys") as suite,
        running_edge(folder, f"unix:{folder / 'f'}", **files_of(folder), **limits) as running,
    ):
        url = f"http://{running.listener.address}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield EdgeUnderTest(suite, worker, http, url, running.listener, running.history)


def signing_keys(folder: Path) -> Path:
    """Return a key file for signed image addresses; create it if there is none."""
    keys = folder / "keys"
    if not keys.exists():
        keys.write_text(new_signing_key())
    return keys


def files_of(folder: Path) -> dict[str, Any]:
    """Return the settings of an edge that serves the images of the suite in this folder."""
    return {"files_url": (f"file://{folder / 'objects'}",), "signing_key_file": signing_keys(folder)}


def routes_of(folder: Path, console: bool = False) -> set[tuple[str, str]]:
    """Return method and path of every route of an edge that serves files: the API's, or the console's too."""
    from pentimento.rpc import RpcChannelSettings, RpcServerSettings
    from services.edge.app import api_routes
    from services.edge.console.data import data_routes
    from services.edge.console.pages import page_routes
    from services.edge.parts import EdgeParts
    from services.edge.settings import EdgeSettings, HttpSettings

    settings = EdgeSettings(RpcServerSettings(), RpcChannelSettings(), HttpSettings(), **files_of(folder))
    unused: Any = None
    parts = EdgeParts(settings, unused, unused, unused, unused)
    routes: list[Any] = [*api_routes(parts), *([*page_routes(), *data_routes(parts)] if console else ())]
    return {(method, route.path) for route in routes for method in (route.methods or {"ANY"}) - {"HEAD"}}
