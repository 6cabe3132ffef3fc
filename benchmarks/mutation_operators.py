"""Mutants of a source file: the operators of mutmut that leave its types as they are, and a few of our own.

What a type checker would refuse (None for an argument, a missing one, another name in `__all__`) tells nothing of tests
and is not made. Left alone is what no caller can hold us to: calls of a logger, texts meant for people, annotations,
imports.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

_LOG_CALL = m.Call(func=m.Attribute(value=m.Name("logger")))
_TYPE_CALL = m.Call(func=m.Name("isinstance") | m.Name("TypeVar") | m.Name("cast"))
_DOCSTRING = m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString() | m.ConcatenatedString())])
# Decorators and unions of types are worked out as the module is loaded: any mistake there shows at once or never.
_SKIPPED = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
_UNION = m.BinaryOperation(operator=m.BitOr())
_EXPORTS = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name("__all__"))])])
_KEPT_STATEMENTS = m.Expr(value=m.SimpleString() | m.Ellipsis() | m.Yield() | _LOG_CALL)
_OUTLIVING = m.AssignTarget(target=m.Attribute() | m.Subscript())
_EFFECTS = m.Expr() | m.Assign(targets=[_OUTLIVING]) | m.AugAssign() | m.Del()


@dataclass(frozen=True)
class Mutant:
    """`lines` (from 1) are those of the statement's part that changes; `before` and `after` the text that differs."""

    path: str
    scope: str
    operator: str
    lines: range
    before: str
    after: str
    source: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The same wherever in its file the function stands."""
        return self.path, self.scope, self.before, self.after

    def __str__(self) -> str:
        return f"{self.path}:{self.lines.start} {self.scope}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Change:
    """`text` instead of what stands between `start` and `end`, (line, column) each."""

    scope: str
    operator: str
    first_line: int
    place: CodeRange
    text: str


def remove_effect(node: cst.BaseSmallStatement) -> Iterable[cst.BaseSmallStatement]:
    """A call for its effect, or an assignment to what outlives the function, is not done."""
    if m.matches(node, _EFFECTS) and not m.matches(node, _KEPT_STATEMENTS):
        yield cst.Pass()


def remove_keyword_argument(node: cst.Call) -> Iterable[cst.Call]:
    """An argument that has a name gets its default."""
    for argument in node.args:
        if argument.keyword is not None:
            rest = [each for each in node.args if each is not argument]
            yield node.with_changes(
                args=[*rest[:-1], rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if rest else []
            )


def change_text(node: cst.SimpleString) -> Iterable[cst.BaseString]:
    """An identifier (a reason, a key, a field's name) becomes another one; sentences stay."""
    if " " not in str(node.evaluated_value).strip():
        yield from list(mutators.operator_string(node))[:1]


_KEYWORDS = (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Break, cst.Continue)
_OPERATIONS = (cst.BinaryOperation, cst.UnaryOperation, cst.BooleanOperation, cst.ComparisonTarget, cst.AugAssign)
_OPERATORS = (
    (cst.BaseNumber, mutators.operator_number),
    (cst.Name, mutators.operator_name),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.Call, mutators.operator_symmetric_string_methods_swap),
    (cst.Call, mutators.operator_unsymmetrical_string_methods_swap),
    (_KEYWORDS, mutators.operator_keywords),
    (_OPERATIONS, mutators.operator_swap_op),
    (cst.IfExp, mutators.operator_if_exp),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.BaseSmallStatement, remove_effect),
    (cst.Call, remove_keyword_argument),
    (cst.SimpleString, change_text),
)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: cst.Module, scopes: Collection[str] | None) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self._module, self._wanted = module, scopes
        self._scopes: list[cst.FunctionDef | cst.ClassDef] = []
        self._statements: list[cst.CSTNode] = []
        # The expressions and statements of a line, which have a place in the text.
        self._anchors: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._is_skipped(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scopes.append(node)
        if isinstance(node, cst.BaseStatement):
            self._statements.append(node)
        if isinstance(node, cst.BaseExpression | cst.BaseSmallStatement):
            self._anchors.append(node)
        self.changes += self._changes(node)
        return True

    def _is_skipped(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.FunctionDef() | cst.ClassDef():
                return self._wanted is not None and not self._holds_wanted(node)
            case cst.Call():
                return m.matches(node, _LOG_CALL | _TYPE_CALL)
            case cst.SimpleStatementLine():
                return m.matches(node, _DOCSTRING | _EXPORTS)
            case cst.BinaryOperation():
                return not self._scopes and m.matches(node, _UNION)
            case cst.SimpleString():
                # A part of a sentence that has several lines.
                return bool(self._anchors) and isinstance(self._anchors[-1], cst.ConcatenatedString)
        return isinstance(node, _SKIPPED)

    def _holds_wanted(self, node: cst.FunctionDef | cst.ClassDef) -> bool:
        name = self._scope(node)
        return any(scope == name or scope.startswith(f"{name}.") for scope in self._wanted or ())

    def _scope(self, *within: cst.FunctionDef | cst.ClassDef) -> str:
        return ".".join(scope.name.value for scope in (*self._scopes, *within))

    def on_leave(self, original_node: cst.CSTNode) -> None:
        for stack in (self._statements, self._anchors, self._scopes):
            if stack and stack[-1] is original_node:
                stack.pop()

    def _changes(self, node: cst.CSTNode) -> Iterator[Change]:
        for kind, operator in _OPERATORS:
            if isinstance(node, kind):
                for mutated in operator(node):  # type: ignore[arg-type]
                    yield self._in_anchor(operator.__name__, node, mutated)
        if isinstance(node, cst.If | cst.While):
            yield self._change("force_condition", node.test, "False")
        if isinstance(node, cst.If):
            yield self._change("force_condition", node.test, "True")
        if isinstance(node, cst.For | cst.CompFor):
            yield self._change("empty_loop", node.iter, "()")
        if isinstance(node, cst.Match) and len(node.cases) > 1:
            yield from (self._change("remove_case", case, "") for case in node.cases)

    def _in_anchor(self, operator: str, node: cst.CSTNode, mutated: cst.CSTNode) -> Change:
        anchor = self._anchors[-1]
        changed = mutated if anchor is node else anchor.deep_replace(node, mutated)
        assert isinstance(changed, cst.CSTNode)
        return self._change(operator, anchor, self._module.code_for_node(changed))

    def _change(self, operator: str, anchor: cst.CSTNode, text: str) -> Change:
        first = self.get_metadata(PositionProvider, self._statements[-1]).start.line
        place = self.get_metadata(PositionProvider, anchor)
        return Change(self._scope(), operator.removeprefix("operator_"), first, place, text)


class Source:
    """A file, and what may be changed in it; where `scopes` are given, in these functions and classes and those that
    they stand in."""

    def __init__(self, root: Path, path: str, scopes: Collection[str] | None = None) -> None:
        self._path = path
        # Every node of a module that was just parsed stands in one place: none has to be copied before it is visited.
        wrapper = MetadataWrapper(cst.parse_module((root / path).read_text()), unsafe_skip_copy=True)
        finder = _Finder(wrapper.module, scopes)
        wrapper.visit(finder)
        self.changes = finder.changes
        self._text = wrapper.module.code
        self._lines = self._text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def mutants(self, changes: Iterable[Change]) -> list[Mutant]:
        """In the order of the changes, without those that change nothing, or leave no Python."""
        made = (self._mutant(change) for change in changes)
        different = {mutant.source: mutant for mutant in made if mutant.source != self._text}
        return [mutant for source, mutant in different.items() if _compiles(source)]

    def _mutant(self, change: Change) -> Mutant:
        start = self._starts[change.place.start.line - 1] + change.place.start.column
        end = self._starts[change.place.end.line - 1] + change.place.end.column
        touched = range(change.place.start.line - 1, change.place.end.line)
        before = "".join(self._lines[touched.start : touched.stop])
        at = start - self._starts[touched.start]
        after = before[:at] + change.text + before[at + end - start :]
        lines = range(change.first_line, change.place.end.line + 1)
        mutated = self._text[:start] + change.text + self._text[end:]
        return Mutant(self._path, change.scope, change.operator, lines, _flat(before), _flat(after), mutated)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
