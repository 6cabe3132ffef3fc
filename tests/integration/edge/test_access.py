"""Call every route with every role: the frontdoor checks the caller's own token, and unknown routes are closed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import Internal
from pentimento.domain.tenants import Role, TenantQuota
from pentimento.rpc import token_entry
from services.frontdoor.tenants.administration import TenantServicer
from tests.integration.edge.conftest import EdgeUnderTest, files_of, routes_of, signing_keys
from tests.support.tenants import administered_by

ROLES = {"user": Role.USER, "service": Role.SERVICE, "admin": Role.ADMIN}
CALLERS = ("nobody", "unknown", *ROLES)
# Statuses by caller, for each kind of route.
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
    ("POST", "/v1/jobs"): {**FOR_USERS, "user": 202, "admin": 202},
    ("GET", "/v1/jobs"): FOR_USERS,
    ("GET", "/v1/jobs/{id}"): FOR_USERS,
    ("GET", "/v1/jobs/{id}/events"): FOR_USERS,
    ("GET", "/v1/jobs/{id}/result"): FOR_USERS,
    ("POST", "/v1/jobs/{id}/cancel"): FOR_USERS,
    ("POST", "/v1/jobs/{id}/url"): FOR_USERS,
    # A signed URL suffices for reading.
    ("GET", "/v1/files/{key:path}"): OPEN,
}
DATA = "/console/data"
CONSOLE = {
    ("GET", "/"): OPEN,
    ("GET", "/console/static/{name}"): OPEN,
    # Return whether callers need a token.
    ("GET", f"{DATA}/access"): OPEN,
    ("GET", f"{DATA}/deployment"): FOR_USERS,
    ("GET", f"{DATA}/status"): FOR_OPERATORS,
    # The edge reads this with its own token, so callers need the role that could read it themselves.
    ("GET", f"{DATA}/history"): FOR_OPERATORS,
    ("POST", f"{DATA}/generate"): FOR_USERS,
    ("POST", f"{DATA}/replay"): FOR_USERS,
    ("POST", f"{DATA}/explain"): FOR_USERS,
    ("GET", f"{DATA}/requests"): FOR_USERS,
    ("GET", f"{DATA}/requests/{{request_id}}"): FOR_USERS,
    ("GET", f"{DATA}/requests/{{request_id}}/image"): FOR_USERS,
}


@pytest.fixture
async def edge(folder: Path, worker: PacedWorker) -> AsyncIterator[EdgeUnderTest]:
    """Return tokens by role name; the other user belongs to another tenant."""
    tokens = folder / "tokens.toml"
    entries = [token_entry(name, "acme", frozenset({role})) for name, role in ROLES.items()]
    tokens.write_text("\n".join([*entries, token_entry("other", "other", frozenset({Role.USER}))]))
    async with (
        running_suite(folder, token_file=tokens, signing_key_file=signing_keys(folder)) as suite,
        running_edge(
            folder, f"unix:{folder / 'f'}", service_token_file=own_token(folder, "service"), **files_of(folder)
        ) as running,
        httpx.AsyncClient(base_url=f"http://{running.listener.address}", timeout=60) as http,
    ):
        yield EdgeUnderTest(suite, worker, http, str(http.base_url), running.listener, running.history)


def own_token(folder: Path, secret: str) -> Path:
    """Return a file with the edge's own token."""
    path = folder / f"token-{secret}"
    path.write_text(secret)
    return path


def shown(caller: str) -> dict[str, str]:
    return {} if caller == "nobody" else {"Authorization": f"Bearer {caller}"}


async def ask(edge: EdgeUnderTest, method: str, path: str, caller: str, request_id: str = "") -> int:
    """Return the status of a call; a replay generates the image of `request_id` again."""
    posts_prompt = method == "POST" and path.endswith(("generations", "jobs", "generate", "explain"))
    body: dict[str, Any] | None = {"prompt": "x", "num_inference_steps": 1} if posts_prompt else None
    if path.endswith("replay"):
        body = {"request_id": request_id}
    form = {"files": {"image": b"GIF"}, "data": {"prompt": "x"}} if path.endswith("edits") else {}
    answer = await edge.http.request(method, path, headers=shown(caller), json=body, **form)  # type: ignore[arg-type]
    return answer.status_code


