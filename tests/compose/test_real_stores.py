"""Run docker-compose.yml, with replacements (standins.yml) for the images of third parties.

The Qdrant server is real if its image is here or can be pulled; otherwise its test is skipped.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deploy.make_secrets import main as make_secrets
from tests.compose.composition import Composition, compose_command, has_image, outline, running
from tests.compose.declared import services
from tests.support.tiny_models import WEIGHTS, size_px

# Prints the number of entries in the gateway's index.
INDEXED = """
import os
from pentimento.stores.vectors import open_vectors
url = os.environ["PENTIMENTO_VECTORDB_GATEWAY_INDEX_URL"]
assert url.startswith("qdrant:")
index = open_vectors(url)
index.prepare(DIMENSION_COUNT)
print(len(list(index.entry_ids())))
"""

QDRANT = services("docker-compose.yml")["vectors"]["image"]
EDGES = "tiny-controlnet-edges"

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder)
    return folder


@pytest.fixture(scope="module")
def suite(secrets: Path) -> Iterator[Composition]:
    files = ["docker-compose.yml", "tests/compose/standins.yml"]
    if compose_command() is not None and not has_image(QDRANT):
        files.append("tests/compose/standins_vectors.yml")
    with running(*files, PENTIMENTO_SECRETS=str(secrets)) as composition:
        yield composition


def test_generate_with_token_saves_an_image(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    suite.generate(tmp_path / "image.png", "--token", f"@{secrets / 'user_token'}")

    with Image.open(tmp_path / "image.png") as image:
        assert image.size == size_px()


def test_image_url_of_edge_returns_stored_image(suite: Composition, secrets: Path) -> None:
    token = (secrets / "user_token").read_text()

    with Image.open(io.BytesIO(suite.image_by_url(token))) as image:
        assert image.format == "PNG"


def test_generate_without_token_is_refused(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="token"):
        suite.generate(tmp_path / "image.png")


def test_generate_again_starts_from_cached_entry(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    request = ("--token", f"@{secrets / 'user_token'}", "--model", "tiny-heavy", "--seed", "8")
    suite.generate(tmp_path / "first.png", *request)

    answer = suite.await_start_from_cache(tmp_path / "again.png", *request)

    assert answer["route"]["start"]["resume_step"] > 0


def test_cached_entry_is_in_a_qdrant_server(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    if suite.container("vectors")["Config"]["Image"] != QDRANT:
        pytest.skip(f"not run: {QDRANT} is neither here nor can it be pulled; a double took its place")
    request = ("--token", f"@{secrets / 'user_token'}", "--model", "tiny-heavy", "--seed", "8")
    suite.generate(tmp_path / "first.png", *request)
    suite.await_start_from_cache(tmp_path / "again.png", *request)

    dimension_count = json.loads((WEIGHTS / "tiny-clip" / "config.json").read_text())["projection_dim"]

    assert int(suite.python("vectordb-gateway", INDEXED.replace("DIMENSION_COUNT", str(dimension_count)))) > 0


def test_controlnet_changes_image_of_its_caller(suite: Composition, secrets: Path, tmp_path: Path) -> None:
    suite.await_adapters(EDGES, token=(secrets / "user_token").read_text().strip())
    asked = ("--token", f"@{secrets / 'user_token'}", "--model", "tiny-heavy", "--seed", "5", "--no-cache")
    suite.generate(tmp_path / "plain.png", *asked)

    control = f"{EDGES}:{outline(tmp_path / 'edges.png')}"
    answer = json.loads(suite.generate(tmp_path / "controlled.png", *asked, "--controlnet", control, "--json"))

    assert [controlnet["name"] for controlnet in answer["spec"]["controlnets"]] == [EDGES]
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "controlled.png") as controlled:
        assert plain.tobytes() != controlled.tobytes()
    assert suite.metrics("controlnet-svc", "pentimento_tensor_sent_bytes_total")['{transport="shared_memory"}'] > 0


def test_requests_are_in_ledger_and_images_in_object_store(suite: Composition, secrets: Path, tmp_path: Path) -> None:
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
