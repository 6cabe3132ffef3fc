"""Log unhandled exceptions as every other failure: by type and place, never with their texts.

Python's own reports quote the exception, and asyncio's the arguments of a callback: either may hold a prompt.
"""

import asyncio
import logging
import sys
import threading
from typing import Any

logger = logging.getLogger(__name__)


def log_what_nobody_catches() -> None:
    """Report exceptions that end a thread, or that cannot be raised, through the log; changes state of the process."""
    threading.excepthook = _end_of_thread
    sys.unraisablehook = _unraisable


def log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an event loop's unhandled exception, as its exception handler."""
    # A callback's message quotes the arguments.
    message = "an exception in a callback" if "handle" in context else context["message"]
    task = context.get("task") or context.get("future")
    fields = {"task": task.get_name()} if isinstance(task, asyncio.Task) else {}
    logger.error(message, exc_info=context.get("exception"), extra=fields)


def _end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else ""
    logger.error("a thread ended with an exception", exc_info=ended.exc_value, extra={"thread_name": name})


def _unraisable(left: "sys.UnraisableHookArgs") -> None:
    logger.error("an exception that cannot be raised", exc_info=left.exc_value)
