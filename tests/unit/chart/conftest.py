"""The chart as helm renders it. Without helm, which `make setup` fetches, these tests are skipped with the reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.fixtures.charts.rendering import VERSIONS, Manifest, Values, missing_tools, render

Rendering = Callable[..., list[Manifest]]


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    if missing := missing_tools():
        pytest.skip(missing)


@pytest.fixture(scope="session")
def rendered(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    """Return the manifests of some values; equal ones are rendered once."""
    folder = tmp_path_factory.mktemp("values")
    known: dict[str, list[Manifest]] = {}

    def render_once(*values: Path | Values, version: str = VERSIONS[-1]) -> list[Manifest]:
        key = f"{values} {version}"
        if key not in known:
            known[key] = render(list(values), folder, version)
        return known[key]

    return render_once
