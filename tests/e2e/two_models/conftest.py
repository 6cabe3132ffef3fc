"""Start one suite with both tiny models as the default cascade."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.supervisor.local import LocalSuite, local_suite
from tests.e2e.folder_suite import FolderSuite

STARTED = FolderSuite(Path(__file__).parent)

# Every prompt is near enough to every other: the tests check what a hit does, not which entries match. For entries of
# the same model, latents save more than images. Every hit is generated again when no request waits.
TWO_MODELS = """
[vectordb_gateway]
thresholds = ["latent:-1:0.4", "image:-1:0.3"]

[frontdoor]
quality_sample_share = 1.0
quality_work_share = 1.0
"""


@pytest.fixture(scope="session")
def suite_of_two(patient_frontdoors: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSuite]:
    """Start a cascade with default settings: its discriminator reads prompts."""
    config = tmp_path_factory.mktemp("suite") / "settings.toml"
    config.write_text(TWO_MODELS)
    with STARTED:
        cascade = ["--cascade", "tiny-light,tiny-heavy", "--config", str(config)]
        yield STARTED.enter_context(local_suite(cascade))


@pytest.hookimpl(trylast=True)  # after the test's own fixtures
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    STARTED.end_before(nextitem)
