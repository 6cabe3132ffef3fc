"""The console's own modules, run in Node.js."""

import json
import shutil
import subprocess
from typing import Any

import pytest

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not here")


def printed(program: str) -> Any:
    """Return the JSON that a module of JavaScript prints."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--experimental-default-type=module", "--input-type=module", "-e", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)
