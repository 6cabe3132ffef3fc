"""Every route by every role: the frontdoor judges the caller's own token, and what has no route is closed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pentimento.domain.identity import Role
from pentimento.rpc import token_entry
from pentimento.testing.edge_suite import running_edge
from pentimento.testing.frontdoor_suite import running_suite
from pentimento.testing.paced_worker import PacedWorker
from tests.integration.edge.conftest import EdgeUnderTest

ROLES = {"user": Role.USER, "service": Role.SERVICE, "admin": Role.ADMIN}
CALLERS = ("nobody", "unknown", *ROLES)
# Of each route: what nobody and a stranger are told, and those who may.
OPEN = dict.fromkeys(CALLERS, 200)
FOR_USERS = {"nobody": 401, "unknown": 401, "user": 200, "service": 403, "admin": 200}
FOR_OPERATORS = {"nobody": 401, "unknown": 401, "user": 403, "service": 200, "admin": 200}
ROUTES = {
    ("GET", "/health"): OPEN,
    ("GET", "/ready"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/metrics"): FOR_OPERATORS,
    ("GET", "/v1/models"): FOR_USERS,
    ("GET", "/v1/models/{model}"): FOR_USERS,
    ("POST", "/v1/images/generations"): FOR_USERS,
    ("POST", "/v1/images/edits"): {**FOR_USERS, "user": 400, "admin": 400},
}


@pytest.fixture
async def edge(folder: Path, worker: PacedWorker) -> AsyncIterator[EdgeUnderTest]:
    """With tokens, which are called like their roles; another user is of another tenant."""
    tokens = folder / "tokens.toml"
    entries = [token_entry(name, "acme", frozenset({role})) for name, role in ROLES.items()]
    tokens.write_text("\n".join([*entries, token_entry("other", "other", frozenset({Role.USER}))]))
    async with (
        running_suite(folder, token_file=tokens) as suite,
        running_edge(folder, f"unix:{folder / 'f'}", service_token_file=own_token(folder, "service")) as running,
        httpx.AsyncClient(base_url=f"http://{running.listener.address}", timeout=60) as http,
    ):
        yield EdgeUnderTest(suite, worker, http, str(http.base_url), running.listener, running.history)


def own_token(folder: Path, secret: str) -> Path:
    """The file of a token that the edge has of its own."""
    path = folder / f"token-{secret}"
    path.write_text(secret)
    return path


def shown(caller: str) -> dict[str, str]:
    return {} if caller == "nobody" else {"Authorization": f"Bearer {caller}"}


async def ask(edge: EdgeUnderTest, method: str, path: str, caller: str) -> int:
    model = path.replace("{model}", edge.worker.held.model)
    body = {"prompt": "x", "num_inference_steps": 1} if path.endswith("generations") else None
    form = {"files": {"image": b"GIF"}, "data": {"prompt": "x"}} if path.endswith("edits") else {}
    answer = await edge.http.request(method, model, headers=shown(caller), json=body, **form)  # type: ignore[arg-type]
    return answer.status_code


async def test_every_route_by_every_role(edge: EdgeUnderTest) -> None:
    told = {
        (method, path): {caller: await ask(edge, method, path, caller) for caller in CALLERS} for method, path in ROUTES
    }

    assert told == ROUTES


CONSOLE = {"deployment": FOR_USERS, "requests": FOR_USERS, "status": FOR_OPERATORS, "history": FOR_OPERATORS}


async def test_the_consoles_data_is_for_whom_the_services_answer(edge: EdgeUnderTest) -> None:
    """What the edge knows by its own token is for nobody who could not ask for it by theirs."""
    assert edge.history is not None
    await edge.history.look()
    assert edge.history.reads

    told = {
        name: {caller: await ask(edge, "GET", f"/console/data/{name}", caller) for caller in CALLERS}
        for name in CONSOLE
    }

    assert told == CONSOLE


async def test_an_edge_that_may_not_look_keeps_no_history_and_pages_look_by_their_callers_token(
    edge: EdgeUnderTest, tmp_path: Path
) -> None:
    frontdoor = f"unix:{edge.suite.folder / 'f'}"
    async with (
        running_edge(tmp_path, frontdoor, service_token_file=own_token(tmp_path, "unknown")) as other,
        httpx.AsyncClient(base_url=f"http://{other.listener.address}", timeout=60) as http,
    ):
        assert other.history is not None
        await other.history.look()
        answers = {name: await http.get("/console/data/history", headers=shown(name)) for name in CALLERS}

        assert (other.history.reads, len(other.history.ring)) == (False, 0)
        assert {name: answer.status_code for name, answer in answers.items()} == FOR_OPERATORS
        assert [sample["completed"] for sample in answers["admin"].json()["samples"]] == [0]


async def test_the_table_has_every_route_of_the_api(edge: EdgeUnderTest) -> None:
    listed = {path for _, path in ROUTES}

    assert listed == {route.path for route in api_routes()}


def api_routes() -> list[object]:
    from services.edge.api_document import document_routes
    from services.edge.health import health_routes
    from services.edge.images import image_routes
    from services.edge.model_list import model_routes

    parts = object()
    return [*health_routes(parts), *document_routes(), *model_routes(parts), *image_routes(parts)]  # type: ignore[arg-type]


async def test_a_key_of_one_tenant_finds_nothing_of_another(edge: EdgeUnderTest) -> None:
    body = {"prompt": "x", "seed": 1, "num_inference_steps": 1}

    answers = [
        await edge.http.post("/v1/images/generations", json=body, headers={**shown(caller), "Idempotency-Key": "k"})
        for caller in ("user", "user", "other")
    ]

    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[0] == ids[1] != ids[2]


async def test_many_strangers_leave_the_user_alone(edge: EdgeUnderTest) -> None:
    strangers = [edge.http.get("/v1/models", headers=shown(f"stranger-{number}")) for number in range(50)]

    statuses = [answer.status_code for answer in await asyncio.gather(*strangers)]

    assert set(statuses) == {401}
    assert await ask(edge, "GET", "/v1/models", "user") == 200


@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
async def test_nothing_large_is_read_of_a_stranger(edge: EdgeUnderTest, length: str) -> None:
    head = f"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n"
    host, _, port = edge.listener.address.rpartition(":")

    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"\r\n")
        status = await reader.readline()
        writer.close()

    assert status.startswith(b"HTTP/1.1 401 ")
