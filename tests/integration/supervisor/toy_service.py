"""Run a service with only the kit: health, signals, drain."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from pentimento.rpc import RpcServer, RpcServerSettings, run_service
from pentimento.settings import SettingsError


async def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen")
    parser.add_argument("--diary", type=Path)
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--chatty", action="store_true", help="a line of a kilobyte a millisecond")
    options = parser.parse_args(argv)
    if options.refuse:
        raise SettingsError("--model: weights.safetensors is corrupt")
    if options.child:
        await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")

    async def warm() -> None:
        if options.slow:
            print("loading the model")
            await asyncio.Event().wait()
        if options.stubborn:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)

    async def chat() -> None:
        while True:
            print("x" * 1000)
            await asyncio.sleep(0.001)

    async def drain() -> None:
        with options.diary.open("a") as diary:
            diary.write(f"{Path(options.listen).stem}\n")

    chatting = asyncio.create_task(chat()) if options.chatty else None
    await RpcServer(RpcServerSettings(listen=(options.listen,)), "toy").run_until_stopped(warm, drain)
    if chatting:
        chatting.cancel()


if __name__ == "__main__":
    run_service(main)
