"""Attack a running suite, and measure the attacks' effect on it and on another tenant.

The suite runs with tokens and TLS (or open, with `--open`), its workers with real weights. `benchmarks.attacks` has the
attacks; each runs in a separate process at a low priority, because an attacker on another machine would not take the
suite's cores. A light open-loop load of another tenant runs before each attack, in a quiet phase, and during it; its
p99 under attack is compared with its own before. Calls that generate images are a separate figure.

A process's memory is the kernel's peak since the attack began (VmHWM), less its memory before the first attack. Memory
that stays is read after a rest, since collectors run and freed memory returns when no calls come. After each attack all
processes must be the same as before, and a reference image must equal the one generated before the first attack, byte
by byte. A suite that does not recover is started again for the next attack.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.attacks.calls import CROSSED
from benchmarks.attacks.table import ATTACKS
from benchmarks.attacks.target import PUBLIC, AttackTarget
from benchmarks.bystander import GENERATE, Bystander
from benchmarks.suites.processes import members, peak_rss_bytes, reset_peak
from lab.fixtures.certificates import Authority
from lab.runs.intervals import percentile, ratio_interval
from lab.runs.measure import Figure, Interval, Options, Target, at_most, counted, parse_options, publish
from pentimento.domain.errors import PentimentoError
from pentimento.domain.tenants import Role
from pentimento.rpc import new_token, token_entry
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite

MIB = 1 << 20
GROWTH = at_most(256.0, "MiB")
KEPT = at_most(64.0, "MiB")
SLOWDOWN = at_most(2.0, "x")
# One image at a time: an image that shares steps with others is equal within 1e-4, not by the byte.
ENVIRONMENT = {"PENTIMENTO_UNET_WORKER_MAX_BATCH": "1"}
FLAGS = ("--device", "cpu", "--http", "127.0.0.1:0")
QUIET_S, QUICK_QUIET_S = 6.0, 2.0
AFTER_S = 1.0
ATTACK_LIMIT_S = 45.0
RECOVERY_LIMIT_S = 30.0
REST_LIMIT_S, REST_STEP_S = 30.0, 0.5
p99 = percentile(0.99)
QUICK = ("gzip_bombs", "unfinished_messages", "every_rpc_by_every_role", "one_key", "image_bombs")
# A tenth of the weight of the suite's processes; lower, and the attacker would get no time during a busy suite.
NICENESS = 10
ATTACKER = (sys.executable, "-m", "benchmarks.attacks")
LOW_PRIORITY = ("nice", "-n", str(NICENESS))


@dataclass(frozen=True)
class SuiteAccess:
    """Describe access to the suite: the tokens by role ("" in open mode), the other tenant's token, the authority's
    file."""

    tokens: dict[str, str] = field(default_factory=dict)
    bystander: str = ""
    tls_ca: str = ""
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))


@dataclass
class Played:
    """Store one attack: its answers, and its effect on the suite and the other tenant. Sizes are in MiB, by process;
    `kept_mib` is after a rest."""

    attack: str
    answers: dict[str, int] = field(default_factory=dict)
    lasted_s: float = 0.0
    growth_mib: dict[str, float] = field(default_factory=dict)
    kept_mib: dict[str, float] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    canary_ok: bool = False
    canary_s: float = 0.0
    state_mib: float = 0.0
    quiet_s: dict[str, list[float]] = field(default_factory=dict)
    attacked_s: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def crossed(self) -> list[str]:
        return [answer for answer in self.answers if answer.startswith(CROSSED)]

    def line(self) -> str:
        """Return the attack's effect in a line, with percentiles of milliseconds instead of all."""
        times = {
            f"{kind} {phase} p99 ms": round(1e3 * p99(seconds), 2)
            for phase, kinds in (("quiet", self.quiet_s), ("attacked", self.attacked_s))
            for kind, seconds in kinds.items()
            if seconds
        }
        effect = (self.answers, self.growth_mib, self.kept_mib, self.gone, self.failures)
        return f"{self.attack}: canary {self.canary_ok} after {self.canary_s} s, {effect}, {times}"


