"""What the pages name exists: files, headings, modules, metrics, and reasons of errors."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUIDES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "zoo/README.md", "scenarios/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/concepts/*.md")),
    *sorted(ROOT.glob("services/*/README.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
)
# `make docs` generates these; other pages may link to them without an anchor.
OF_THE_SITE = {ROOT / "docs" / "reference" / name for name in ("api.md", "http.md")}
# Decision records keep the names of their day; only their links are held.
PAGES = (
    *GUIDES,
    *sorted(ROOT.glob("docs/adr/*.md")),
    *sorted(page for page in ROOT.glob("docs/reference/*.md") if page not in OF_THE_SITE),
)
# Written by a user's command, not in the tree.
MADE_BY_COMMANDS = ("deploy/secrets",)
# Stands for any name.
PLACEHOLDER = "NAME"

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
PATH = re.compile(r"[\w.\-*]+(/[\w.\-*]+)+/?|[\w\-*]+\.(py|toml|yml|proto)")
MODULE = re.compile(r"(?<![\w/.])(?:pentimento|services|benchmarks|zoo)(?:\.\w+)+")
METRIC = re.compile(r"\bpentimento_(?:frontdoor|embedder|gateway|worker|controller|rpc)_[a-z_]+\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
WORD = re.compile(r"[A-Z]+(?:_[A-Z]+)+")


def of_pages(pages: tuple[Path, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


def in_backticks(page: Path) -> list[str]:
    return CODE.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if target.resolve() in OF_THE_SITE:
        return not anchor
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def paths(page: Path) -> Iterator[str]:
    """What a page names as files and directories of this repository, alone or in a command."""
    bare = (text for text in in_backticks(page) if "/" not in text)
    words = (word for block in (*FENCE.findall(page.read_text()), *in_backticks(page)) for word in block.split())
    for path in (*bare, *(word for word in words if "/" in word)):
        if PATH.fullmatch(path) and not path.startswith(MADE_BY_COMMANDS) and PLACEHOLDER not in path:
            first = path.split("/")[0]
            if first == path or (ROOT / first).exists() or (page.parent / first).exists():
                yield path


def is_there(page: Path, path: str) -> bool:
    """Whether a path leads to something from the root or the page; a bare name may lie anywhere below either."""
    bare = "/" not in path
    places = (page.parent,) if page.parent.parent.name == "services" else (ROOT, page.parent)
    if not bare:
        return any(next(place.glob(path.rstrip("/")), None) for place in {ROOT, *places})
    folders = ("pentimento", "services", "benchmarks", "scripts", "tests", "zoo", "deploy", "protos")
    below = [place / folder for place in places for folder in (folders if place == ROOT else (".",))]
    return any(next(place.glob(path), None) for place in places) or any(next(b.rglob(path), None) for b in below)


def is_importable(name: str) -> bool:
    """Whether a dotted name is a module, a name that stands in one, or a name of a contract."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        place, rest = ROOT.joinpath(*parts[:count]), parts[count:]
        files = [place.with_suffix(".py")] if place.with_suffix(".py").exists() else sorted(place.glob("*.py"))
        contracts = sorted(ROOT.joinpath("protos", *parts[:count]).glob("*.proto"))
        if files or contracts:
            return not rest or any(re.search(rf"\b{rest[0]}\b", file.read_text()) for file in (*files, *contracts))
    return False


@pytest.fixture(scope="module")
def sources() -> str:
    trees = ("pentimento", "services", "protos", "deploy", "examples")
    files = [
        file for tree in trees for file in (ROOT / tree).rglob("*") if file.suffix in (".py", ".proto", ".yml", ".mjs")
    ]
    others = (ROOT / "Makefile", ROOT / "docs/reference/settings.md", *ROOT.glob("docker-compose*.yml"))
    return "\n".join(file.read_text() for file in (*files, *others))


@of_pages(PAGES)
def test_links_of_a_page_lead_to_files_and_headings(page: Path):
    links = [link for link in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in link]

    assert [link for link in links if not leads_somewhere(page, link)] == []


@of_pages(GUIDES)
def test_files_that_a_page_names_exist(page: Path):
    assert [path for path in paths(page) if not is_there(page, path)] == []


@of_pages(GUIDES)
def test_modules_that_a_page_names_exist(page: Path):
    names = {name for name in MODULE.findall(page.read_text()) if PLACEHOLDER not in name and not name.endswith(".md")}

    assert sorted(name for name in names if not is_importable(name)) == []


@of_pages(GUIDES)
def test_metrics_that_a_page_names_are_in_the_reference(page: Path):
    listed = set(METRIC.findall((ROOT / "docs/reference/metrics.md").read_text()))

    assert sorted(set(METRIC.findall(page.read_text())) - listed) == []


