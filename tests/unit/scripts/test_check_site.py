"""check_site.py names links and assets of a built site that are wrong."""

from pathlib import Path

import pytest

from scripts import check_site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "ring.png").write_bytes(b"")
    (tmp_path / "below" / "page.html").write_text('<h1 id="what-it-is">Page</h1>')
    return tmp_path


def faults(site: Path, body: str) -> list[str]:
    (site / "index.html").write_text(body)
    return list(check_site.faults(site))


SOUND = [
    '<a href="below/page.html">',
    '<a href="below/page.html#what-it-is">',
    '<a href="#here"></a><h2 id="here">',
    '<a href="#">',
    '<a href="https://example.com/none">',
    '<a href="mailto:nobody@example.com">',
    '<img src="ring.png"><img src="data:image/png;base64,">',
    '<link rel="stylesheet" href="ring.png"><link rel="next" href="https://example.com/">',
]
FAULTS = [
    ('<a href="below/none.html">', "below/none.html: leads to no file of the site"),
    ('<a href="below">', "below: leads to no file of the site"),
    ('<a href="below/page.html#none">', "below/page.html#none: leads to no place of that page"),
    ('<a href="#none">', "#none: leads to no place of that page"),
    ('<a href="../outside.html">', "../outside.html: leads to no file of the site"),
    (
        '<a href="/below/page.html">',
        "/below/page.html: is no path relative to its page: a site may lie below any address",
    ),
    ('<img src="none.png">', "none.png: leads to no file of the site"),
    ('<img srcset="ring.png 1x, none.png 2x">', "none.png: leads to no file of the site"),
    ('<script src="https://cdn.example.com/a.js">', "https://cdn.example.com/a.js: comes from another host"),
    ('<script src="//cdn.example.com/a.js">', "//cdn.example.com/a.js: comes from another host"),
    (
        '<link rel="stylesheet" href="https://fonts.example.com/">',
        "https://fonts.example.com/: comes from another host",
    ),
    (
        '<p style="background: url(https://example.com/a.png)">',
        "https://example.com/a.png: comes from another host",
    ),
]


def test_faults_of_sound_site_are_none(site: Path) -> None:
    assert {body: faults(site, body) for body in SOUND if faults(site, body)} == {}


def test_faults_of_wrong_link_or_asset_name_it_and_its_page(site: Path) -> None:
    assert [(body, faults(site, body)) for body, _ in FAULTS] == [
        (body, [f"index.html: {fault}"]) for body, fault in FAULTS
    ]


@pytest.mark.parametrize(
    "rule", ['@import "https://fonts.example.com/a";', "p { src: url('https://fonts.example.com/a') }"]
)
def test_faults_of_style_sheet_name_other_hosts(site: Path, rule: str) -> None:
    (site / "below" / "a.css").write_text(rule)

    assert faults(site, "") == ["below/a.css: https://fonts.example.com/a: comes from another host"]
