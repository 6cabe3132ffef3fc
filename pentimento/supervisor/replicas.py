"""Store the wanted numbers of processes, written by `pentimento scale`, and the running ones, written by the
supervisor. Both are files in the state directory while the suite runs."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.unix_sockets import locked

MAX_REPLICAS = 64


@dataclass(frozen=True)
class GroupStatus:
    """Describe a group of equal processes: the `wanted` number; `states` by process name, `starting`, `serving` or
    `stopping`; `failures`: the reasons why added processes failed to start, by name."""

    wanted: int
    states: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Return whether the wanted number of processes serves, and no others are left."""
        return len(self.states) == self.wanted and set(self.states.values()) <= {"serving"}


class ReplicaFiles:
    """Read and write the files of one state directory. Each file is replaced whole."""

    def __init__(self, state_directory: Path) -> None:
        self._wanted = state_directory / "wanted.json"
        self._there = state_directory / "replicas.json"

    def want(self, group: str, count: int) -> None:
        """Write the wanted count of a group. The counts of other groups stay, also if another process writes now."""
        with locked(self._wanted.parent):
            _replace(self._wanted, {**self.wanted(), group: count})

    def forgo(self, group: str, asked: int) -> None:
        """Reduce the wanted count of a group by one, if it is still `asked` and above 1."""
        with locked(self._wanted.parent):
            wanted = self.wanted()
            if wanted.get(group) == asked > 1:
                _replace(self._wanted, {**wanted, group: asked - 1})

    def wanted(self) -> dict[str, int]:
        """Return the wanted counts by group; empty before any request. Raises InvalidArgument for an invalid file."""
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
        """Write the status of each group."""
        _replace(self._there, {name: asdict(status) for name, status in groups.items()})

    def there(self) -> dict[str, GroupStatus]:
        """Return the supervisor's last statuses by group; empty before the first."""
        try:
            return {name: GroupStatus(**status) for name, status in json.loads(self._there.read_text()).items()}
        except FileNotFoundError:
            return {}

    def forget(self) -> None:
        """Remove both files: the counts of an ended suite do not apply to the next one."""
        self._wanted.unlink(missing_ok=True)
        self._there.unlink(missing_ok=True)


def _replace(path: Path, document: Mapping[str, object]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)
