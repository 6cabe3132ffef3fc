"""What one logger said. Of the whole log nothing is known: asyncio complains of the tasks and connections that earlier
tests left whenever they are collected."""

import logging

import pytest


def said_by(logger: str, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return its own records, in their order, and none of the loggers below it."""
    return [record for record in caplog.records if record.name == logger]
