"""Register, remove and list variants and cascades: in the ledger first, then in memory, which plans are made from."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError, ResourceExhausted
from pentimento.domain.models import (
    OBJECTS_SOURCE,
    CascadeVariant,
    DeviceCost,
    ModelVariant,
    RegisteredModels,
    RegisteredRow,
)
from pentimento.files.json_values import from_json, to_json
from pentimento.profiles.catalogue import ReusePromise, with_profiled_shares
from services.controller.checks import check_cascade, check_text
from services.controller.model_checks import check_variant

if TYPE_CHECKING:
    from pentimento.stores.ledger.fleet_ledger import FleetLedger

T = TypeVar("T", ModelVariant, CascadeVariant)
R = TypeVar("R")

logger = logging.getLogger(__name__)

MODEL, CASCADE = "model", "cascade"
MAX_REGISTERED = 4096


class ModelRepository:
    """Hold the registered models and cascades, on one event loop. Registration needs a ledger. `on_change` is called
    after every change. `promise`: the requirements for hand-over profiles."""

    def __init__(
        self,
        ledger: "FleetLedger | None" = None,
        on_change: Callable[[], None] = lambda: None,
        promise: ReusePromise | None = None,
    ) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self._promise = promise or ReusePromise()
        # Serialises the checks and changes of all callers.
        self._turn = asyncio.Lock()
        self._models: dict[str, ModelVariant] = {}
        self._cascades: dict[str, CascadeVariant] = {}

    @property
    def registered(self) -> RegisteredModels:
        """Return all registered models and cascades, ordered by name."""
        models = tuple(self._models[name] for name in sorted(self._models))
        return RegisteredModels(models, tuple(self._cascades[name] for name in sorted(self._cascades)))

    @property
    def costs(self) -> tuple[DeviceCost, ...]:
        """Return the costs of the registered models."""
        return tuple(on for name in sorted(self._models) for on in self._models[name].costs)

    @property
    def digests(self) -> dict[str, str]:
        """Return the digests of the registered models, by name."""
        return {name: variant.digest for name, variant in self._models.items()}

    @property
    def stored_digests(self) -> Iterable[str]:
        """Return the digests of the models' files in the suite's object store."""
        models = (model for model in self._models.values() if model.source.startswith(OBJECTS_SOURCE))
        return [file.digest for model in models for file in model.stored_files]

    def model(self, name: str) -> ModelVariant:
        """Return a registered model. Raises NotFound."""
        if name not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise NotFound("NOT_REGISTERED", f"name: no model {name[:80]!r} is registered ({known:.400})")
        return self._models[name]

    def cascade(self, name: str) -> CascadeVariant | None:
        """Return the cascade of that name; None where none is registered."""
        return self._cascades.get(name)

    async def load(self) -> None:
        """Load the ledger's registrations. Changes state. Unreadable ones are skipped, and stay in the ledger."""
        rows = await asyncio.wrap_future(self._writable().registered())
        self._models = {one.name: one for one in _read(rows, MODEL, ModelVariant)}
        self._cascades = {one.name: one for one in _read(rows, CASCADE, CascadeVariant)}
        self._on_change()

    async def register_model(self, variant: ModelVariant) -> None:
        """Register a variant; of the registered one only the signature may change. Changes state. Raises
        FailedPrecondition NAME_TAKEN if the name has another variant."""
        check_variant(variant)
        async with self._turn:
            known = self._models.get(variant.name)
            if known is not None and variant.signature and replace(known, signature=variant.signature) == variant:
                await self._sign(variant)
            else:
                await self._register(self._models, MODEL, variant, variant.digest)

    async def remove_model(self, name: str) -> None:
        """Remove a variant. Changes state. Raises NotFound, and FailedPrecondition MODEL_IN_USE while a cascade names
        it."""
        check_text("name", name)
        async with self._turn:
            if users := [cascade.name for cascade in self._cascades.values() if name in cascade.models]:
                raise FailedPrecondition("MODEL_IN_USE", f"name: {name} is a model of {', '.join(sorted(users))}")
            await self._remove(self._models, MODEL, name)

    async def register_cascade(self, cascade: CascadeVariant, handover_profiles: Sequence[str] = ()) -> CascadeVariant:
        """Register a cascade, and return it with the reuse shares that the profiles' texts allow. Changes state. Raises
        FailedPrecondition MODEL_NOT_REGISTERED, NAME_TAKEN."""
        check_cascade(cascade)
        async with self._turn:
            if lacking := [name for name in cascade.models if name not in self._models]:
                raise FailedPrecondition(
                    "MODEL_NOT_REGISTERED", f"cascade.models: {', '.join(lacking)} must be registered first"
                )
            cascade = with_profiled_shares(cascade, handover_profiles, self.digests, self._promise)
            await self._register(self._cascades, CASCADE, cascade, "")
        return cascade

    async def remove_cascade(self, name: str) -> None:
        """Remove a cascade. Changes state. Raises NotFound."""
        for index, model in enumerate(name.split(">")):
            check_text(f"name[{index}]", model)
        async with self._turn:
            await self._remove(self._cascades, CASCADE, name)

    async def _register(self, known: dict[str, T], kind: str, one: T, digest: str) -> None:
        if one.name not in known and len(known) >= MAX_REGISTERED:
            raise ResourceExhausted("REPOSITORY_FULL", f"at most {MAX_REGISTERED} of a kind are registered")
        row, ledger = _row(kind, one, digest), self._writable()

        async def change() -> None:
            if not await asyncio.wrap_future(ledger.register(row)):
                message = (
                    f"{kind}.name: {one.name} is registered with {_other(known.get(one.name), one)}; remove that first"
                )
                raise FailedPrecondition("NAME_TAKEN", message)
            known[one.name] = one
            logger.info("registered", extra={"kind": kind, "model": one.name})
            self._on_change()

        await wholly(change())

    async def _sign(self, variant: ModelVariant) -> None:
        row, ledger = _row(MODEL, variant, variant.digest), self._writable()

        async def change() -> None:
            if not await asyncio.wrap_future(ledger.replace(row)):
                raise NotFound("NOT_REGISTERED", f"model.name: {variant.name} is no longer registered")
            self._models[variant.name] = variant
            key_id = variant.signature.key_id if variant.signature else ""
            logger.info("signed", extra={"model": variant.name, "key_id": key_id})
            self._on_change()

        await wholly(change())

    async def _remove(self, known: dict[str, T], kind: str, name: str) -> None:
        ledger = self._writable()

        async def change() -> None:
            there = await asyncio.wrap_future(ledger.unregister(kind, name))
            # If only the ledger lacks it, an earlier call removed it there without learning of its success.
            if known.pop(name, None) is None and not there:
                raise NotFound("NOT_REGISTERED", f"name: no {kind} {name} is registered")
            logger.info("removed", extra={"kind": kind, "model": name})
            self._on_change()

        await wholly(change())

    def _writable(self) -> "FleetLedger":
        if self._ledger is None:
            message = "this controller keeps no registrations: start it with --ledger-url"
            raise FailedPrecondition("NO_LEDGER", message)
        return self._ledger


def _row(kind: str, one: ModelVariant | CascadeVariant, digest: str) -> RegisteredRow:
    return RegisteredRow(kind, one.name, digest, json.dumps(to_json(one), sort_keys=True))


def _other(known: ModelVariant | CascadeVariant | None, one: ModelVariant | CascadeVariant) -> str:
    """Name the fields that differ between an existing registration and the new one."""
    fields = [name for name, value in to_json(one).items() if known is not None and to_json(known).get(name) != value]
    return f"other {', '.join(fields)}" if fields else "something else"


def _read(rows: Iterable[RegisteredRow], kind: str, of: type[T]) -> list[T]:
    found: list[T] = []
    for row in rows:
        if row.kind != kind:
            continue
        try:
            found.append(from_json(of, json.loads(row.document)))
        except (PentimentoError, ValueError):
            logger.error("an unreadable registration is skipped", extra={"kind": kind, "model": row.name})
    return found


async def wholly(change: Coroutine[Any, Any, R]) -> R:
    """Return the result of a change of the ledger and then of memory. A caller that is cancelled still waits for the
    change, so that memory matches the ledger; a second cancel ends the wait immediately."""
    changing = asyncio.ensure_future(change)
    try:
        return await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait({changing})
        raise
