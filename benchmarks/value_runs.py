"""Play one log through live suites by every arm, alternating: the runs of `benchmarks.cache_value`.

Each suite is `pentimento up` with two workers of each model, which share the machine's cores: a device that holds both
models. The suites differ in their gateways' selector profiles. All stay up, so that arms can alternate; the others are
idle. An arm keeps `in_flight` requests running, in the order of the log.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pentimento.domain.generation import FromImage, FromLatent, Provenance
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.profiles.document import Profile, profiles_to_json
from pentimento.profiles.kinds import start_of
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import LocalSuite, local_suite
from zoo.scene_log import SceneLog

HEAVY, LIGHT = "tiny-heavy", "tiny-light"
COPIES = 2
OTHER_SEED = 1_000_000
# No hit is generated again during a run: an idle suite would take the cores of the serving one. The cache is waited
# for: the workers have all cores, and a lookup that waits for one longer than usual is no miss here.
SETTINGS = f"""[common]
quality_sample_share = 0.0
part_wait_factor = 30.0
[controller]
heavy = "{HEAVY}"
small = ["{LIGHT}"]
"""


@dataclass(frozen=True)
class Arm:
    """Describe a way of serving the log: its suite, whether the cache is used, and the requested model ("" leaves the
    choice to the plan)."""

    name: str
    suite: str
    cached: bool = True
    model: str = ""


VANILLA, ALL_LIGHT = Arm("vanilla", "both", cached=False), Arm("all-light", "both", cached=False, model=LIGHT)
LATENTS, IMAGES, BOTH = Arm("latents", "latents"), Arm("images", "images"), Arm("both", "both")
REUSING = (LATENTS, IMAGES, BOTH)
ARMS = (VANILLA, *REUSING, ALL_LIGHT)


@dataclass(frozen=True)
class ServedImage:
    """Hold an image of the log: its bytes, its start with the reason, and the skipped steps of the model."""

    data: bytes
    model: str
    kind: str
    saved_steps: int
    reason: str = ""

    @classmethod
    def of(cls, image: GeneratedImage) -> "ServedImage":
        made = image.provenance
        return cls(image.data, made.route.model, start_kind(made), made.steps_saved, made.route.reason)


def start_kind(made: Provenance) -> str:
    """Return noise, latent or image."""
    match made.route.start:
        case FromLatent():
            return "latent"
        case FromImage():
            return "image"
    return "noise"


@dataclass
class ArmRun:
    """Hold an arm's images by row of the log, and its rounds' seconds."""

    images: dict[int, ServedImage] = field(default_factory=dict)
    round_s: list[float] = field(default_factory=list)

    def data(self, rows: Sequence[int]) -> list[bytes]:
        """Return the rows' encoded images."""
        return [self.images[row].data for row in rows]


@dataclass(frozen=True)
class LogPlan:
    """Describe how a log is played: `warm_count` requests fill the caches, then `round_count` rounds, with `in_flight`
    requests running."""

    warm_count: int
    count: int
    round_count: int
    in_flight: int
    first_seed: int

    @property
    def warm_rows(self) -> range:
        return range(self.warm_count)

    @property
    def rows(self) -> range:
        """Return the rows that count."""
        return range(self.warm_count, self.warm_count + self.count)

    @property
    def rounds(self) -> list[range]:
        """Return the rows of each round, in the order of the log."""
        edges = [self.warm_count + self.count * number // self.round_count for number in range(self.round_count + 1)]
        return [range(first, last) for first, last in pairwise(edges)]


def in_turns(arms: Sequence[Arm], number: int) -> Sequence[Arm]:
    """Return the arms in the order of that round: forwards and backwards, so that none always follows the same."""
    return arms if number % 2 == 0 else arms[::-1]


class LogPlayer:
    """Play the rows of a log by arms."""

    def __init__(
        self,
        log: SceneLog,
        plan: LogPlan,
        suites: Mapping[str, LocalSuite],
        told: Callable[[str], None],
        arms: Sequence[Arm] = ARMS,
    ) -> None:
        self._log = log
        self._plan = plan
        self._suites = suites
        self._told = told
        self._arms = arms
        self.runs = {arm.name: ArmRun() for arm in arms}

    def play_all(self) -> dict[str, ArmRun]:
        """Return the runs of all arms: the caches warmed, then the rounds."""
        for arm in self._arms:
            if arm.cached:
                self._play(arm, self._plan.warm_rows, "warm-up")
        for number, rows in enumerate(self._plan.rounds):
            for arm in in_turns(self._arms, number):
                seconds = self._play(arm, rows, f"round {number + 1} of {self._plan.round_count}")
                self.runs[arm.name].round_s.append(seconds)
        return self.runs

    def generate_vanilla(self, rows: Sequence[int], seeds_from: int = 0) -> dict[int, ServedImage]:
        """Return the heavy model's images of the rows; `seeds_from` gives other seeds."""
        generated, seconds = asyncio.run(self._generate(VANILLA, rows, seeds_from))
        self._told(f"vanilla, for comparison: {len(rows)} in {seconds:.1f} s")
        return generated

    def _play(self, arm: Arm, rows: Sequence[int], what: str) -> float:
        generated, seconds = asyncio.run(self._generate(arm, rows))
        self.runs[arm.name].images |= generated
        hits = sum(image.kind != "noise" for image in generated.values())
        self._told(f"{arm.name}, {what}: {len(rows)} in {seconds:.1f} s, {hits} from the cache")
        return seconds

    async def _generate(
        self, arm: Arm, rows: Sequence[int], seeds_from: int = 0
    ) -> tuple[dict[int, ServedImage], float]:
        generated: dict[int, ServedImage] = {}
        left = iter(rows)
        async with AsyncClient(self._suites[arm.suite].endpoint.public) as client:

            async def one_after_the_other() -> None:
                for row in left:
                    image = await client.generate(self._request(arm, row, seeds_from))
                    generated[row] = ServedImage.of(image)

            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(self._plan.in_flight):
                    group.create_task(one_after_the_other())
            return generated, time.monotonic() - began

    def _request(self, arm: Arm, row: int, seeds_from: int) -> ImageRequest:
        return ImageRequest(
            self._log.prompts[row],
            model=arm.model,
            seed=self._plan.first_seed + seeds_from + row,
            cache=CacheMode.READ_WRITE if arm.cached else CacheMode.OFF,
            feature_reuse=False,
        )


@contextmanager
def value_suites(
    folder: Path, profiles: Mapping[str, Sequence[Profile]], told: Callable[[str], None]
) -> Iterator[dict[str, LocalSuite]]:
    """Yield a running suite for each set of profiles, by its name."""
    with ExitStack() as stack:
        suites = {}
        for name, chosen in profiles.items():
            suites[name] = stack.enter_context(local_suite(suite_flags(folder / name, chosen)))
            told(f"suite {name} is up after {suites[name].start_s:.0f} s")
        yield suites


def suite_flags(folder: Path, profiles: Sequence[Profile], told: str = SETTINGS) -> list[str]:
    """Write these profiles and settings, and return the suite's flags."""
    folder.mkdir(parents=True)
    settings = folder / "settings.toml"
    settings.write_text(told)
    flags = ["--model", HEAVY, "--model", LIGHT, "--workers", str(COPIES), "--device", "cpu"]
    # Every arm takes all steps: what the cache saves is measured alone.
    flags += ["--policy", "resident-mixture", "--config", str(settings), "--thinning", "off"]
    for profile in profiles:
        path = folder / f"{start_of(profile).value}.json"
        path.write_text(profiles_to_json(profile))
        flags += ["--profiles", str(path)]
    return flags
