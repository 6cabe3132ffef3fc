"""Who sees what: two tenants of one frontdoor, and what never shows up in metrics and logs."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from pentimento.domain.identity import Role
from pentimento.domain.image_request import Completed, ImageRequest
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


async def test_another_tenants_request_does_not_exist(tenants: Tenants) -> None:
    completed = await paint(tenants.one)

    for call in (tenants.other.get_request(completed.request_id), tenants.other.cancel(completed.request_id)):
        with pytest.raises(NotFound):
            await call
    assert (await tenants.one.get_request(completed.request_id)).completed == completed


async def test_a_running_request_of_another_tenant_cannot_be_cancelled(tenants: Tenants, worker: PacedWorker) -> None:
    worker.hold.clear()
    stream = tenants.one.generate(REQUEST)
    accepted = await anext(stream)
    await worker.wait_until(lambda: worker.running)

    with pytest.raises(NotFound):
        await tenants.other.cancel(accepted.request_id)  # type: ignore[union-attr]

    worker.hold.set()
    assert isinstance([event async for event in stream][-1], Completed)


async def test_idempotency_keys_of_tenants_do_not_meet(tenants: Tenants) -> None:
    first, second = await paint(tenants.one, key="key"), await paint(tenants.other, key="key")

    assert first.request_id != second.request_id


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
