"""Check that every page of the site is in its navigation, and links only to pages of the site. The check needs no
Sphinx; Sphinx's build would fail later on the same faults."""

import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from .blocks import FENCE, ROOT

LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")


@cache
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_configuration", ROOT / "docs" / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def pages() -> frozenset[Path]:
    """Return the pages of the site, including generated ones."""
    patterns = [pattern.replace("**.md", "**/*.md") for pattern in site().include_patterns]
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return frozenset(found | {ROOT / f"{name}.md" for name in site().GENERATED})


def every_page_stands_in_the_navigation() -> Iterator[str]:
    navigation, generated = site().NAVIGATION, site().GENERATED
    entries = [entry for parts in navigation.values() for listed in parts.values() for entry in listed]
    named = [entry.rpartition("<")[2].removesuffix(">") for entry in entries]
    found = {path for name in named for path in ROOT.glob(f"{name}.md")}
    found |= {ROOT / f"{name}.md" for name in named if name in generated}
    yield from lines("is not in NAVIGATION of docs/conf.py", pages() - found - {ROOT / f"{site().root_doc}.md"})
    yield from lines("is in NAVIGATION but no page of the site", found - pages())
    missing = (ROOT / f"{name}.md" for name in named if name not in generated and not any(ROOT.glob(f"{name}.md")))
    yield from lines("is in NAVIGATION but does not exist", missing)
    yield from lines(
        "has entries in NAVIGATION but does not exist", {ROOT / f"{name}.md" for name in navigation} - pages()
    )


def lines(fault: str, paths: Iterable[Path]) -> Iterator[str]:
    yield from (f"{path.relative_to(ROOT)}: {fault}" for path in sorted(paths))


def pages_link_to_pages_of_the_site() -> Iterator[str]:
    for page in sorted(page for page in pages() if page.exists()):
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            if "://" not in link and (page.parent / link).resolve() not in pages():
                yield f"{page.relative_to(ROOT)}: {link} is not in include_patterns of docs/conf.py"


RULES = (every_page_stands_in_the_navigation, pages_link_to_pages_of_the_site)
