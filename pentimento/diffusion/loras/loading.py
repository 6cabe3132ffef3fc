"""Load LoRAs on separate threads into host memory while the first steps run (Katz, section 6)."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from pentimento.diffusion.loras.lora import AdapterSet, BadLora, Lora, WeightedLora
from pentimento.domain.components import ComponentRule, Loadable, victims
from pentimento.domain.errors import PentimentoError, Unavailable

logger = logging.getLogger(__name__)

ATTEMPT_COUNT = 2
_THREAD_COUNT = 2
# Loads are taken to be as long as their files: a measured time says more about the tier that it came from last time.
BYTES_PER_S = 1e9


class LoadingLoras:
    """Hold the pending loads of one request's LoRAs; see `denoising.LoraSource`. With `exactly` they take effect at
    `latest_step` and not before, even if loaded earlier, so a replay applies them at the step of the original."""

    def __init__(
        self, loads: Sequence["Future[Lora]"], weights: Sequence[float], latest_step: int, *, exactly: bool = False
    ) -> None:
        self._loads = tuple(loads)
        self._weights = tuple(weights)
        self._exactly = exactly
        self.latest_step = latest_step

    @classmethod
    def ready(cls, loras: Sequence[Lora], step: int) -> "LoadingLoras":
        """Return the source of loaded LoRAs with weight 1, which take effect at `step`."""
        loads: list[Future[Lora]] = [Future() for _ in loras]
        for load, lora in zip(loads, loras, strict=True):
            load.set_result(lora)
        return cls(loads, [1.0] * len(loads), step, exactly=True)

    def take(self, step_index: int) -> AdapterSet | None:
        """Return the LoRAs once all are loaded, else None. Raises the error of a failed load."""
        if self._exactly and step_index < self.latest_step:
            return None
        if not all(load.done() for load in self._loads):
            return None
        return tuple(
            WeightedLora(load.result(), weight) for load, weight in zip(self._loads, self._weights, strict=True)
        )


class LoraLoader:
    """Load LoRAs by digest, and keep in host memory those of most worth by `rule`, up to `memory_bytes` of their files.
    The loader's threads call `read`, and `arrived` after each load. `ask` may be called on any thread."""

    def __init__(
        self,
        read: Callable[[str], Lora],
        memory_bytes: int,
        arrived: Callable[[], None],
        rule: ComponentRule,
    ) -> None:
        self._read = read
        self._memory_bytes = memory_bytes
        self._arrived = arrived
        self._rule = rule
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="lora")
        self._lock = threading.Lock()
        self._loads: dict[str, Future[Lora]] = {}
        # The loaded LoRAs.
        self._held: dict[str, Loadable] = {}

    def ask(self, wanted: Sequence[tuple[str, float]], latest_step: int, *, exactly: bool = False) -> LoadingLoras:
        """Start missing loads of `wanted`, pairs (digest, weight), and return their source."""
        loads = self.begin([digest for digest, _ in wanted])
        return LoadingLoras(loads, [weight for _, weight in wanted], latest_step, exactly=exactly)

    def begin(self, digests: Sequence[str], *, ahead: bool = False) -> "list[Future[Lora]]":
        """Start loads of the digests that are not loaded, and return the future of each digest. Loads `ahead` of
        requests displace only LoRAs of less worth."""
        return [self._load(digest, ahead) for digest in digests]

    @property
    def has_room(self) -> bool:
        """Return whether the memory has room for one more LoRA of the mean size."""
        with self._lock:
            sizes = [one.memory_bytes for one in self._held.values()]
        return not sizes or sum(sizes) * (len(sizes) + 1) / len(sizes) <= self._memory_bytes

    @property
    def resident(self) -> tuple[str, ...]:
        """Return the digests of the loaded LoRAs."""
        with self._lock:
            return tuple(self._held)

    def close(self) -> None:
        """Start no more loads, and stop calling `arrived`. Harmless to call twice."""
        # `arrived` keeps a model alive, and the next model may need its memory before a slow file is read.
        self._arrived = lambda: None
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _load(self, digest: str, ahead: bool) -> "Future[Lora]":
        with self._lock:
            self._rule.note_use(self._held.get(digest, Loadable(digest, 0, 0.0)), time.monotonic())
            load = self._loads.get(digest)
            is_new = load is None or (load.done() and not _is_here(load))
            if load is None or is_new:
                load = self._loads[digest] = self._threads.submit(self._read_again, digest)
        # Outside the lock: if the load is already done, the callback runs here immediately.
        if is_new:
            load.add_done_callback(partial(self._ended, digest, ahead))
        return load

    def _read_again(self, digest: str) -> Lora:
        """Read a LoRA, with one retry after an error. BadLora is not retried: a second read returns the same bytes."""
        for attempt in range(1, ATTEMPT_COUNT + 1):
            try:
                return self._read(digest)
            except BadLora as error:
                refusal: PentimentoError = BadLora(error.message, error.reason)
                break
            except Exception as error:
                kind = type(error).__name__
                logger.warning("a LoRA could not be loaded (attempt %d): %s", attempt, kind)
                message = f"a LoRA could not be loaded in {ATTEMPT_COUNT} attempts ({kind})"
                refusal = Unavailable("LORA_UNAVAILABLE", message)
        # A new error: errors live long, and the traceback of the original keeps the file's bytes in memory.
        raise refusal

    def _ended(self, digest: str, ahead: bool, load: "Future[Lora]") -> None:
        now_s = time.monotonic()
        with self._lock:
            if _is_here(load):
                size_bytes = load.result().size_bytes
                self._held[digest] = Loadable(digest, size_bytes, size_bytes / BYTES_PER_S)
            needed_bytes = sum(one.memory_bytes for one in self._held.values()) - self._memory_bytes
            kept = () if ahead else (digest,)
            leaving = victims(self._rule, self._held.values(), needed_bytes, now_s, kept)
            # One that alone exceeds the memory stays until the next load.
            for name in self._held.keys() - set(kept) if leaving is None else leaving:
                self._rule.note_eviction(self._held.pop(name), now_s)
                del self._loads[name]
        self._arrived()


def _is_here(load: "Future[Lora]") -> bool:
    return load.done() and not load.cancelled() and load.exception() is None
