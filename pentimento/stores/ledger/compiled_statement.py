"""A statement as a database's driver is given it, with the parameters of each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Dialect


@dataclass(frozen=True)
class CompiledStatement:
    """What the driver is given. `places`: names of the parameters in their order, none where they go by name;
    `constants`: values of the statement's own parameters."""

    text: str
    places: tuple[str, ...]
    constants: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return what the driver is given for a run with these values of the statement's bound parameters."""
        found = {**self.constants, **values} if self.constants else values
        return tuple([found[name] for name in self.places]) if self.places else found


def compile_statement(statement: Any, dialect: Dialect, columns: Sequence[str] = ()) -> CompiledStatement:
    """Return the statement for that dialect. `columns`: those that an INSERT or UPDATE sets from the values of each
    run, besides the statement's bound parameters."""
    made = statement.compile(dialect=dialect, column_keys=list(columns) or None)
    constants = {name: value for name, value in made.params.items() if value is not None}
    return CompiledStatement(str(made), tuple(getattr(made, "positiontup", None) or ()), constants)
