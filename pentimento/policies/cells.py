"""Assign tenants to cells: frontdoors that share workers and cache, each with its own journal.

    cells = read_cells(("a=host-a:50400", "b=host-b:50400"), ("a+b", "a"))
    cells.home("acme")      # the cell that accepts its new requests
    cells.formers("acme")   # cells that may hold earlier ones: ("a",) if b is its home

Rendezvous hashing (Thaler and Ravishankar, 1998): a tenant belongs to the cell of its list with the largest hash of
both names. A cell that is added takes over only its own tenants; those of a removed one spread over the others.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason
from pentimento.domain.tenants import name_of

CELL_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
# Hexadecimal digits of a request's id that name its cell, and digits in all.
_TAG_DIGITS, _ID_DIGITS = 8, 32
_ID = re.compile(rf"(?:r|p[1-9][0-9]{{0,2}})-([0-9a-f]{{{_ID_DIGITS}}})(?:-[0-9]{{1,3}})?")


@dataclass(frozen=True)
class CellMap:
    """Hold the addresses of all cells by name, and lists of names, newest first: the first one assigns new requests.

    Without any cell a suite has one frontdoor, and each tenant is at home there."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[tuple[str, ...], ...] = ((),)

    def home(self, tenant: str) -> str:
        """Return the cell of the tenant's new requests; "" without cells. An erasure that keeps the tenant gives it
        another identity, not another cell."""
        return rendezvous(name_of(tenant), self.lists[0])

    def formers(self, tenant: str) -> tuple[str, ...]:
        """Return the tenant's other cells by the earlier lists, newest first."""
        found = dict.fromkeys(rendezvous(name_of(tenant), names) for names in self.lists)
        return tuple(found)[1:]

    def cell_of(self, request_id: str) -> str:
        """Return the cell that made the id, by its tag; "" for an id without a known tag."""
        found = _ID.fullmatch(request_id)
        tag = found[1][:_TAG_DIGITS] if found else ""
        return next((name for name in self.addresses if cell_tag(name) == tag), "")

    def wrong_cell(self, name: str) -> FailedPrecondition:
        """Return the error that leads a caller to another cell: its name and address are in the metadata."""
        metadata = {"cell": name, "address": self.addresses[name]}
        message = f"the cell {name} at {self.addresses[name]} serves this request"
        return FailedPrecondition(Reason.WRONG_CELL, message, metadata=metadata)


def rendezvous(tenant: str, names: Sequence[str]) -> str:
    """Return the name with the largest BLAKE2b-64 of name, NUL and tenant; "" for no names."""

    def weight(name: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{name}\0{tenant}".encode(), digest_size=8).digest(), name

    return max(names, key=weight, default="")


def cell_tag(name: str) -> str:
    """Return the hexadecimal digits that mark a cell's requests."""
    return hashlib.blake2b(name.encode(), digest_size=_TAG_DIGITS // 2, person=b"pentimento cell").hexdigest()


def tagged_digits(cell: str) -> str:
    """Return 32 hexadecimal digits for a new id: random ones, after the cell's tag if there is a cell."""
    tag = cell_tag(cell) if cell else ""
    return tag + secrets.token_hex((_ID_DIGITS - len(tag)) // 2)


def read_cells(addresses: Sequence[str], lists: Sequence[str]) -> CellMap:
    """Return the cells of items NAME=ADDRESS and of lists NAME+NAME…, newest first; no list: all cells. Raises
    ValueError that names the setting and its limit."""
    if lists and not addresses:
        raise ValueError("--cell-lists needs --cells")
    found: dict[str, str] = {}
    for item in addresses:
        name, _, address = item.partition("=")
        if not CELL_NAME.fullmatch(name) or not address:
            limit = "NAME=ADDRESS, a name of 1 to 40 lower-case letters, digits and hyphens"
            raise ValueError(f"--cells must be {limit}, got {item!r:.80}")
        if name in found:
            raise ValueError(f"--cells must name each cell once, got {name} twice")
        found[name] = address
    if len({cell_tag(name) for name in found}) < len(found):
        raise ValueError("--cells has two names with one tag: rename one of them")
    named = tuple(tuple(text.split("+")) for text in lists) or (tuple(found),)
    for names in named:
        if unknown := [name for name in names if name not in found]:
            raise ValueError(f"--cell-lists must name cells of --cells, got {unknown[0]!r:.80}")
        if len(set(names)) < len(names):
            raise ValueError(f"--cell-lists must name each cell of a list once, got {'+'.join(names)!r:.80}")
    return CellMap(found, named)
