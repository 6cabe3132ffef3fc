"""Attack by calls: invalid bytes, fields out of range, forbidden roles, and bursts."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from benchmarks.attacks.target import PUBLIC, Answers, AttackTarget, call_with_bytes, counted, path_of
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.rpc.access import access_of

CALL_S = 1.5
BURST_S = 20.0
CROSSED = "CROSSED"
REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
SMALL = ImageRequest("a red circle", num_inference_steps=2, seed=1, cache=CacheMode.OFF, deadline_ms=60_000)
LARGEST_EPOCH = 2**64 - 1


async def every_rpc_by_every_role(target: AttackTarget) -> Answers:
    """Send an empty message to every RPC without a token, as a stranger and in each role. Answers that the contract
    forbids count as CROSSED."""
    roles = {**target.tokens, "nobody": "", "stranger": "0" * 43}
    strangers = replace(target, tokens=roles)

    async def one(process: str, method: MethodDescriptor, role: str) -> str:
        async with strangers.channel(target.addresses[process], role) as channel:
            status = await call_with_bytes(channel, method, b"", CALL_S)
        allowed = {allowed.value for allowed in access_of(method.GetOptions()).roles}
        forbidden = bool(target.tokens) and role not in allowed and "anyone" not in allowed
        crossed = forbidden and status not in REFUSED
        return f"{CROSSED} {path_of(method)} as {role}: {status}" if crossed else status

    return await all_answers(
        [
            one(process, method, role)
            for process in target.addresses
            for method in target.methods(process)
            for role in roles
        ]
    )


async def to_every_rpc(target: AttackTarget, messages: Sequence[bytes]) -> Answers:
    """Send each message to every RPC in every role, over one connection per process and role."""

    async def one(process: str, role: str) -> Answers:
        found: Answers = Counter()
        async with target.channel(target.addresses[process], role) as channel:
            for method in target.methods(process):
                for data in messages:
                    found[await call_with_bytes(channel, method, data, CALL_S)] += 1
        return found

    roles = list(target.tokens) or [""]
    parts = await asyncio.gather(*(one(process, role) for process in target.addresses for role in roles))
    return sum(parts, Counter())


async def pickles(target: AttackTarget) -> Answers:
    """Send pickles that would run a command; count CROSSED if one did."""
    canary = Path(target.folder) / "unpickled"
    command = f"touch {canary}".encode()
    body = b"cos\nsystem\n(S'" + command + b"'\ntR."
    found = await to_every_rpc(target, [body, b"\x0a" + bytes([len(body) & 0x7F]) + body])
    if canary.exists():
        found[f"{CROSSED} a pickle was loaded"] += 1
    return found


async def malformed_messages(target: AttackTarget) -> Answers:
    """Send random bytes, truncated fields and lengths that announce gigabytes."""
    source = random.Random(1)
    noise = [source.randbytes(size) for size in (1, 17, 1000, 60_000)]
    return await to_every_rpc(target, [*noise, b"\x0a\xff\xff\xff\xff\x07", b"\xff" * 10])


async def deep_nesting(target: AttackTarget) -> Answers:
    """Send messages nested 5,000 deep, as field 1 and as field 5."""
    return await to_every_rpc(target, [nested(b"\x0a", 5000), nested(b"\x2a", 5000)])


def nested(tag: bytes, depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = tag + varint(len(data)) + data
    return data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


async def senseless_fields(target: AttackTarget) -> Answers:
    """Send NaN, infinities, negative and huge numbers, endless lists and prompts in each field of a request."""
    numbers = [0, -1, 2**31, 2**63 - 1, -(2**63)]
    reals = [math.nan, math.inf, -math.inf, -1.0, 1e308]
    wide = ("width_px", "height_px", "num_inference_steps", "deadline_ms")
    requests: list[dict[str, Any]] = [{field: value} for field in wide for value in numbers]
    requests += [{field: value} for field in ("guidance_scale", "eta", "quality", "max_cost") for value in reals]
    requests += [{"prompt": "a " * 2**19}, {"negative_prompt": "a " * 2**19}, {"model": "../" * 1000}]
    requests += [{"scheduler": "\0" * 100}, {"prompt": "\u202e\0\ufffe"}]
    messages = [pb.GenerateRequest(request=pb.ImageRequest(**({"prompt": "a"} | fields))) for fields in requests]
    lora, net = pb.AskedLora(name="../x"), pb.AskedControlNet()
    messages += [pb.GenerateRequest(request=pb.ImageRequest(prompt="a", loras=[lora] * 10_000))]
    messages += [pb.GenerateRequest(request=pb.ImageRequest(prompt="a", controlnets=[net] * 10_000))]
    messages += [pb.GenerateRequest(request=pb.ImageRequest(prompt="a"), idempotency_key="k" * 2**19)]
    generate = target.methods(PUBLIC)[0]
    async with target.channel(target.public, "user") as channel:
        calls = [call_with_bytes(channel, generate, message.SerializeToString(), CALL_S) for message in messages]
        return await all_answers(calls)


async def largest_epoch(target: AttackTarget) -> Answers:
    """Send Attach and WatchCredits to all workers as a service, in the frontdoor's name with the largest epoch."""
    attach = worker_pb.AttachRequest(
        request_id="r", fencing_token=1, frontdoor_id="frontdoor", frontdoor_epoch=LARGEST_EPOCH
    )
    watch = worker_pb.WatchCreditsRequest(frontdoor_id="frontdoor", frontdoor_epoch=LARGEST_EPOCH)
    found: Answers = Counter()
    for address in target.workers:
        process = next(name for name, other in target.addresses.items() if other == address)
        methods = {method.name: method for method in target.methods(process)}
        async with target.channel(address, "service") as channel:
            for name, message in (("Attach", attach), ("WatchCredits", watch)):
                found[await call_with_bytes(channel, methods[name], message.SerializeToString(), CALL_S)] += 1
    return found