async def places(edge: EdgeUnderTest) -> dict[str, str]:
    """Return a value for each name of a path: a model, a finished job of the user, and the key of its image."""
    as_user = {"headers": shown("user")}
    job = (await edge.http.post("/v1/jobs", json={"prompt": "x", "num_inference_steps": 1}, **as_user)).json()["id"]
    await edge.http.get(f"/v1/jobs/{job}/events", **as_user)
    url = (await edge.http.post(f"/v1/jobs/{job}/url", **as_user)).json()["url"]
    key = url.partition("/v1/files/")[2]
    names = {"{model}": edge.worker.held.model, "{id}": job, "{key:path}": key}
    return {**names, "{request_id}": job, "{name}": "app.js"}


@pytest.mark.slow
async def test_every_route_by_every_role(edge: EdgeUnderTest) -> None:
    await edge.history.look()
    assert edge.history.reads
    found = await places(edge)

    told = {}
    for method, path in ROUTES | CONSOLE:
        place = path
        for name, value in found.items():
            place = place.replace(name, value)
        told[method, path] = {caller: await ask(edge, method, place, caller, found["{id}"]) for caller in CALLERS}

    assert told == ROUTES | CONSOLE


async def test_tenant_over_quota_gets_retry_after_over_http(edge: EdgeUnderTest) -> None:
    of, clock = edge.suite.frontdoor, edge.suite.frontdoor.interpreter.clock
    tenants = administered_by(TenantServicer(of.journal.tenants, of.tenants, of.usage, of.erasures, clock, 0.0))
    await tenants.create("greedy", TenantQuota(requests_per_s=0.01, burst_count=2))
    _, secret = await tenants.create_key("greedy", None)
    body = {"prompt": "x", "num_inference_steps": 1}

    async def asked(caller: str, **more: object) -> httpx.Response:
        return await edge.http.post("/v1/images/generations", headers=shown(caller), json=body | more)

    answers = [await asked(secret), await asked(secret, n=2), await asked("user")]

    assert [answer.status_code for answer in answers] == [200, 429, 200]
    refused = answers[1]
    assert 0 < int(refused.headers["Retry-After"]) <= 100
    assert refused.json()["error"] == {
        "message": "requests_per_s: at most 0.01 requests a second, 2 at once of this tenant",
        "type": "rate_limit_error",
        "param": None,
        "code": "TENANT_QUOTA",
    }


async def test_edge_without_role_keeps_no_history_and_pages_use_callers_token(
    edge: EdgeUnderTest, tmp_path: Path
) -> None:
    frontdoor = f"unix:{edge.suite.folder / 'f'}"
    async with (
        running_edge(tmp_path, frontdoor, service_token_file=own_token(tmp_path, "unknown")) as other,
        httpx.AsyncClient(base_url=f"http://{other.listener.address}", timeout=60) as http,
    ):
        await other.history.look()
        answers = {name: await http.get("/console/data/history", headers=shown(name)) for name in CALLERS}

        assert (other.history.reads, len(other.history.ring)) == (False, 0)
        assert {name: answer.status_code for name, answer in answers.items()} == FOR_OPERATORS
        assert [sample["completed"] for sample in answers["admin"].json()["samples"]] == [0]


def test_tables_have_every_route(folder: Path) -> None:
    assert set(ROUTES) == routes_of(folder)
    assert set(ROUTES | CONSOLE) == routes_of(folder, console=True)


def test_api_document_has_every_route_but_itself_and_metrics(folder: Path) -> None:
    from services.edge.api.document import api_document

    listed = {(method, path.replace(":path", "")) for method, path in routes_of(folder)}

    assert listed - told_by(api_document()) == {("GET", "/openapi.json"), ("GET", "/metrics")}
    assert told_by(api_document()) <= listed
    assert told_by(api_document()) - told_by(api_document(serves_files=False)) == {("GET", "/v1/files/{key}")}


def told_by(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, calls in document["paths"].items() for method in calls}


