"""docker-compose.yml, for real, but for the images of third parties: standins.yml says what takes their place."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deploy.make_secrets import main as make_secrets
from tests.compose.composition import Composition, running
from tests.support.tiny_models import WEIGHTS, size_px

# Prints how many entries are in the index that the gateway uses.
INDEXED = """
import os
from pentimento.stores.vectors import open_vectors
url = os.environ["PENTIMENTO_VECTORDB_GATEWAY_INDEX_URL"]
assert url.startswith("qdrant:")
index = open_vectors(url)
index.prepare(DIMENSION_COUNT)
print(len(list(index.entry_ids())))
"""

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder)
    return folder


@pytest.fixture(scope="module")
def suite(secrets: Path) -> Iterator[Composition]:
    files = ("docker-compose.yml", "tests/compose/standins.yml")
    with running(*files, PENTIMENTO_SECRETS=str(secrets)) as composition:
        yield composition


def test_generate_paints_a_picture_for_who_has_a_token(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    suite.generate(tmp_path / "picture.png", "--token", f"@{secrets / 'user_token'}")

    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.size == size_px()


def test_a_picture_of_the_object_store_may_be_read_by_an_address_of_the_edge(suite: Composition, secrets: Path) -> None:
    token = (secrets / "user_token").read_text()

    with Image.open(io.BytesIO(suite.picture_by_address(token))) as picture:
        assert picture.format == "PNG"


def test_nobody_else_is_served(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="token"):
        suite.generate(tmp_path / "picture.png")


def test_generate_again_starts_from_an_entry_in_qdrant(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    request = ("--token", f"@{secrets / 'user_token'}", "--model", "tiny-heavy", "--seed", "8")
    suite.generate(tmp_path / "first.png", *request)

    answer = suite.await_start_from_cache(tmp_path / "again.png", *request)

    assert answer["route"]["start"]["resume_step"] > 0
    dimension_count = json.loads((WEIGHTS / "tiny-clip" / "config.json").read_text())["projection_dim"]
    assert int(suite.python("vectordb-gateway", INDEXED.replace("DIMENSION_COUNT", str(dimension_count)))) > 0


def test_requests_are_in_the_ledger_and_pictures_in_the_object_store(
    suite: Composition, secrets: Path, tmp_path: Path
) -> None:
    request = ("--token", f"@{secrets / 'user_token'}", "--idempotency-key", "kept", "--seed", "3")
    before = request_count(suite)
    suite.generate(tmp_path / "first.png", *request)

    suite.run("restart", "frontdoor", limit_s=120)
    suite.start()
    suite.generate(tmp_path / "again.png", *request)

    assert request_count(suite) == before + 1
    with Image.open(tmp_path / "first.png") as first, Image.open(tmp_path / "again.png") as again:
        assert first.tobytes() == again.tobytes()


def request_count(suite: Composition) -> int:
    count = "SELECT count(*) FROM journal_requests"
    return int(suite.run("exec", "-T", "ledger", "psql", "-U", "pentimento", "-tAc", count))