@of_pages(GUIDES)
def test_reasons_and_variables_that_a_page_names_are_in_the_sources(page: Path, sources: str):
    words = {text for text in in_backticks(page) if WORD.fullmatch(text)}

    assert sorted(word for word in words if word not in sources) == []


def test_log_messages_that_the_runbook_quotes_are_in_the_sources(sources: str):
    quoted = [text[1:-1] for text in in_backticks(ROOT / "docs/runbook.md") if text.startswith('"')]

    assert len(quoted) > 20
    assert [text for text in quoted if text not in sources] == []


@of_pages((ROOT / "docs/runbook.md", *sorted(ROOT.glob("services/*/README.md"))))
def test_flags_that_a_page_names_exist(page: Path, sources: str):
    named = {flag for text in in_backticks(page) for flag in FLAG.findall(text)}
    settings = (ROOT / "docs/reference/settings.md").read_text()

    known = {*FLAG.findall(settings), *FLAG.findall(sources)}
    assert sorted(flag for flag in named if flag not in known and flag.replace("--no-", "--") not in known) == []


def test_every_benchmark_has_a_section():
    called = re.compile(r'parse_options\("(\w+)"')
    names = {name for file in (ROOT / "benchmarks").glob("*.py") for name in called.findall(file.read_text())}
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)

    found = {name for heading in headings for name in heading.split(", ")}

    assert sorted(names - found) == []


def first_cells(page: Path) -> list[str]:
    """The first cell of each row of a page's tables, without headings."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    headings = {rows[at - 1] for at, row in enumerate(rows) if row.startswith("| --- ")}
    return [row.split("|")[1].strip() for row in rows if row not in headings and not row.startswith("| --- ")]


def twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_the_map_has_each_place_and_each_question_once():
    assert twice(first_cells(ROOT / "docs/structure.md")) == []


def test_the_glossary_has_each_word_once():
    words = [word for cell in first_cells(ROOT / "docs/glossary.md") for word in cell.split(", ")]

    assert len(words) > 150
    assert twice(words) == []


def test_the_map_has_every_package():
    named = "\n".join(first_cells(ROOT / "docs/structure.md"))
    packages = [*(ROOT / "pentimento").iterdir(), *(path for path in ROOT.iterdir() if path.name[0] not in "._")]

    assert [path.name for path in packages if holds_code(path) and f"{path.name}/" not in named] == []


def holds_code(folder: Path) -> bool:
    return folder.is_dir() and any(folder.rglob("*.py"))


def settings_named(page: Path) -> list[str]:
    """The names in the first column of a page's tables of settings."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    tables = [row.startswith("| setting") for row in rows]
    found, inside = [], False
    for row, begins in zip(rows, tables, strict=True):
        inside = begins or (inside and not row.startswith("| you see"))
        if inside and not begins:
            found += CODE.findall(row.split("|")[1].partition("(")[0])
    return found


def test_settings_that_tuning_names_exist():
    named = settings_named(ROOT / "docs/tuning.md")
    known = (ROOT / "docs/reference/settings.md").read_text()

    assert len(named) > 30
    assert [name for name in named if f"`--{name}`" not in known] == []


def defaults_told(page: Path) -> list[tuple[str, str]]:
    """Settings that have a row of a page's tables to themselves, with the default that stands in brackets behind."""
    words = {"yes": "true", "no": "false"}
    told = re.findall(r"^\| `([a-z-]+)` \((\d[\d.]*|yes|no|`[\w-]+`)[;:)]", page.read_text(), re.MULTILINE)
    return [(name, words.get(value, value.strip("`"))) for name, value in told]


def defaults_of(name: str) -> list[str]:
    """The defaults of the settings of that name, of every service; numbers as they are usually written."""
    row = rf"^\| `--{name}`<br>[^|]*\|[^|]*\| `?(.*?)`? \|"
    return [
        default.removesuffix(".0")
        for default in re.findall(row, (ROOT / "docs/reference/settings.md").read_text(), re.MULTILINE)
    ]


def test_defaults_that_tuning_tells_are_the_settings_own():
    told = defaults_told(ROOT / "docs/tuning.md")

    assert len(told) > 15
    assert [(name, value) for name, value in told if not {value, ""} & set(defaults_of(name))] == []


def test_the_index_of_decisions_names_each_once_and_in_order() -> None:
    folder = ROOT / "docs" / "adr"

    named = re.findall(r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)

    assert [page for _, page in named] == sorted(path.name for path in folder.glob("0*.md"))


def test_no_metrics_are_told_of_under_the_same_heading_twice() -> None:
    headings = HEADING.findall((ROOT / "docs" / "reference" / "metrics.md").read_text())

    assert sorted(headings) == sorted(set(headings))
