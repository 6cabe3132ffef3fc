"""Test the client for programs without asyncio, against a real server that plays a script."""

import _weakrefset
import asyncio
import gc
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

import grpc.aio
import pytest

from pentimento.domain.errors import Unavailable
from pentimento.domain.image_request import ImageRequest, Progress
from pentimento.sdk import Client, RetryPolicy
from pentimento.settings import SettingsError
from tests.integration.sdk.scripted import (
    ACCEPTED,
    COMPLETED,
    TWO,
    ScriptedImageService,
    completed,
    for_ever,
    plays,
    serving,
)


async def test_blocking_client_returns_several_images(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(TWO, completed(0), completed(1))])

    async with serving(service, tmp_path) as address:

        def generate() -> int:
            with Client(address) as client:
                return len(client.generate_all(ImageRequest("a circle", image_count=2)).images)

        assert await asyncio.to_thread(generate) == 2


async def test_blocking_client_streams_and_cancels_by_closing(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever])

    def first_progress(address: str) -> Progress:
        with Client(address) as client:
            events = client.stream(ImageRequest("a circle"))
            found = next(event for event in events if isinstance(event, Progress))
            events.close()
            return found

    async with serving(service, tmp_path) as address:
        progress = await asyncio.to_thread(first_progress, address)
        await asyncio.wait_for(service.cancelled.wait(), 120)

    assert progress.step == 1


async def test_stream_dropped_after_its_client_logs_nothing(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever])

    def outlive(address: str) -> None:
        with Client(address) as client:
            events = client.stream(ImageRequest("a circle"))
            next(events)
        events.close()

    async with serving(service, tmp_path) as address:
        await asyncio.to_thread(outlive, address)
        await asyncio.wait_for(service.cancelled.wait(), 120)


async def test_a_stream_that_the_collector_finds_is_cancelled_on_whichever_thread(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever, plays(ACCEPTED, COMPLETED)])

    def lose(client: Client) -> None:
        events = client.stream(ImageRequest("a circle"))
        next(events)
        cycle: list[object] = [events]
        cycle.append(cycle)

    def lose_and_go_on(address: str) -> bytes:
        with Client(address) as client:
            gc.disable()
            try:
                lose(client)
                client._loop.call_soon_threadsafe(gc.collect)
                return client.generate(ImageRequest("a circle")).data
            finally:
                gc.enable()

    async with serving(service, tmp_path) as address:
        image = await asyncio.to_thread(lose_and_go_on, address)
        await asyncio.wait_for(service.cancelled.wait(), 120)

    assert image == b"image"


async def status_of(program: str) -> int | None:
    """Return how a Python program ended; kill one that does not end."""
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        return await asyncio.wait_for(ended.wait(), 120)
    finally:
        with suppress(ProcessLookupError):
            ended.kill()


@pytest.mark.slow
@pytest.mark.parametrize("forks", [False, True])
async def test_program_without_close_still_ends(tmp_path: Path, forks: bool) -> None:
    """The program's first version: client and stream are freed only with the interpreter."""
    service = ScriptedImageService([for_ever])
    ask = "from pentimento import Client, ImageRequest\nclient = Client({!r})\n"
    stream = "events = client.stream(ImageRequest('a circle'))\nnext(events)\n"
    fork = """
import os, sys
for _ in range(12):
    child = os.fork()
    if child == 0:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""

    async with serving(service, tmp_path) as address:
        program = ask.format(address) + stream + (fork if forks else "")
        status = await status_of(program)
        await asyncio.wait_for(service.cancelled.wait(), 120)

    assert status == 0


@pytest.mark.parametrize("asked", ["client.list_models()", "Client('unix:/nobody')"])
async def test_a_client_is_of_one_process_and_a_fork_can_have_none(asked: str) -> None:
    program = f"""
import os
from pentimento import Client
client = Client("unix:/nobody")
child = os.fork()
if child == 0:
    try:
        {asked}
    except RuntimeError as error:
        os._exit(17 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
"""
    assert await status_of(program) == 0


async def test_what_is_forked_off_before_the_first_client_has_its_own(tmp_path: Path) -> None:
    program = """
import os
from pentimento import Client, ImageRequest
child = os.fork()
with Client({!r}) as client:
    picture = client.generate(ImageRequest("a circle")).data
if child == 0:
    os._exit(17 if picture == b"image" else 1)
assert picture == b"image"
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
"""
    service = ScriptedImageService([plays(ACCEPTED, COMPLETED), plays(ACCEPTED, COMPLETED)])

    async with serving(service, tmp_path) as address:
        assert await status_of(program.format(address)) == 0


def test_closing_leaves_no_other_thread_waiting() -> None:
    def ask_until_closed(client: Client) -> None:
        with suppress(RuntimeError, grpc.aio.UsageError):
            while True:
                with suppress(Unavailable):
                    client.list_models()

    for _ in range(20):
        client = Client("unix:/nobody", retries=RetryPolicy(tries=1))
        asking = [threading.Thread(target=ask_until_closed, args=(client,), daemon=True) for _ in range(3)]
        for thread in asking:
            thread.start()
        client.close()
        for thread in asking:
            thread.join(60)

        assert [thread for thread in asking if thread.is_alive()] == []


def clients_threads() -> set[threading.Thread]:
    """Return the threads of clients in this process."""
    return {thread for thread in threading.enumerate() if thread.name == "pentimento-client"}


@pytest.mark.parametrize("named", [Path, str])
def test_a_client_that_could_not_be_made_leaves_no_thread(tmp_path: Path, named: type[Path | str]) -> None:
    before = clients_threads()

    (tmp_path / "ca.crt").touch()

    with pytest.raises(SettingsError, match=r"ca\.crt: holds no PEM block"):
        Client("localhost:1", tls_dir=named(tmp_path))

    assert clients_threads() <= before


class InterruptAtLine:
    """Raise KeyboardInterrupt at the n-th line that this thread executes. Lines of weak references' callbacks do not
    count: Python drops exceptions there."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptAtLine | None":
        if frame.f_code.co_filename == _weakrefset.__file__:
            return None
        self.left -= event == "line"
        if self.left == 0:
            raise KeyboardInterrupt
        return self


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_interrupt_at_any_line_cancels_on_the_server(tmp_path: Path) -> None:
    def interrupted(address: str, line: int) -> bool:
        with Client(address) as client, closing(client.stream(ImageRequest("a circle"))) as events:
            next(events)
            previous = sys.gettrace()
            sys.settrace(InterruptAtLine(line))
            try:
                next(events)
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(previous)
            return False

    line = 0
    left = False
    while not left:
        line += 1
        service = ScriptedImageService([for_ever])
        async with serving(service, tmp_path) as address:
            left = not await asyncio.to_thread(interrupted, address, line)
            await asyncio.wait_for(service.cancelled.wait(), 120)

    assert line > 10
