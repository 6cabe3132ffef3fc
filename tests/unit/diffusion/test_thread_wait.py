"""A thread that waits for others and for descriptors."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from pentimento.diffusion.thread_wait import ThreadWait

GUARD_S = 60.0


@pytest.fixture
def wait() -> Iterator[ThreadWait]:
    wait = ThreadWait()
    yield wait
    wait.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def reading(descriptor: int, heard: list[bytes]) -> Callable[[], None]:
    return lambda: heard.append(os.read(descriptor, 100))


def test_a_wake_ends_the_next_wait_and_no_other(wait: ThreadWait) -> None:
    wait.wake()
    wait.wake()
    wait.wait(GUARD_S)

    began = threading.Event()

    def wait_again() -> None:
        began.set()
        wait.wait(GUARD_S)

    waiting = threading.Thread(target=wait_again, daemon=True)
    waiting.start()
    began.wait(GUARD_S)
    assert waiting.is_alive()
    wait.wake()
    waiting.join(GUARD_S)
    assert not waiting.is_alive()


def test_message_is_handled_on_waiting_thread(wait: ThreadWait, pipe: tuple[int, int]) -> None:
    threads: list[int] = []

    def hear() -> None:
        os.read(pipe[0], 100)
        threads.append(threading.get_ident())

    wait.listen(pipe[0], hear)
    waiting = threading.Thread(target=wait.wait, args=(GUARD_S,), daemon=True)
    waiting.start()
    os.write(pipe[1], b"a step")
    waiting.join(GUARD_S)

    assert threads == [waiting.ident]


def test_hear_now_handles_waiting_messages_of_known_pipes(wait: ThreadWait, pipe: tuple[int, int]) -> None:
    heard: list[bytes] = []
    wait.hear_now()
    wait.listen(pipe[0], reading(pipe[0], heard))
    wait.hear_now()
    assert heard == []

    os.write(pipe[1], b"a step")
    wait.hear_now()
    assert heard == [b"a step"]

    os.write(pipe[1], b"another")
    wait.forget(pipe[0])
    wait.forget(pipe[0])
    wait.wake()
    wait.wait(GUARD_S)
    assert heard == [b"a step"]


def test_listener_that_raises_is_removed_and_others_continue(wait: ThreadWait, pipe: tuple[int, int]) -> None:
    heard: list[bytes] = []
    broken = os.pipe()

    def fail() -> None:
        raise RuntimeError("a prompt might be quoted here")

    wait.listen(broken[0], fail)
    wait.listen(pipe[0], reading(pipe[0], heard))
    os.write(broken[1], b"a step")
    wait.wait(GUARD_S)
    os.write(pipe[1], b"another")
    wait.wait(GUARD_S)

    assert heard == [b"another"]
    for end in broken:
        os.close(end)


def test_a_closed_one_neither_listens_nor_is_woken(pipe: tuple[int, int]) -> None:
    wait = ThreadWait()
    wait.listen(pipe[0], lambda: None)
    wait.close()

    wait.wake()
    wait.listen(pipe[0], lambda: None)
    wait.forget(pipe[0])
    wait.close()
