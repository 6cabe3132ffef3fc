"""Test that tests and their doubles remove their files under the temporary directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DIRECTORIES = """
from tests.support.run_directories import directory_for_the_run
for prefix in ("pmt-encoder-", "pmt-sentences-"):
    (directory_for_the_run(prefix) / "folder").mkdir()
"""
QDRANT = """
from pentimento.stores.vectors import open_vectors
from lab.fixtures.qdrant_double import running_qdrant_double
with running_qdrant_double() as (url, _):
    index = open_vectors(url)
    index.prepare(8)
    index.close()
"""


@pytest.mark.parametrize("program", [DIRECTORIES, QDRANT], ids=["directories", "qdrant"])
def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, program: str) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, timeout=150)

    assert list(tmp_path.iterdir()) == []
