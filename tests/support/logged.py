"""Read the records of one logger. The whole log is unpredictable: asyncio reports tasks and connections of earlier
tests whenever they are collected."""

import logging

import pytest


def said_by(logger: str, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return a logger's records in order, without those of its child loggers."""
    return [record for record in caplog.records if record.name == logger]