class AttackTrial:
    """Run the listed attacks on one suite."""

    def __init__(self, suite: LocalSuite, setting: SuiteAccess, folder: Path, quiet_s: float) -> None:
        self._suite = suite
        self._target = target_of(suite, setting, folder)
        self._token = setting.bystander
        self._quiet_s = quiet_s
        self._processes: dict[str, tuple[psutil.Process, int]] = {}

    async def run(self, attacks: Sequence[str]) -> list[Played]:
        """Return the outcome of each attack, up to the first that the suite did not survive."""
        trusted = Path(self._target.tls_ca).parent if self._target.tls_ca else None
        async with AsyncClient(self._suite.endpoint.public, token=self._token, tls_dir=trusted) as client:
            bystander = Bystander(client)
            reference = await bystander.canary()
            async with loaded(bystander, self._quiet_s):
                pass  # warms up
            self._processes = self._what_they_hold()
            played = []
            for name in attacks:
                played.append(await self._play(name, bystander, reference))
                print(played[-1].line(), flush=True)
                if not played[-1].canary_ok:
                    break
        return played

    async def _play(self, name: str, bystander: Bystander, reference: bytes) -> Played:
        played = Played(name)
        bystander.take()
        async with loaded(bystander, self._quiet_s):
            pass
        played.quiet_s, _ = bystander.take()
        for process, _ in self._processes.values():
            reset_peak(process)
        state = state_bytes(self._suite)
        began = time.monotonic()
        async with loaded(bystander, AFTER_S):
            played.answers = await attacked(name, self._target)
            played.lasted_s = round(time.monotonic() - began, 2)
        played.attacked_s, failures = bystander.take()
        played.failures = dict(failures)
        self._weigh(played)
        played.state_mib = round((state_bytes(self._suite) - state) / MIB, 1)
        await self._try_canary(played, bystander, reference)
        played.kept_mib = await kept_after_rest(self._processes)
        return played

    def _what_they_hold(self) -> dict[str, tuple[psutil.Process, int]]:
        """Return every process and its resident set, before the first attack."""
        found = members(self._suite.state.path)
        return {name: (process, process.memory_info().rss) for name, process in found.items()}

    def _weigh(self, played: Played) -> None:
        """Record each process's peak, less its memory before the first attack."""
        for name, (process, rss) in self._processes.items():
            peak = peak_rss_bytes(process) if process.is_running() else None
            if peak is None:
                played.gone.append(name)
                continue
            played.growth_mib[name] = round((peak - rss) / MIB, 1)

    async def _try_canary(self, played: Played, bystander: Bystander, reference: bytes) -> None:
        """Request the reference image until it is answered or the limit: requests of the attack may be queued before
        it."""
        began = time.monotonic()
        while time.monotonic() - began < RECOVERY_LIMIT_S and not played.canary_ok:
            with suppress(PentimentoError, TimeoutError):
                async with asyncio.timeout(RECOVERY_LIMIT_S):
                    played.canary_ok = await bystander.canary() == reference
            await asyncio.sleep(0.1)
        played.canary_s = round(time.monotonic() - began, 2)


async def kept_after_rest(
    processes: Mapping[str, tuple[psutil.Process, int]], limit_s: float = REST_LIMIT_S
) -> dict[str, float]:
    """Return each live process's MiB beyond the given bytes, once all are below the allowance, or at the limit."""
    end = time.monotonic() + limit_s
    while True:
        kept = {}
        for name, (process, rss) in processes.items():
            with suppress(psutil.Error):
                kept[name] = round((process.memory_info().rss - rss) / MIB, 1)
        if time.monotonic() >= end or all(KEPT.met_by(mib) for mib in kept.values()):
            return kept
        await asyncio.sleep(REST_STEP_S)


@asynccontextmanager
async def loaded(bystander: Bystander, longer_s: float) -> AsyncIterator[None]:
    """Run the other tenant's load inside the block and `longer_s` after it."""
    stop = asyncio.Event()
    load = asyncio.create_task(bystander.load(stop))
    try:
        yield
        await asyncio.sleep(longer_s)
    finally:
        stop.set()
        await load


