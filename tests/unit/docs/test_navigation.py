"""Every page of the site stands in its navigation, and links to pages of the site alone. Without Sphinx: what
fails its build is told here first."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.snippets.blocks import FENCE

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_configuration", ROOT / "docs" / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(site: ModuleType) -> set[Path]:
    patterns = [pattern.replace("**.md", "**/*.md") for pattern in site.include_patterns]
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return found | {ROOT / f"{name}.md" for name in site.GENERATED}


def test_every_page_stands_in_the_navigation(site: ModuleType, pages: set[Path]) -> None:
    entries = [entry for parts in site.NAVIGATION.values() for listed in parts.values() for entry in listed]
    named = [entry.rpartition("<")[2].removesuffix(">") for entry in entries]
    found = {path for name in named for path in ROOT.glob(f"{name}.md")}
    found |= {ROOT / f"{name}.md" for name in named if name in site.GENERATED}

    missing = pages - found - {ROOT / f"{site.root_doc}.md"}
    assert [str(path.relative_to(ROOT)) for path in sorted(missing)] == [], "name it in NAVIGATION of docs/conf.py"
    assert [str(path.relative_to(ROOT)) for path in sorted(found) if path not in pages] == []
    assert [name for name in named if name not in site.GENERATED and not any(ROOT.glob(f"{name}.md"))] == []
    assert [page for page in site.NAVIGATION if ROOT / f"{page}.md" not in pages] == []


def test_pages_link_to_pages_of_the_site(pages: set[Path]) -> None:
    lost = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in sorted(pages)
        if page.exists()
        for link in LINK.findall(FENCE.sub("", page.read_text()))
        if "://" not in link and (page.parent / link).resolve() not in pages
    ]

    assert lost == [], "name the page that is linked to in include_patterns of docs/conf.py"
