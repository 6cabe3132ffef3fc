"""Who sees what: two tenants of one frontdoor, and what never shows up in metrics and logs."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from pentimento.domain.identity import Role
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.rpc import RpcChannelSettings, open_channel, token_entry
from tests.support.calls import last_completed

CANARY = "a canary in a coal mine"


class Tenants:
    """A client for each."""

    def __init__(self, one: ImageClient, other: ImageClient, nobody: ImageClient, operator: FrontdoorClient) -> None:
        self.one = one
        self.other = other
        self.nobody = nobody
        self.operator = operator


@pytest.fixture
async def tenants(folder: Path, worker: PacedWorker) -> AsyncIterator[Tenants]:
    table = folder / "tokens.toml"
    entries = [token_entry(f"token-{name}", name, frozenset({Role.USER})) for name in ("one", "other")]
    table.write_text("".join(entries))
    async with running_suite(folder, token_file=table), AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(f"unix:{folder / 'f'}", RpcChannelSettings(), token))
            for token in ("token-one", "token-other", None)
        ]
        yield Tenants(*(ImageClient(channel) for channel in channels), FrontdoorClient(channels[0]))


async def paint(client: ImageClient, request: ImageRequest = REQUEST, key: str = "") -> Completed:
    return await last_completed(client.generate(request, key))


# RPCs that name a request, except GetResultUrl, which needs a signing key.
CALLS: dict[str, Callable[[ImageClient, str], Awaitable[object]]] = {
    "GetRequest": lambda client, request_id: client.get_request(request_id),
    "Cancel": lambda client, request_id: client.cancel(request_id),
    "Attach": lambda client, request_id: anext(client.attach(request_id)),
    "Replay": lambda client, request_id: anext(client.replay(ReplayRequest(request_id))),
    "Pin": lambda client, request_id: client.pin(request_id, 60_000),
    "Unpin": lambda client, request_id: client.unpin(request_id),
}


async def test_foreign_tenant_finds_and_changes_nothing(tenants: Tenants, worker: PacedWorker) -> None:
    service = pb.DESCRIPTOR.services_by_name["ImageService"]
    named = {method.name for method in service.methods if "request_id" in method.input_type.fields_by_name}
    assert CALLS.keys() == named - {"GetResultUrl"}
    finished = await paint(tenants.one, key="key")
    worker.hold.clear()
    stream = tenants.one.generate(REQUEST)
    running = await anext(stream)
    await worker.wait_until(lambda: worker.running)
    job = await tenants.one.submit(REQUEST, "job")
    foreign = [(tenants.other, one.request_id) for one in (finished, running, job)]

    for client, request_id in (*foreign, (tenants.one, "r-" + "0" * 32), (tenants.one, "\n")):
        for name, call in CALLS.items():
            with pytest.raises(NotFound) as caught:
                await call(client, request_id)
            assert caught.value.reason == "UNKNOWN_REQUEST", name

    assert (await tenants.other.list_requests(RequestQuery())).requests == ()
    worker.hold.set()
    assert isinstance([event async for event in stream][-1], Completed)
    assert (await tenants.one.get_request(finished.request_id)).completed == finished
    assert len((await tenants.one.list_requests(RequestQuery())).requests) == 3
    assert (await paint(tenants.other, key="key")).request_id != finished.request_id
    assert (await tenants.other.submit(REQUEST, "job")).request_id != job.request_id


async def test_without_a_token_or_with_too_few_rights_nothing_is_answered(tenants: Tenants) -> None:
    with pytest.raises(Unauthenticated):
        await paint(tenants.nobody)
    with pytest.raises(PermissionDenied):
        await tenants.operator.status()


async def test_prompts_appear_neither_in_logs_nor_in_metrics(
    suite: FrontdoorSuite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    await suite.paint(ImageRequest(prompt=CANARY, negative_prompt=CANARY, num_inference_steps=1))
    with pytest.raises(InvalidArgument):
        await suite.paint(ImageRequest(prompt=CANARY, width_px=-1))

    written = caplog.text + repr([record.__dict__ for record in caplog.records]) + generate_latest(REGISTRY).decode()
    assert "canary" not in written
