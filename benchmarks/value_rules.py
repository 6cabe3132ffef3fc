"""Compare eviction on the live suite: `cache_value`'s latents arm in one store a rule, each too small for the log.

The arms alternate, with vanilla as the common side. Steps saved beyond FIFO's are compared within blocks of consecutive
requests.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from benchmarks.eviction_replay import block_means
from benchmarks.value_runs import HEAVY, SETTINGS, VANILLA, Arm, ArmRun, LogPlan, LogPlayer, suite_flags
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_most, informative, measured, share
from pentimento.clients.gateway import GatewayClient
from pentimento.profiles.document import Profile
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.supervisor.local import LocalSuite, local_suite
from zoo.registry import entry_of
from zoo.scene_log import SceneLog

RULES = ("fifo", "lcbfu", "aged")
# The policy's rule for NIRVANA, and the larger share of prompts with holes that the paper saw.
PAPERS_RULE, PAPERS_HOLES = "lcbfu", 0.05
BLOCK = 20
# about 40 of the log's entries: five latents and an image each
STORE_BYTES = 1024 * 1024
SMALL = f"max_size_bytes = {STORE_BYTES}\n"


def arm_of(rule: str) -> Arm:
    """Return the latents arm under that rule."""
    return Arm(f"latents, {rule}", rule)


def rule_figures(log: SceneLog, plan: LogPlan, latents: Profile, told: Callable[[str], None]) -> list[Figure]:
    """Return the figures of every rule, played by the log."""
    arms = (Arm(VANILLA.name, RULES[0], cached=False), *map(arm_of, RULES))
    with tempfile.TemporaryDirectory(prefix="cache-value") as folder, ExitStack() as stack:
        suites = {}
        for rule in RULES:
            flags = suite_flags(Path(folder) / rule, [latents], SETTINGS.replace("[frontdoor]", f"{SMALL}[frontdoor]"))
            suites[rule] = stack.enter_context(local_suite([*flags, "--eviction", rule]))
        player = LogPlayer(log, plan, suites, told, arms)
        runs = player.play_all()
        holes = {rule: asyncio.run(hole_count(suites[rule])) for rule in RULES}
    return list(figures_of(plan, runs, holes))


async def hole_count(suite: LocalSuite) -> int:
    """Return how many lookups of the suite met a hole."""
    async with open_channel(f"unix:{suite.state.sockets}/gateway.sock", RpcChannelSettings()) as channel:
        return (await GatewayClient(channel).statistics()).hole_count


def figures_of(plan: LogPlan, runs: dict[str, ArmRun], holes: dict[str, int]) -> Iterator[Figure]:
    """Yield each rule's throughput, saved steps and holes, and what its steps exceed FIFO's by."""
    saved = {rule: saved_shares(runs[arm_of(rule).name], plan.rows) for rule in RULES}
    for rule in RULES:
        name = f"small store, latents, {rule}"
        lookups = plan.warm_count + plan.count
        limit = at_most(PAPERS_HOLES) if rule == PAPERS_RULE else informative()
        yield share(f"{name}: lookups that met a hole", holes[rule], lookups, limit)
        yield measured(f"{name}: steps saved, of all", saved[rule], fmean, informative())
        pairs = list(zip(runs[VANILLA.name].round_s, runs[arm_of(rule).name].round_s, strict=True))
        yield measured(f"{name}: throughput ÷ vanilla's", pairs, ratio_of_sums, informative())
        if rule != RULES[0]:
            compared = zip(saved[rule], saved[RULES[0]], strict=True)
            gaps = block_means([ours - theirs for ours, theirs in compared], BLOCK)
            yield measured(f"{name}: steps saved - {RULES[0]}'s", gaps, fmean, informative("of all steps"))


def saved_shares(run: ArmRun, rows: Sequence[int]) -> list[float]:
    """Return the share of the heavy model's steps that each request skipped."""
    steps = int(entry_of(HEAVY)["default_steps"])
    return [run.images[row].saved_steps / steps for row in rows]
