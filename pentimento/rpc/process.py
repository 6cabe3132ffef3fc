"""Run a service from its `__main__.py`: report a failed start in one line, and exit with the code of the outcome.

0    stopped on request             1    could not start or broke down
2    settings rejected              130  interrupted before it could drain
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from pentimento.domain.errors import PentimentoError
from pentimento.files.private_files import keep_files_private
from pentimento.rpc.freed_memory import share_one_heap
from pentimento.rpc.thread_pools import start_default_threads
from pentimento.settings import SettingsError
from pentimento.telemetry.unhandled import log_unhandled, log_what_nobody_catches

EXIT_BROKEN = 1
EXIT_SETTINGS = 2
EXIT_INTERRUPTED = 130


def run_service(main: Callable[[list[str]], Awaitable[None]], *, private: bool = True) -> None:
    """Run `main(argv)` in a new event loop, argv without the program; does not return on failure. Only this user can
    read the files that it creates, unless `private` is False."""

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(log_unhandled)
        start_default_threads()
        await main(sys.argv[1:])

    if private:
        keep_files_private()
    share_one_heap()
    log_what_nobody_catches()
    try:
        asyncio.run(run())
    except SettingsError as error:
        leave(str(error), EXIT_SETTINGS)
    except PentimentoError as error:
        leave(error.message, EXIT_BROKEN)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        logging.getLogger(__name__).exception("failed")
        sys.exit(EXIT_BROKEN)


def leave(message: str, code: int) -> NoReturn:
    sys.stderr.write(" ".join(message.split()) + "\n")
    sys.exit(code)
