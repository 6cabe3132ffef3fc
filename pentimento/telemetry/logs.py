"""Write structured logs to stderr, one line a record, as text or JSON.

    2026-01-31T12:00:00.123Z INFO  embedder-7f3a [9c1e4b] pentimento.rpc.server: listening addresses=unix:/run/e.sock
    {"time": "...", "level": "info", "service": "embedder", "instance": "embedder-7f3a", "request_id": "9c1e4b", ...}

Fields are passed as `logger.info("listening", extra={"addresses": ...})`. Tracebacks keep their frames and exception
types but not the exceptions' messages: any library may quote the faulty text, which may be a prompt. Errors of this
code base keep their messages. Unhandled exceptions are logged in the same form, by type and place: Python's own reports
quote the exception, and asyncio's the arguments of a callback; either may hold a prompt.
"""

import asyncio
import json
import logging
import sys
import threading
import time
import traceback
from enum import Enum
from typing import Any

from pentimento.domain.errors import PentimentoError
from pentimento.telemetry.tracing import current_ids, request_id

logger = logging.getLogger(__name__)

OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "request_id", "taskName"}
# Libraries that would quote their input, or repeat the kit's logs.
QUIET_LIBRARIES = (
    *("asyncio", "grpc", "botocore", "boto3", "urllib3", "sqlalchemy", "PIL", "filelock", "httpx", "opentelemetry"),
)

# asyncio reports a lack of descriptors once for each place in a listener's backlog, thousands of times a second.
_NO_DESCRIPTOR = "socket.accept() out of system resource"
_REPEATED_S = 1.0
_reported_s: dict[str, float] = {}


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def describe_traceback(error: BaseException) -> str:
    """Return the exception and its causes, innermost last, each with file, line and function of its frames, and with
    its message only if it is a PentimentoError."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        name = f"{type(current).__module__}.{type(current).__qualname__}".removeprefix("builtins.")
        if isinstance(current, PentimentoError):
            name += f": {current.reason}: {current.message}"
        parts.append(f"{name}\n{''.join(traceback.format_tb(current.__traceback__))}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "from ".join(parts).rstrip()


class StructuredFormatter(logging.Formatter):
    """Format the parts that both forms share: time, fields, and exceptions without their messages."""

    def __init__(self, service: str, instance_id: str) -> None:
        super().__init__()
        self.service = service
        self.instance_id = instance_id

    def fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        return {name: value for name, value in record.__dict__.items() if name not in OWN_ATTRIBUTES}

    def time_of(self, record: logging.LogRecord) -> str:
        """Return the time in UTC, RFC 3339 with milliseconds."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def traceback_of(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return describe_traceback(error) if error is not None else ""


class TextFormatter(StructuredFormatter):
    """Format for people: one line, fields as key=value, a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={one_line(value)}" for name, value in self.fields_of(record).items())
        request = f" [{request_id.get()}]" if request_id.get() else ""
        head = f"{self.time_of(record)} {record.levelname:<7} {self.instance_id}{request} {record.name}"
        below = self.traceback_of(record)
        return f"{head}: {one_line(record.getMessage())}{fields}" + (f"\n{below}" if below else "")


class JsonFormatter(StructuredFormatter):
    """Format for log stores: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "service": self.service,
            "instance": self.instance_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            entry["request_id"] = request_id.get()
        trace_id, span_id = current_ids()
        if trace_id:
            entry |= {"trace_id": trace_id, "span_id": span_id}
        if traced := self.traceback_of(record):
            entry["traceback"] = traced
        return json.dumps(self.fields_of(record) | entry, default=str, ensure_ascii=False)


def one_line(value: object) -> str:
    """Return the value as text that cannot start a second log line, nor move a terminal's cursor."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def configure_logging(
    service: str, instance_id: str, level: LogLevel = LogLevel.INFO, log_format: LogFormat = LogFormat.TEXT
) -> None:
    """Send every logger's records to stderr in this form; a further call replaces the previous one's effect."""
    formatter = (JsonFormatter if log_format is LogFormat.JSON else TextFormatter)(service, instance_id)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.name)
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def log_what_nobody_catches() -> None:
    """Report exceptions that end a thread, or that cannot be raised, through the log; changes state of the process."""
    threading.excepthook = _end_of_thread
    sys.unraisablehook = _unraisable


def log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an event loop's unhandled exception, as its exception handler."""
    # A callback's message quotes the arguments.
    message = "an exception in a callback" if "handle" in context else context["message"]
    if message == _NO_DESCRIPTOR:
        now_s = loop.time()
        if now_s - _reported_s.get(message, -_REPEATED_S) < _REPEATED_S:
            return
        _reported_s[message] = now_s
    task = context.get("task") or context.get("future")
    fields = {"task": task.get_name()} if isinstance(task, asyncio.Task) else {}
    logger.error(message, exc_info=context.get("exception"), extra=fields)


def _end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else ""
    logger.error("a thread ended with an exception", exc_info=ended.exc_value, extra={"thread_name": name})


def _unraisable(left: "sys.UnraisableHookArgs") -> None:
    logger.error("an exception that cannot be raised", exc_info=left.exc_value)
