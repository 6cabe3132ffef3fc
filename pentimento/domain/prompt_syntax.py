"""Parse prompts with weights into fragments, and strip the syntax for readers of plain text.

- `a1111`, the syntax of AUTOMATIC1111's web UI: `(text)` multiplies the weight by 1.1, `[text]` divides it by 1.1,
  `(text:1.3)` multiplies it by 1.3; brackets nest; a backslash before a bracket or a backslash makes it a character;
  the word BREAK begins a new chunk of tokens.
- `compel`, the syntax of the library compel: `word+` multiplies the weight by 1.1 and `word-` by 0.9, once for each
  sign; `(text)1.3`, `"text"1.3`, `(text)++` weigh a text; a backslash makes the next character itself.
"""

import math
import re
from dataclasses import dataclass
from enum import Enum

from pentimento.domain.errors import InvalidArgument


class PromptSyntax(Enum):
    A1111 = "a1111"
    COMPEL = "compel"


# Model families with weighted text states.
WEIGHTED_FAMILIES = frozenset({"stable_diffusion", "stable_diffusion_xl", "stable_diffusion_3"})
# Chunks of 75 tokens (77 with their markers) of a prompt with a syntax.
MAX_PROMPT_CHUNKS = 8
MAX_PROMPT_WEIGHT = 10.0
MAX_BRACKET_DEPTH = 32
# Each is a further pass of the text encoders by compel's rules.
MAX_LOWERED_TEXTS = 32
_STEP = 1.1
_DOWN_STEP = 0.9


@dataclass(frozen=True)
class Fragment:
    """Hold a part of a prompt with one weight."""

    text: str
    weight: float = 1.0


@dataclass(frozen=True)
class WeightedPrompt:
    """Hold a prompt without its syntax, in `sections` of fragments; each section begins a new chunk of tokens."""

    syntax: PromptSyntax
    sections: tuple[tuple[Fragment, ...], ...]

    @property
    def plain(self) -> str:
        """Return the text without syntax."""
        return " ".join("".join(fragment.text for fragment in section) for section in self.sections)

    @property
    def weighted(self) -> tuple[Fragment, ...]:
        """Return the fragments with a weight other than 1."""
        return tuple(fragment for section in self.sections for fragment in section if fragment.weight != 1.0)


def parse_prompt(text: str, syntax: PromptSyntax, field: str = "prompt") -> WeightedPrompt:
    """Return a prompt's fragments. Raises InvalidArgument, which names `field`, for brackets without a partner, for
    weights that are not finite or beyond MAX_PROMPT_WEIGHT, for more than this module's limits, and for a syntax of
    schedules or of several prompts, which is not supported."""
    sections = (_parse_a1111 if syntax is PromptSyntax.A1111 else _parse_compel)(text, field)
    prompt = WeightedPrompt(syntax, tuple(tuple(_merged(section)) for section in sections))
    if len(prompt.sections) > MAX_PROMPT_CHUNKS:
        limit = f"must have at most {MAX_PROMPT_CHUNKS} chunks of tokens, and BREAK begins {len(prompt.sections)}"
        raise InvalidArgument.of(field, limit)
    for fragment in prompt.weighted:
        _check_weight(fragment.weight, field)
    lowered = sum(fragment.weight < 1.0 for fragment in prompt.weighted)
    if syntax is PromptSyntax.COMPEL and lowered > MAX_LOWERED_TEXTS:
        raise InvalidArgument.of(
            field, f"must have at most {MAX_LOWERED_TEXTS} texts with weights below 1, got {lowered}"
        )
    return prompt


def plain_prompt(text: str, syntax: PromptSyntax | None) -> str:
    """Return a prompt's text for an encoder of meanings: without the syntax, if there is one."""
    return text if syntax is None else parse_prompt(text, syntax).plain


def _check_weight(weight: float, field: str) -> None:
    if not abs(weight) <= MAX_PROMPT_WEIGHT:  # NaN fails every comparison
        limit = f"must have weights between -{MAX_PROMPT_WEIGHT:g} and {MAX_PROMPT_WEIGHT:g}"
        raise InvalidArgument.of(field, f"{limit}, got {weight:g}")


_Runs = list[Fragment | None]
_OPENING = {")": "(", "]": "[", '"': '"'}
_FACTORS = {")": _STEP, "]": 1 / _STEP}
_A1111_PART = re.compile(r"\\[\\()\[\]]|:[^\\()\[\]:]*(?=\))|[()\[\]]|[^\\()\[\]:]+|[:\\]")
# [from:to:when], [text:when] and [one|other] change the prompt during the steps.
_A1111_SCHEDULE = re.compile(r"(?<!\\)\[[^\[\]]*(?:\||:\s*\d*\.?\d+\s*\])")
_ESCAPE = re.compile(r"\\(.)")
_BREAK = re.compile(r"\s*\bBREAK\b\s*")


