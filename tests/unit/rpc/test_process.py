"""End services inside this process."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.rpc.process import run_service
from pentimento.settings import SettingsError
from pentimento.telemetry.logs import TextFormatter
from tests.support.logged import said_by

CANARY = "-".join(["canary", "prompt"])


@pytest.fixture(autouse=True)
def as_started(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["program", "--first", "second"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (SettingsError("--listen:\n  is wrong"), 2, "--listen: is wrong\n"),
        (FailedPrecondition("CORRUPT", "the weights\nare corrupt"), 1, "the weights are corrupt\n"),
        (KeyboardInterrupt(), 130, ""),
        (ValueError("canary"), 1, ""),
    ],
    ids=["settings", "domain", "interrupt", "defect"],
)
def test_every_end_has_exit_code_and_line_if_it_can_be_fixed(
    error: BaseException,
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(argv: list[str]) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_service(main)

    assert (ended.value.code, capsys.readouterr().err) == (code, told)
    logged = [record.levelname for record in said_by("pentimento.rpc.process", caplog)]
    assert logged == (["ERROR"] if isinstance(error, ValueError) else [])


def test_service_gets_arguments_without_program_name() -> None:
    seen = []

    async def main(argv: list[str]) -> None:
        seen.extend(argv)

    run_service(main)

    assert seen == ["--first", "second"]


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"private": True}, 0o600), ({"private": False}, 0o644)])
def test_its_files_are_its_user_s_alone_unless_it_says_otherwise(
    options: dict[str, bool], mode: int, tmp_path: Path
) -> None:
    file = tmp_path / "made"

    async def main(argv: list[str]) -> None:
        file.touch()

    run_service(main, **options)

    assert file.stat().st_mode & 0o777 == mode


def test_all_threads_of_a_service_share_one_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("pentimento.rpc.process.share_one_heap", lambda: said.append("one heap"))
    monkeypatch.setattr("pentimento.rpc.process.start_default_threads", lambda: said.append("threads"))

    async def main(argv: list[str]) -> None:
        said.append("main")

    run_service(main)

    assert said == ["one heap", "threads", "main"]


def quote(words: str) -> None:
    raise ValueError(words)


async def in_a_task() -> None:
    async def fail() -> None:
        quote(CANARY)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    del task
    gc.collect()


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(quote, CANARY)
    await asyncio.sleep(0)


async def in_a_thread() -> None:
    thread = threading.Thread(target=quote, args=(CANARY,))
    thread.start()
    thread.join()


async def in_a_finalizer() -> None:
    class Quoting:
        def __del__(self) -> None:
            quote(CANARY)

    Quoting()


@pytest.mark.parametrize("fail", [in_a_task, in_a_callback, in_a_thread, in_a_finalizer])
def test_uncaught_error_is_logged_by_type_and_place_without_message(
    fail: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main(argv: list[str]) -> None:
        await fail()

    run_service(main)

    # The same logger reports leftovers of earlier tests that are collected now.
    formatted = TextFormatter("program", "program-1").format
    lines = {formatted(record): record for record in said_by("pentimento.telemetry.logs", caplog)}
    ((line, record),) = ((line, record) for line, record in lines.items() if "in quote" in line)
    assert record.levelname == "ERROR" and "ValueError" in line
    assert CANARY not in "".join(lines) + capfd.readouterr().err
