"""Read the fenced blocks of the pages, and the commands in shell blocks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The output of another command, which the checks cannot read.
SUBSTITUTION = re.compile(r"\$\([^)]*\)")
BETWEEN_COMMANDS = {"|", "||", "&&", ";", "&", "(", ")", ";;"}
REDIRECTIONS = {">", ">>", "<", "2>", ">&", "&>"}


@dataclass(frozen=True)
class Block:
    """Hold a fenced block: `page` relative to the repository, the line of its fence from 1 on, its language, its
    text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def page_files() -> list[Path]:
    """Return the pages with checked blocks: all except decision records, which keep the commands of their day."""
    patterns = (
        "*.md",
        "docs/*.md",
        "docs/concepts/*.md",
        "examples/*/README.md",
        "scenarios/*.md",
        "services/*/README.md",
    )
    found = {path for pattern in (*patterns, "zoo/README.md") for path in ROOT.glob(pattern)}
    return sorted(found - {ROOT / "CHANGELOG.md"})


@cache
def blocks() -> tuple[Block, ...]:
    """Return the blocks of all pages, in their order."""
    return tuple(block for path in page_files() for block in blocks_of(str(path.relative_to(ROOT)), path.read_text()))


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of one page's text."""
    for found in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[1].strip(), found[2])


def of_language(*languages: str) -> list[Block]:
    """Return the blocks in some languages."""
    return [block for block in blocks() if block.language in languages]


def shell_lines(text: str) -> list[str]:
    """Return the lines of a shell's text as the shell has them: quoted breaks kept, continued lines joined, without
    comments and empty lines."""
    lines, line, quote, at = [], "", "", 0
    while at < len(text):
        here = text[at]
        if here == "\\" and quote != "'":
            line, at = line + ("" if text[at + 1 : at + 2] == "\n" else text[at : at + 2]), at + 2
            continue
        if here == "#" and not quote and (not line or line[-1].isspace()):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        if here == "\n" and not quote:
            lines.append(line.strip())
            line = ""
        else:
            line += here
        quote = quote_after(here, quote)
        at += 1
    return [one for one in (*lines, line.strip()) if one]


def quote_after(character: str, quote: str) -> str:
    """Return which quote is open after a character."""
    if quote:
        return "" if character == quote else quote
    return character if character in "\"'" else ""


def commands(line: str) -> list[list[str]]:
    """Return the commands of one of `shell_lines` as words, without leading variables and redirections."""
    lexer = shlex.shlex(SUBSTITUTION.sub("SUBSTITUTED", line), posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    found: list[list[str]] = [[]]
    tokens = iter(lexer)
    for token in tokens:
        if token in BETWEEN_COMMANDS:
            found.append([])
        elif token in REDIRECTIONS:
            next(tokens, None)
        elif found[-1] or not re.fullmatch(r"[A-Za-z_]+=.*", token, re.DOTALL):
            found[-1].append(token)
    return [words for words in found if words]