def _parse_a1111(text: str, field: str) -> list[list[Fragment]]:
    if _A1111_SCHEDULE.search(text):
        raise InvalidArgument.of(
            field, "must not have [from:to:when] or [one|other]: prompts do not change by the step"
        )
    runs: _Runs = []
    opened: list[tuple[str, int]] = []
    stated: float | None = None
    for part in _A1111_PART.findall(text):
        if part in ("(", "["):
            _open(opened, part, len(runs), field)
        elif part in (")", "]"):
            start = _closed(opened, part, field)
            _multiply(runs, start, _FACTORS[part] if stated is None else stated)
            stated = None
        elif part[0] == ":" and opened and opened[-1][0] == "(" and (number := _number(part[1:])) is not None:
            stated = number
        else:
            runs += _texts(part[1:] if part[0] == "\\" and len(part) > 1 else part)
    if opened:
        raise InvalidArgument.of(field, f"{opened[-1][0]!r} is not closed; write \\{opened[-1][0]} for the character")
    return _sections(runs)


def _open(opened: list[tuple[str, int]], bracket: str, start: int, field: str) -> None:
    if len(opened) == MAX_BRACKET_DEPTH:
        raise InvalidArgument.of(field, f"must have at most {MAX_BRACKET_DEPTH} brackets in each other")
    opened.append((bracket, start))


def _closed(opened: list[tuple[str, int]], bracket: str, field: str) -> int:
    """Return the run after the bracket that this one closes."""
    if not opened or opened[-1][0] != _OPENING[bracket]:
        message = f"{bracket!r} closes no {_OPENING[bracket]!r}; write \\{bracket} for the character"
        raise InvalidArgument.of(field, message)
    return opened.pop()[1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _multiply(runs: _Runs, start: int, factor: float) -> None:
    for place, run in enumerate(runs[start:], start):
        runs[place] = run and Fragment(run.text, run.weight * factor)


def _texts(text: str) -> _Runs:
    """Return a text's fragments, with None for each BREAK."""
    first, *others = _BREAK.split(text)
    return [Fragment(first), *(run for other in others for run in (None, Fragment(other)))]


def _sections(runs: _Runs) -> list[list[Fragment]]:
    sections: list[list[Fragment]] = [[]]
    for run in runs:
        if run is None:
            sections.append([])
        else:
            sections[-1].append(run)
    # The last BREAK of a prompt begins no chunk.
    return sections[:-1] if len(sections) > 1 and not any(run.text for run in sections[-1]) else sections


def _merged(section: list[Fragment]) -> list[Fragment]:
    """Return a section's fragments with text, neighbours of one weight as one; blanks go with their left neighbour."""
    merged: list[Fragment] = []
    for fragment in section:
        if merged and (merged[-1].weight == fragment.weight or not fragment.text.strip()):
            merged[-1] = Fragment(merged[-1].text + fragment.text, merged[-1].weight)
        elif fragment.text:
            merged.append(fragment)
    return merged


_COMPEL_WEIGHT = r"\++|-+|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?!\w)|nan(?!\w)|inf(?!\w)"
_COMPEL_PART = re.compile(
    rf"""\\(?P<escaped>.)|(?P<bracket>[()"])(?P<weight>(?<=[)"])(?:{_COMPEL_WEIGHT}))?"""
    r"""|(?P<word>(?:\\.|[^\s()",.=\\+-]|[+-](?![\s()",.=+-]|$))+)(?P<signs>(?:\++|-+)(?=[\s()",.=]|$))?"""
    r"|(?P<other>.)",
    re.DOTALL | re.IGNORECASE,
)
# Further signs leave the weight out of range, or at 0.
_MOST_SIGNS = 1000
_COMPEL_OPERATOR = re.compile(r"(?<!\\)\.(?:and|add|blend|swap|attend)\(|\b(?:with|use)Lora\(")


def _parse_compel(text: str, field: str) -> list[list[Fragment]]:
    if found := _COMPEL_OPERATOR.search(text):
        raise InvalidArgument.of(field, f"must not have {found[0]}…): of compel's syntax only weights are supported")
    runs: _Runs = []
    opened: list[tuple[str, int]] = []
    for part in _COMPEL_PART.finditer(text):
        bracket = part["bracket"]
        if bracket is None:
            literal = part["escaped"] or part["other"] or _ESCAPE.sub(r"\1", part["word"])
            runs.append(Fragment(literal, _factor(part["signs"])))
        elif bracket == "(" or (bracket == '"' and '"' not in (one for one, _ in opened)):
            before = text[max(part.start() - 1, 0) : part.start()]
            runs.append(Fragment(" " if before.strip('( "') else ""))
            _open(opened, bracket, len(runs), field)
            runs.append(Fragment(part["weight"] or ""))
        else:
            _multiply(runs, _closed(opened, bracket, field), _factor(part["weight"]))
            runs.append(Fragment(" " if text[part.end() : part.end() + 1].isalnum() else ""))
    if opened:
        raise InvalidArgument.of(field, f"{opened[-1][0]!r} is not closed; write \\{opened[-1][0]} for the character")
    return [[run for run in runs if run is not None]]


def _factor(weight: str | None) -> float:
    """Return the factor of compel's signs or number; 1 for none."""
    if not weight:
        return 1.0
    if weight[0] in "+-":
        return math.pow(_STEP if weight[0] == "+" else _DOWN_STEP, min(len(weight), _MOST_SIGNS))
    return float(weight)
