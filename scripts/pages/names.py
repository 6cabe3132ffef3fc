"""Check that pages name only files, headings, modules, metrics, reasons of errors, flags and settings that exist."""

import re
import xml.etree.ElementTree as tree
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from functools import cache
from pathlib import Path

from .blocks import ROOT

GUIDES = (
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "zoo/README.md",
            "lab/README.md",
            "scenarios/README.md",
        )
    ),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/concepts/*.md")),
    *sorted(ROOT.glob("services/*/README.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
)
# `make docs` generates these; other pages may link to them without an anchor.
OF_THE_SITE = {ROOT / "docs" / "reference" / name for name in ("api.md", "http.md")}
# Decision records keep the names of their day; only their links are checked.
PAGES = (
    *GUIDES,
    *sorted(ROOT.glob("docs/adr/*.md")),
    *sorted(page for page in ROOT.glob("docs/reference/*.md") if page not in OF_THE_SITE),
)
# Written by a user's command, not in the tree.
MADE_BY_COMMANDS = ("deploy/secrets", "build/")
# A placeholder for any name.
PLACEHOLDER = "NAME"

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
PATH = re.compile(r"[\w.\-*]+(/[\w.\-*]+)+/?|[\w\-*]+\.(py|toml|yml|proto)")
MODULE = re.compile(r"(?<![\w/.])(?:pentimento|services|lab|benchmarks|zoo)(?:\.\w+)+")
METRIC = re.compile(r"\bpentimento_(?:frontdoor|embedder|gateway|worker|controller|rpc)_[a-z_]+\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
WORD = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
SVG_TITLE = "{http://www.w3.org/2000/svg}title"
# The least number of words in the glossary.
GLOSSARY_WORDS = 50
# The most decision records, and the most lines of each.
RECORDS = 30
RECORD_LINES = 60


def faults(what: str, named: dict[Path, Iterable[str]]) -> Iterator[str]:
    """Yield a line for each thing named on a page that does not exist."""
    for page, names in named.items():
        yield from (f"{page.relative_to(ROOT)}: no such {what}: {name}" for name in names)


def few(what: str, found: Sized, least: int) -> Iterator[str]:
    """Yield a fault if a rule finds too little to be trusted, as after a change of a page's form."""
    if len(found) < least:
        yield f"the rule finds {len(found)} {what}, at least {least} were there: has the page another form?"


def in_backticks(page: Path) -> list[str]:
    return CODE.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be linked to."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if target.resolve() in OF_THE_SITE:
        return not anchor
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def paths(page: Path) -> Iterator[str]:
    """Yield the files and directories of this repository that a page names, also within a command."""
    bare = (text for text in in_backticks(page) if "/" not in text)
    words = (word for block in (*FENCE.findall(page.read_text()), *in_backticks(page)) for word in block.split())
    for path in (*bare, *(word for word in words if "/" in word)):
        if PATH.fullmatch(path) and not path.startswith(MADE_BY_COMMANDS) and PLACEHOLDER not in path:
            first = path.split("/")[0]
            if first == path or (ROOT / first).exists() or (page.parent / first).exists():
                yield path


def is_there(page: Path, path: str) -> bool:
    """Return whether a path leads to a file from the root or the page; a bare name may be anywhere below either."""
    bare = "/" not in path
    places = (page.parent,) if page.parent.parent.name == "services" else (ROOT, page.parent)
    if not bare:
        return any(next(place.glob(path.rstrip("/")), None) for place in {ROOT, *places})
    folders = ("pentimento", "services", "lab", "benchmarks", "scripts", "tests", "zoo", "deploy", "protos")
    below = [place / folder for place in places for folder in (folders if place == ROOT else (".",))]
    return any(next(place.glob(path), None) for place in places) or any(next(b.rglob(path), None) for b in below)


def is_importable(name: str) -> bool:
    """Return whether a dotted name is a module, a name inside one, or a name of a contract."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        place, rest = ROOT.joinpath(*parts[:count]), parts[count:]
        files = [place.with_suffix(".py")] if place.with_suffix(".py").exists() else sorted(place.glob("*.py"))
        contracts = sorted(ROOT.joinpath("protos", *parts[:count]).glob("*.proto"))
        if files or contracts:
            return not rest or any(re.search(rf"\b{rest[0]}\b", file.read_text()) for file in (*files, *contracts))
    return False


@cache
def sources() -> str:
    """Return the text of all sources with names that pages may use."""
    trees = ("pentimento", "services", "lab", "protos", "deploy", "examples")
    files = [
        file for tree in trees for file in (ROOT / tree).rglob("*") if file.suffix in (".py", ".proto", ".yml", ".mjs")
    ]
    others = (ROOT / "Makefile", ROOT / "docs/reference/settings.md", *ROOT.glob("docker-compose*.yml"))
    return "\n".join(file.read_text() for file in (*files, *others))


def links_lead_to_files_and_headings() -> Iterator[str]:
    links = {page: LINK.findall(FENCE.sub("", page.read_text())) for page in PAGES}
    yield from faults(
        "file or heading",
        {
            page: [link for link in found if "://" not in link and not leads_somewhere(page, link)]
            for page, found in links.items()
        },
    )


def named_files_exist() -> Iterator[str]:
    yield from faults("file", {page: [path for path in paths(page) if not is_there(page, path)] for page in GUIDES})


def named_modules_exist() -> Iterator[str]:
    for page in GUIDES:
        names = {name for name in MODULE.findall(page.read_text()) if PLACEHOLDER not in name}
        wrong = sorted(name for name in names if not name.endswith(".md") and not is_importable(name))
        yield from faults("module", {page: wrong})


def named_metrics_are_in_the_reference() -> Iterator[str]:
    listed = set(METRIC.findall((ROOT / "docs/reference/metrics.md").read_text()))
    yield from faults("metric", {page: sorted(set(METRIC.findall(page.read_text())) - listed) for page in GUIDES})


def named_reasons_and_variables_are_in_the_sources() -> Iterator[str]:
    for page in GUIDES:
        words = {text for text in in_backticks(page) if WORD.fullmatch(text)}
        yield from faults("reason or variable", {page: sorted(word for word in words if word not in sources())})


def log_messages_of_the_runbook_are_in_the_sources() -> Iterator[str]:
    page = ROOT / "docs/runbook.md"
    quoted = [text[1:-1] for text in in_backticks(page) if text.startswith('"')]
    yield from few("log messages", quoted, 21)
    yield from faults("log message", {page: [text for text in quoted if text not in sources()]})


def named_flags_exist() -> Iterator[str]:
    settings = (ROOT / "docs/reference/settings.md").read_text()
    known = {*FLAG.findall(settings), *FLAG.findall(sources())}
    for page in (ROOT / "docs/runbook.md", *sorted(ROOT.glob("services/*/README.md"))):
        named = {flag for text in in_backticks(page) for flag in FLAG.findall(text)}
        unknown = sorted(flag for flag in named if not known & {flag, flag.replace("--no-", "--")})
        yield from faults("flag", {page: unknown})


def first_cells(page: Path) -> list[str]:
    """Return the first cell of each row of a page's tables, without headings."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    headings = {rows[at - 1] for at, row in enumerate(rows) if row.startswith("| --- ")}
    return [row.split("|")[1].strip() for row in rows if row not in headings and not row.startswith("| --- ")]


def twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def the_map_has_each_place_and_question_once() -> Iterator[str]:
    yield from (f"docs/structure.md: twice: {cell}" for cell in twice(first_cells(ROOT / "docs/structure.md")))


def the_glossary_has_each_word_once() -> Iterator[str]:
    words = [word for cell in first_cells(ROOT / "docs/glossary.md") for word in cell.split(", ")]
    yield from few("words of the glossary", words, GLOSSARY_WORDS)
    yield from (f"docs/glossary.md: twice: {word}" for word in twice(words))


def the_map_has_every_package() -> Iterator[str]:
    named = "\n".join(first_cells(ROOT / "docs/structure.md"))
    packages = [*(ROOT / "pentimento").iterdir(), *(path for path in ROOT.iterdir() if is_source(path))]
    missing = [path.name for path in packages if holds_code(path) and f"{path.name}/" not in named]
    yield from (f"docs/structure.md: no row for {name}/" for name in missing)


def is_source(path: Path) -> bool:
    return path.name[0] not in "._" and path.name not in ("build", "dist")


def holds_code(folder: Path) -> bool:
    return folder.is_dir() and any(folder.rglob("*.py"))


def settings_named(page: Path) -> list[str]:
    """Return the names in the first column of a page's tables of settings."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    tables = [row.startswith("| setting") for row in rows]
    found, inside = [], False
    for row, begins in zip(rows, tables, strict=True):
        inside = begins or (inside and not row.startswith("| you see"))
        if inside and not begins:
            found += CODE.findall(row.split("|")[1].partition("(")[0])
    return found


def settings_of_tuning_exist() -> Iterator[str]:
    page = ROOT / "docs/tuning.md"
    named = settings_named(page)
    known = (ROOT / "docs/reference/settings.md").read_text()
    yield from few("settings", named, 31)
    yield from faults("setting", {page: [name for name in named if f"`--{name}`" not in known]})


def defaults_told(page: Path) -> list[tuple[str, str]]:
    """Return settings that have their own row in a page's tables, with the default in the brackets after them."""
    words = {"yes": "true", "no": "false"}
    told = re.findall(r"^\| `([a-z-]+)` \((\d[\d.]*|yes|no|`[\w-]+`)[;:)]", page.read_text(), re.MULTILINE)
    return [(name, words.get(value, value.strip("`"))) for name, value in told]


def defaults_of(name: str) -> list[str]:
    """Return the defaults of every service's setting of this name, numbers in their usual notation."""
    row = rf"^\| `--{name}`<br>[^|]*\| (?:`(.*?)`)?"
    return [
        default.removesuffix(".0")
        for default in re.findall(row, (ROOT / "docs/reference/settings.md").read_text(), re.MULTILINE)
    ]


def defaults_of_tuning_are_those_of_the_settings() -> Iterator[str]:
    page = ROOT / "docs/tuning.md"
    told = defaults_told(page)
    yield from few("defaults", told, 16)
    wrong = [f"{name} = {value}" for name, value in told if not {value, ""} & set(defaults_of(name))]
    yield from faults("default", {page: wrong})


def the_index_of_decisions_has_each_once_and_in_order() -> Iterator[str]:
    folder = ROOT / "docs" / "adr"
    named = re.findall(r"^- \[(\d{4})\]\((\1-[\w-]+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)
    if [page for _, page in named] != sorted(path.name for path in folder.glob("0*.md")):
        yield "docs/adr/README.md: its rows are not the records of the folder in order"


def decision_records_are_few_and_short() -> Iterator[str]:
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    if len(records) > RECORDS:
        yield f"docs/adr: {len(records)} records, at most {RECORDS}: fold a new decision into a fitting one"
    for path in records:
        if (count := len(path.read_text().splitlines())) > RECORD_LINES:
            yield f"docs/adr/{path.name}: {count} lines, at most {RECORD_LINES}"


def metrics_have_one_heading_each() -> Iterator[str]:
    repeated = twice(HEADING.findall((ROOT / "docs" / "reference" / "metrics.md").read_text()))
    yield from (f"docs/reference/metrics.md: twice: {heading}" for heading in repeated)


def diagrams_have_a_title_and_a_page() -> Iterator[str]:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "concepts").glob("*.md"))
    for path in sorted((ROOT / "docs" / "images" / "concepts").glob("*")):
        name = path.relative_to(ROOT)
        if f"../images/concepts/{path.name}" not in pages:
            yield f"{name}: on no page"
        if path.suffix == ".svg":
            title = tree.parse(path).getroot().find(SVG_TITLE)
            if title is None or len(title.text or "") <= 40:
                yield f"{name}: no title that says what it shows"


RULES = (
    links_lead_to_files_and_headings,
    named_files_exist,
    named_modules_exist,
    named_metrics_are_in_the_reference,
    named_reasons_and_variables_are_in_the_sources,
    log_messages_of_the_runbook_are_in_the_sources,
    named_flags_exist,
    the_map_has_each_place_and_question_once,
    the_glossary_has_each_word_once,
    the_map_has_every_package,
    settings_of_tuning_exist,
    defaults_of_tuning_are_those_of_the_settings,
    the_index_of_decisions_has_each_once_and_in_order,
    decision_records_are_few_and_short,
    metrics_have_one_heading_each,
    diagrams_have_a_title_and_a_page,
)
