"""Compile a statement for a database's driver, with the parameters of each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Dialect


@dataclass(frozen=True)
class CompiledStatement:
    """Hold a statement for the driver. `places`: names of the parameters in their order, empty if they are passed by
    name; `constants`: values of the statement's own parameters."""

    text: str
    places: tuple[str, ...]
    constants: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the driver's parameters for a run with these values of the bound parameters."""
        found = {**self.constants, **values} if self.constants else values
        return tuple([found[name] for name in self.places]) if self.places else found


def compile_statement(statement: Any, dialect: Dialect, columns: Sequence[str] = ()) -> CompiledStatement:
    """Return the statement for that dialect. `columns`: set by an INSERT or UPDATE from the values of each run, in
    addition to the statement's bound parameters."""
    made = statement.compile(dialect=dialect, column_keys=list(columns) or None)
    constants = {name: value for name, value in made.params.items() if value is not None}
    return CompiledStatement(str(made), tuple(getattr(made, "positiontup", None) or ()), constants)