async def test_foreign_tenant_finds_nothing(edge: EdgeUnderTest) -> None:
    job = (await places(edge))["{id}"]
    calls = [(method, path.replace("{id}", job), {}) for method, path in ROUTES if "{id}" in path]
    assert len(calls) == 5
    calls += [
        ("GET", f"{DATA}/requests/{job}", {}),
        ("GET", f"{DATA}/requests/{job}/image", {}),
        ("POST", f"{DATA}/replay", {"request_id": job}),
    ]

    for method, path, body in calls:
        answer = await edge.http.request(method, path, headers=shown("other"), json=body or None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "UNKNOWN_REQUEST"), path
    assert (await edge.http.get("/v1/jobs", headers=shown("other"))).json()["data"] == []
    assert (await edge.http.get(f"{DATA}/requests", headers=shown("other"))).json()["requests"] == []
    assert len(edge.worker.executed) == 1
    asked = {"prompt": "x", "seed": 1, "num_inference_steps": 1}
    ids = []
    for caller in ("user", "user", "other"):
        headers = {**shown(caller), "Idempotency-Key": "k"}
        answer = await edge.http.post("/v1/images/generations", json=asked, headers=headers)
        ids.append(answer.headers["x-request-id"])
    assert ids[0] == ids[1] != ids[2]


async def test_prompts_and_tokens_are_in_no_log_no_metric_and_no_error(
    edge: EdgeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    prompt, as_user = "zebra-under-a-canary", {"headers": shown("user")}
    asked = {"prompt": prompt, "negative_prompt": prompt, "user": prompt, "num_inference_steps": 1}
    edge.worker.fail_with = Internal("BROKEN", "the attempt broke")

    answers = [await edge.http.post("/v1/images/generations", json=asked, **as_user) for _ in range(2)]
    answers.append(await edge.http.post("/v1/images/generations", json={**asked, "max_cost": 0}, **as_user))
    answers.append(await edge.http.post("/v1/jobs", json={**asked, "stream": True}, **as_user))
    answers.append(await edge.http.post("/v1/images/generations", json=asked, headers=shown("canary-token")))
    answers.append(await edge.http.get("/metrics", headers=shown("admin")))
    form: Any = {"files": {"image": b"GIF"}, "data": {**asked, "user": prompt}}
    answers.append(await edge.http.post("/v1/images/edits", **form, **as_user))
    answers.append(await edge.http.post(f"{DATA}/replay", json={"request_id": prompt}, **as_user))
    # Only the owner of an image reads its prompt.
    for name in ("generate", "explain"):
        assert (await edge.http.post(f"{DATA}/{name}", json=asked, **as_user)).status_code == 200

    told = [*(answer.text for answer in answers), caplog.text, *(str(vars(one)) for one in caplog.records)]
    assert [answer.status_code for answer in answers[2:]] == [400, 400, 401, 200, 400, 404]
    assert not [text for text in told if prompt in text or "canary-token" in text]


async def test_stranger_is_refused_by_how_to_send_a_token(edge: EdgeUnderTest) -> None:
    for headers, first, code in (
        ({}, "this suite needs a token: ", "TOKEN_REQUIRED"),
        ({"Authorization": "Basic Og=="}, "this suite needs a token: ", "TOKEN_REQUIRED"),
        (shown("unknown"), "the token is not known: ", "UNKNOWN_TOKEN"),
    ):
        answer = await edge.http.get("/v1/models", headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, code)
        assert error["message"].startswith(first)
        assert "Authorization: Bearer" in error["message"] and "pentimento token new" in error["message"]

    strangers = [edge.http.get("/v1/models", headers=shown(f"stranger-{number}")) for number in range(50)]
    assert {answer.status_code for answer in await asyncio.gather(*strangers)} == {401}
    assert await ask(edge, "GET", "/v1/models", "user") == 200

    # Little is read of a caller without access.
    host, _, port = edge.listener.address.rpartition(":")
    for length in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        head = "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}{length}\r\n\r\n".encode())
            status = await reader.readline()
            writer.close()
        assert status.startswith(b"HTTP/1.1 401 ")
