"""Components served to other processes, and reported to the controller as changes."""

import asyncio
from contextlib import aclosing

import pytest

from pentimento.api.components.v1 import component_service_pb2 as pb
from pentimento.domain.components import HeldComponent, Tier
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError, ResourceExhausted
from pentimento.domain.fleet import ReplicaReport
from pentimento.service import components
from pentimento.service.components import ComponentServicer, ReportedComponents
from tests.support.waiting import settle_down, until

MIB = 2**20
DIGEST = f"sha256:{'0' * 64}"
REPORT = ReplicaReport("w1", 1)


def held(name: str) -> HeldComponent:
    return HeldComponent(f"sha256:{name * 64}", Tier.DISK, 10)


async def sent(servicer: ComponentServicer, offset: int, size: int) -> list[bytes]:
    request = pb.FetchComponentRequest(digest=DIGEST, offset_bytes=offset, size_bytes=size)
    return [message.data async for message in servicer.FetchComponent(request, None)]  # type: ignore[arg-type]


async def test_range_is_sent_in_pieces_of_a_mebibyte() -> None:
    asked: list[tuple[str, int, int]] = []

    def read(digest: str, offset: int, size: int) -> bytes:
        asked.append((digest, offset, size))
        return bytes(size)

    pieces = await sent(ComponentServicer(read, lambda: False), 8 * MIB, 2 * MIB + 5)

    assert [len(piece) for piece in pieces] == [MIB, MIB, 5]
    assert asked == [(DIGEST, 8 * MIB, 2 * MIB + 5)]


@pytest.mark.parametrize(("size", "error"), [(0, InvalidArgument), (8 * MIB + 1, InvalidArgument), (8 * MIB, NotFound)])
async def test_range_that_cannot_be_sent_is_rejected(size: int, error: type[PentimentoError]) -> None:
    with pytest.raises(error):
        await sent(ComponentServicer(lambda *given: None, lambda: False), 0, size)


class SlowCallers:
    """Callers that take a range's first piece, and the second one when they may."""

    def __init__(self, servicer: ComponentServicer) -> None:
        self._servicer = servicer
        self._may_go_on = asyncio.Event()
        self.open_count = self.most = self.ended_count = 0

    async def call(self) -> None:
        request = pb.FetchComponentRequest(digest=DIGEST, size_bytes=2 * MIB)
        async with aclosing(self._servicer.FetchComponent(request, None)) as pieces:  # type: ignore[arg-type, type-var]
            await anext(pieces)
            self.open_count += 1
            self.most = max(self.most, self.open_count)
            await self._may_go_on.wait()
            await anext(pieces)
            self.open_count -= 1
        self.ended_count += 1

    async def all_end(self, calls: "list[asyncio.Task[None]]") -> None:
        self._may_go_on.set()
        await asyncio.gather(*calls)


@pytest.mark.parametrize(("is_busy", "limit"), [(False, 4), (True, 1)])
async def test_few_ranges_are_sent_together_and_one_while_busy(is_busy: bool, limit: int) -> None:
    callers = SlowCallers(ComponentServicer(lambda digest, offset, size: bytes(size), lambda: is_busy))

    calls = [asyncio.create_task(callers.call()) for _ in range(8)]
    await until(lambda: callers.open_count == limit)
    await settle_down()
    await callers.all_end(calls)

    assert callers.most == limit
    assert callers.ended_count == 8


async def test_range_beyond_waiting_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MAX_WAITING", 2)
    servicer = ComponentServicer(lambda digest, offset, size: bytes(size), lambda: True)
    callers = SlowCallers(servicer)
    calls = [asyncio.create_task(callers.call()) for _ in range(3)]
    await until(lambda: callers.open_count == 1)

    with pytest.raises(ResourceExhausted):
        await sent(servicer, 0, 1)

    await callers.all_end(calls)
    assert await sent(servicer, 0, 1) == [b"\0"]


async def test_components_are_reported_as_changes_since_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "LOOK_S", 0.001)
    there = [held("a"), held("b")]
    reported = ReportedComponents(lambda: there)
    looking = asyncio.create_task(reported.run())

    async def report(*expected: HeldComponent) -> ReplicaReport:
        await until(lambda: reported.added_to(REPORT).component_changes == expected)
        return reported.added_to(REPORT)

    assert (await report(held("a"), held("b"))).all_components
    # Not answered: all again.
    assert (await report(held("a"), held("b"))).all_components
    reported.news.answered()
    assert not (await report()).all_components
    there[:] = [held("b"), held("c")]
    gone = HeldComponent(held("a").digest, Tier.STORE, 10)
    assert not (await report(held("c"), gone)).all_components
    reported.news.registered()
    assert (await report(held("b"), held("c"))).all_components
    looking.cancel()
