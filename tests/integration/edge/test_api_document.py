"""Test the API document: schemathesis makes valid and invalid requests from it, and checks every answer against it."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.integration.edge.conftest import EdgeUnderTest

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


# A job's fields are a generation's, and the generation covers each; here a few suffice.
CONFIG = """
[[operations]]
include-path = "/v1/jobs"
include-method = "POST"
phases.coverage.enabled = false
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
async def test_answers_to_generated_requests_match_the_document(edge: EdgeUnderTest, folder: Path) -> None:
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    flags = ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-examples", "5"]
    flags += ["--generation-deterministic", "--no-shrink", "--workers", "1"]
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        f"{edge.url}/openapi.json",
        *flags,
        "--no-color",
    ]

    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()

    assert process.returncode == 0, said.decode()
    assert edge.worker.executed
