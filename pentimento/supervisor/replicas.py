"""How many processes of a kind a running suite has: what is wanted, written by `pentimento scale`, and what is there,
written by the supervisor. Both are files in the state directory, for as long as the suite runs."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.unix_sockets import locked

MAX_REPLICAS = 64


@dataclass(frozen=True)
class GroupStatus:
    """Processes that are alike: `wanted` of them; `states` by process, `starting` or `serving`, and `stopping` for
    those that leave; why processes that were added did not come up, by name."""

    wanted: int
    states: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Return whether as many serve as are wanted, and nobody else is there."""
        return len(self.states) == self.wanted and set(self.states.values()) <= {"serving"}


class ReplicaFiles:
    """Of one state directory. Each file is replaced whole."""

    def __init__(self, state_directory: Path) -> None:
        self._wanted = state_directory / "wanted.json"
        self._there = state_directory / "replicas.json"

    def want(self, group: str, count: int) -> None:
        """Write how many are wanted of a group, beside what is wanted of others, by whoever else asks now too."""
        with locked(self._wanted.parent):
            _replace(self._wanted, {**self.wanted(), group: count})

    def forgo(self, group: str, asked: int) -> None:
        """Write that one less is wanted of a group than was asked for, unless something else is asked for by now."""
        with locked(self._wanted.parent):
            wanted = self.wanted()
            if wanted.get(group) == asked > 1:
                _replace(self._wanted, {**wanted, group: asked - 1})

    def wanted(self) -> dict[str, int]:
        """Return what is wanted by group; empty where nobody asked. Raises InvalidArgument for anything else."""
        try:
            found = json.loads(self._wanted.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidArgument.of(self._wanted.name, f"must be JSON: {error}") from error
        counts: dict[str, int] = found if isinstance(found, dict) else {"": -1}
        for group, count in counts.items():
            if type(count) is not int or not 1 <= count <= MAX_REPLICAS:
                raise InvalidArgument.of(self._wanted.name, f"{group!r} must be between 1 and {MAX_REPLICAS}")
        return counts

    def tell(self, groups: Mapping[str, GroupStatus]) -> None:
        """Write what is there."""
        _replace(self._there, {name: asdict(status) for name, status in groups.items()})

    def there(self) -> dict[str, GroupStatus]:
        """Return what the supervisor told last, by group; empty before it told anything."""
        try:
            return {name: GroupStatus(**status) for name, status in json.loads(self._there.read_text()).items()}
        except FileNotFoundError:
            return {}

    def forget(self) -> None:
        """Remove both: what was wanted of a suite that is gone is not wanted of the next."""
        self._wanted.unlink(missing_ok=True)
        self._there.unlink(missing_ok=True)


def _replace(path: Path, document: Mapping[str, object]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)
