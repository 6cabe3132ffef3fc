"""What tests and their doubles make under the temporary directory is gone when they are done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENCODERS = """
from tests.encoders import directory_for_the_run, write_encoder, write_sentence_encoder
write_encoder(directory_for_the_run("pmt-encoder-"))
write_sentence_encoder(directory_for_the_run("pmt-sentences-"))
"""
QDRANT = """
from pentimento.stores.vectors import open_vectors
from pentimento.testing.qdrant_double import running_qdrant_double
with running_qdrant_double() as (url, _):
    index = open_vectors(url)
    index.prepare(8)
    index.close()
"""


@pytest.mark.parametrize("program", [ENCODERS, QDRANT], ids=["encoders", "qdrant"])
def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, program: str) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, timeout=150)

    assert list(tmp_path.iterdir()) == []
