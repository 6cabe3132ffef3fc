"""Check a built site: every link leads to a page and a place on it, and no asset comes from another host.

    python scripts/check_site.py build/site    # exits 1 and lists the faults

Links to other hosts are not followed.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes with which an element loads an asset; `link` loads unless it only refers to another page.
LOADS = {"src", "srcset", "poster", "data"}
TELLS = {"next", "prev", "search", "index", "author", "copyright", "canonical", "license", "help", "up"}
IN_STYLES = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")


@dataclass
class SitePage(HTMLParser):
    """Hold one page's links, assets, and the names of its places."""

    links: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element's references and its name."""
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given[name] for name in ("id", "name") if name in given and (name == "id" or tag == "a")}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and not TELLS & set(given.get("rel", "").split()):
            self.assets.append(given.get("href", ""))
        if tag != "form":
            self.assets += [one for name in LOADS & set(given) for one in addresses(name, given[name])]
        self.assets += in_styles(given.get("style", ""))


def addresses(attribute: str, value: str) -> list[str]:
    """Return the addresses that an attribute holds; `srcset` may hold several."""
    return [part.split()[0] for part in value.split(",") if part.strip()] if attribute == "srcset" else [value]


def in_styles(text: str) -> list[str]:
    """Return the assets that a style sheet loads."""
    return [first or second for first, second in IN_STYLES.findall(text)]


def read(file: Path) -> SitePage:
    """Return a page's links, assets and places."""
    page = SitePage()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """Yield a line for each link and each asset of a site that is wrong."""
    site = site.resolve()
    pages = {file: read(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        for link in page.links:
            if not is_elsewhere(link) and (fault := fault_of(site, file, link, pages)):
                yield f"{file.relative_to(site)}: {link}: {fault}"
        yield from asset_faults(site, file, page.assets, pages)
    for sheet in sorted(site.rglob("*.css")):
        yield from asset_faults(site, sheet, in_styles(sheet.read_text(encoding="utf-8")), pages)


def asset_faults(site: Path, file: Path, assets: list[str], pages: Mapping[Path, SitePage]) -> Iterator[str]:
    """Yield a line for each asset of a file that is missing or on another host."""
    for asset in assets:
        if asset.startswith("data:"):
            continue
        fault = "comes from another host" if is_elsewhere(asset) else fault_of(site, file, asset, pages)
        if fault:
            yield f"{file.relative_to(site)}: {asset}: {fault}"


def is_elsewhere(address: str) -> bool:
    """Return whether an address is outside the site."""
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc)


def fault_of(site: Path, file: Path, address: str, pages: Mapping[Path, SitePage]) -> str | None:
    """Return the fault of an address within the site, or None."""
    parts = urlsplit(address)
    if parts.path.startswith("/"):
        return "is no path relative to its page: a site may lie below any address"
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not target.is_relative_to(site) or not target.is_file():
        return "leads to no file of the site"
    place = unquote(parts.fragment)
    if place and target.suffix == ".html" and place not in pages[target].places:
        return "leads to no place of that page"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="the folder of the built site")
    site: Path = parser.parse_args().site
    if not any(site.rglob("*.html")):
        sys.exit(f"check_site: {site} holds no page")
    if found := list(faults(site)):
        sys.exit("check_site:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main()
