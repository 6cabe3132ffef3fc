"""How Sphinx makes the site of the pages in this repository: `make docs`.

The repository's root is the source directory, so that a link between two pages is the same file path here and on the
site. The pages are plain Markdown: where each stands in the navigation is said here, and added while it is read.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tests read what is said here without Sphinx
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "Pentimento"
project_copyright = "the Pentimento authors, Apache-2.0"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    "examples/*/README.md",
    "scenarios/README.md",
    "pentimento/diffusion/kernels/README.md",
    "services/*/README.md",
    "lab/README.md",
    "zoo/README.md",
]
exclude_patterns = [".*", "build", "dist", "**/node_modules", "**/__pycache__", "demo-images"]

# The anchors of headings are those that repositories' hosts make, so that one link serves both.
myst_heading_anchors = 6
nitpicky = True

html_theme = "furo"
html_title = "Pentimento"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
# Code has no language but where its fence says so: a guess would warn, or colour prose.
highlight_language = "text"

# A page, and what stands below it in the navigation: captions, and under each the pages in their order.
NAVIGATION = {
    "docs/index": {
        "Begin": ["docs/quick-start", "docs/concepts/README", "At a glance <README>"],
        "Use": ["docs/clients", "docs/command-json", "HTTP and the console <services/edge/README>"],
        "Run": [
            "docs/model-guide",
            "docs/gpu-host",
            "docs/operations",
            "docs/kubernetes",
            "docs/tuning",
            "docs/runbook",
            "SECURITY",
        ],
        "Look up": [
            "docs/reference/README",
            "docs/glossary",
            "docs/papers",
            "docs/benchmarks",
            "docs/trace-study",
            "scenarios/README",
        ],
        "Inside": [
            "docs/structure",
            "docs/services",
            "lab/README",
            "Tiny models <zoo/README>",
            "Kernels <pentimento/diffusion/kernels/README>",
            "docs/extending",
            "CONTRIBUTING",
            "docs/dependencies",
            "docs/adr/README",
        ],
    },
    "docs/concepts/README": {
        "": [
            f"docs/concepts/{name}"
            for name in (
                "life-of-a-request",
                "approximate-caching",
                "cascades",
                "allocation",
                "adapters",
                "thinning",
                "feature-reuse",
            )
        ],
    },
    "docs/clients": {"": ["examples/*/README"]},
    "docs/reference/README": {
        "": [f"docs/reference/{name}" for name in ("settings", "metrics", "reasons", "api", "http")],
    },
    "docs/services": {"": ["services/*/README"]},
    "docs/adr/README": {"": ["docs/adr/0*"]},
}
# `scripts/build_site.py` writes these pages before Sphinx reads them; they are not committed.
GENERATED = ("docs/reference/api", "docs/reference/http")
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")
# A visitor of the site's own address is sent on.
FIRST_PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Pentimento</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Pentimento</a></html>
"""


def toctrees(page: str) -> str:
    """Return the part of the navigation that a page holds, as MyST writes it."""
    parts = []
    for caption, entries in NAVIGATION.get(page, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        parts.append("\n".join(["```{toctree}", *options, "", *(rooted(entry) for entry in entries), "```"]))
    return "\n\n".join(parts)


def rooted(entry: str) -> str:
    """Return an entry whose page is named from the source directory."""
    title, bracket, page = entry.rpartition("<")
    return f"{title}{bracket}/{page}"


def link_on_site(folder: Path, found: re.Match[str]) -> str:
    """Return a link as the site can follow it: to a folder's page for the folder; text alone where it has none."""
    image, text, path, anchor = found.groups()
    target = folder / path
    if "://" in path or image or not target.is_dir():
        return found[0]
    if (target / "README.md").exists():
        return f"[{text}]({path.rstrip('/')}/README.md{anchor})"
    return text


def prepare(app: "Sphinx", page: str, source: list[str]) -> None:
    """Make links follow the site's pages, and add the page's part of the navigation."""
    folder = (ROOT / page).parent
    text = LINK.sub(lambda found: link_on_site(folder, found), source[0])
    source[0] = f"{text}\n\n{toctrees(page)}\n"


def send_on(app: "Sphinx", exception: Exception | None) -> None:
    """Write the page at the site's own address."""
    if exception is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(FIRST_PAGE)


def setup(app: "Sphinx") -> None:
    """Hear of pages that are read, and of the end."""
    app.connect("source-read", prepare)
    app.connect("build-finished", send_on)