async def attacked(name: str, target: AttackTarget) -> dict[str, int]:
    """Return the answers of the attacker's process, which is killed at the limit."""
    attacker = await asyncio.create_subprocess_exec(
        *LOW_PRIORITY, *ATTACKER, name, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(ATTACK_LIMIT_S):
            output, complaints = await attacker.communicate(target.text().encode())
    except TimeoutError:
        attacker.kill()
        await attacker.wait()
        return {"NOT DONE IN TIME": 1}
    if attacker.returncode != 0:
        raise RuntimeError(f"{name} could not be played: {complaints.decode()[-2000:]}")
    return dict(json.loads(output))


def target_of(suite: LocalSuite, setting: SuiteAccess, folder: Path) -> AttackTarget:
    addresses = {PUBLIC: suite.endpoint.public}
    # Clients call the edge over HTTP; its socket only serves the health check.
    sockets = [path for path in sorted(suite.state.sockets.glob("*.sock")) if path.stem != "edge"]
    addresses |= {path.stem: f"unix:{path}" for path in sockets}
    return AttackTarget(addresses, setting.tokens, setting.tls_ca, str(folder), suite.endpoint.http)


def state_bytes(suite: LocalSuite) -> int:
    """Return the bytes of journal, ledgers and objects."""
    total = 0
    for path in suite.state.path.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def guarded(folder: Path) -> SuiteAccess:
    """Run a suite with tokens and TLS; the attacker has a token of each role in the tenant "mallory"."""
    tokens = {role.value: new_token() for role in (Role.USER, Role.SERVICE, Role.ADMIN)}
    bystander = new_token()
    entries = [token_entry(token, "mallory", frozenset({Role(role)})) for role, token in tokens.items()]
    entries.append(token_entry(bystander, "alice", frozenset({Role.USER})))
    file = folder / "tokens.toml"
    file.write_text("\n".join(entries))
    authority = Authority(folder, "authority")
    tls = {"PENTIMENTO_FRONTDOOR_TLS_DIR": str(authority.issue("server").directory)}
    flags = ("--token-file", str(file))
    return SuiteAccess(tokens, bystander, str(authority.certificate), flags, ENVIRONMENT | tls)


@contextmanager
def setting_of(options: Options) -> Iterator[tuple[SuiteAccess, Path]]:
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        open_mode = SuiteAccess(tokens=dict.fromkeys(("user", "service", "admin"), ""))
        yield (open_mode if options.rest["open"] else guarded(folder)), folder


def main() -> int:
    options = parse_options("hostile", __doc__, add_options)
    attacks = options.rest["attacks"] or (QUICK if options.quick else list(ATTACKS))
    quiet_s = QUICK_QUIET_S if options.quick else QUIET_S
    played: list[Played] = []
    with setting_of(options) as (setting, folder):
        while len(played) < len(attacks):
            with local_suite((*FLAGS, *setting.flags), environment=setting.environment) as suite:
                trial = AttackTrial(suite, setting, folder, quiet_s)
                played += asyncio.run(trial.run(attacks[len(played) :]))
    notes = {"mode": "open" if options.rest["open"] else "tokens and TLS", "attackers_niceness": NICENESS}
    return publish(options, figures_of(played), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", action="store_true", help="no tokens, no TLS")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"some of: {', '.join(ATTACKS)} [all]")


def figures_of(played: list[Played]) -> list[Figure]:
    growth = [mib for one in played for mib in one.growth_mib.values()]
    kept = [mib for one in played for mib in one.kept_mib.values()]
    gone = sum(len(one.gone) for one in played)
    canaries = [one.canary_ok for one in played]
    crossed = sum(len(one.crossed) for one in played)
    failures = sum(sum(one.failures.values()) for one in played)
    calls = sum(len(seconds) for one in played for seconds in one.attacked_s.values())
    return [
        Figure("largest growth of a process", max(growth), GROWTH, len(growth)),
        Figure("most kept by a process after a rest", max(kept), KEPT, len(kept)),
        slowdown("another tenant's calls, p99 under attack / before", played, paints=False),
        slowdown("another tenant's pictures, p99 under attack / before", played, paints=True),
        counted("another tenant's calls that failed", failures, calls, at_most(0, "calls")),
        Figure("processes that ended", gone, at_most(0, "processes")),
        counted("canaries unlike before", canaries.count(False), len(canaries), at_most(0)),
        Figure("roles crossed, pickles loaded", crossed, at_most(0, "times")),
    ]


def slowdown(name: str, played: Sequence[Played], *, paints: bool, target: Target = SLOWDOWN) -> Figure:
    """Return p99 over all attacks ÷ p99 over all quiet phases; none if a run was too short for either."""
    quiet = milliseconds([one.quiet_s for one in played], paints)
    under_attack = milliseconds([one.attacked_s for one in played], paints)
    if min(len(quiet), len(under_attack)) < 2:
        return Figure(name, None, target)
    interval = Interval(*ratio_interval(under_attack, quiet, p99))
    return Figure(name, p99(under_attack) / p99(quiet), target, len(under_attack), interval)


def milliseconds(phases: Sequence[dict[str, list[float]]], paints: bool) -> list[float]:
    """Return the milliseconds of calls that generate images, or of the others."""
    kinds = [seconds for phase in phases for kind, seconds in phase.items() if (kind == GENERATE) == paints]
    return [round(1e3 * value, 3) for seconds in kinds for value in seconds]


if __name__ == "__main__":
    raise SystemExit(main())