async def burst_of_1500(target: AttackTarget) -> Answers:
    """Send 1,500 concurrent requests on one connection."""
    return await burst(target, 1500, 1)


async def burst_of_10000(target: AttackTarget) -> Answers:
    """Send 10,000 concurrent requests on ten connections."""
    return await burst(target, 10_000, 10)


async def one_key(target: AttackTarget) -> Answers:
    """Send 2,000 concurrent calls with one idempotency key."""
    return await burst(target, 2000, 4, "the same for all", replace(SMALL, num_inference_steps=50))


async def burst(
    target: AttackTarget, calls: int, connections: int, key: str = "", request: ImageRequest = SMALL
) -> Answers:
    """Send a burst, and leave it after `BURST_S`. Count refusals with RetryInfo apart from all other answers."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(target.channel(target.public, "user")) for _ in range(connections)]
        clients = [ImageClient(channel) for channel in channels]
        tasks = [asyncio.create_task(generated(clients[n % connections], request, key)) for n in range(calls)]
        done, left = await asyncio.wait(tasks, timeout=BURST_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    return Counter([task.result() for task in done]) + Counter({"LEFT": len(left)})


async def generated(client: ImageClient, request: ImageRequest, key: str = "") -> str:
    """Return the outcome of a request."""
    try:
        async with aclosing(client.generate(request, key)) as events:
            async for event in events:
                if isinstance(event, Completed):
                    return "OK"
        return "NO IMAGE"
    except PentimentoError as error:
        if isinstance(error, ResourceExhausted):
            return "RESOURCE_EXHAUSTED" if error.retry_after_ms is not None else "RESOURCE_EXHAUSTED without RetryInfo"
        return f"{type(error).__name__} {error.reason}"


async def all_answers(calls: Sequence[Awaitable[str]], at_once: int = 64) -> Answers:
    """Return the answers of all calls, with a limited number in flight."""
    gate = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[str]) -> str:
        async with gate:
            return await call

    return counted(await asyncio.gather(*(one(call) for call in calls)))
