"""Replay a frontdoor's recorded dataplane events, and require the same effects as live.

    pentimento serve frontdoor … --record-effects FILE
    python -m benchmarks.effects_replay --recording FILE

Without a recording the benchmark makes one: a frontdoor with a real journal and real sockets over a cascade with
failing workers and performers, under a load that is partly refused, cancelled and late. Each replay runs in a process
with another hash seed, so that nothing may depend on the order of a set.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from lab.fixtures.cascade import running_cascade
from lab.fixtures.frontdoor_suite import FrontdoorSuite
from lab.runs.measure import Figure, at_least, at_most, counted, informative, measured, parse_options, publish
from lab.simulator.recorded_effects import read_recording, replay
from pentimento.dataplane import effects
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import ImageRequest
from services.frontdoor.interpreter import Interpreter, Performer

HASH_SEEDS = ("0", "1", "31337")
CONFIDENCES = (0.9, 0.2, None)


def main() -> int:
    options = parse_options("effects_replay", __doc__, add_options)
    if options.rest["replay_only"]:
        return replay_here(Path(options.rest["recording"]))
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        recording = Path(options.rest["recording"] or Path(folder) / "effects.jsonl")
        if not options.rest["recording"]:
            asyncio.run(record(Path(folder), recording, 40 if options.quick else 400, options.rest["seed"]))
        figures = figures_of(recording)
    return publish(options, figures, notes={"seed": options.rest["seed"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recording", default="", help="file of a frontdoor's --record-effects; empty to make one")
    parser.add_argument("--seed", type=int, default=1, help="seed of a new recording's load and faults")
    parser.add_argument(
        "--replay-only", action="store_true", help="(used by the benchmark) replay and print the result"
    )


def figures_of(recording: Path) -> list[Figure]:
    with recording.open(encoding="utf-8") as lines:
        _, steps = read_recording(lines, recording.name)
        kinds = [type(step.event).__name__ for step in steps]
    diverged = [replayed(recording, seed) for seed in HASH_SEEDS]
    return [
        counted("replays that answered otherwise", sum(diverged), len(diverged), at_most(0, "replays")),
        measured("events replayed", [len(kinds)], max, at_least(1, "events")),
        measured("kinds of events", [len(set(kinds))], max, informative("kinds")),
    ]


def replayed(recording: Path, hash_seed: str) -> bool:
    """Return whether a replay under that hash seed differed."""
    command = [sys.executable, "-m", "benchmarks.effects_replay", "--replay-only", "--recording", str(recording)]
    return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=False).returncode != 0


def replay_here(recording: Path) -> int:
    with recording.open(encoding="utf-8") as lines:
        dataplane, steps = read_recording(lines, recording.name)
        count, divergence = replay(dataplane, steps)
    if divergence is None:
        print(f"{count} events, the same effects")
        return 0
    step = divergence.step
    print(f"line {step.line}: {step.event}\n  recorded {step.effects}\n  replayed {divergence.answered}")
    return 1


async def record(folder: Path, recording: Path, count: int, seed: int) -> None:
    """Run a cascade under load: too many requests, some cancelled or late, and workers that fail."""
    rng = random.Random(seed)
    settings = {"queue_limit": count // 8, "record_effects": str(recording)}
    async with running_cascade(folder, 0.9, **settings) as cascade, asyncio.TaskGroup() as clients:
        for worker in (cascade.light, cascade.heavy):
            worker.credit_count, worker.step_s = 3, 0.01
            worker.change()
        break_now_and_then(cascade.suite.frontdoor.interpreter, rng)
        for number in range(count):
            cascade.discriminator.confidence = rng.choice(CONFIDENCES)
            clients.create_task(ask(cascade.suite, rng.choice([0, 0, 150, 5000]), leaves=rng.random() < 0.1))
            if rng.random() < 0.1:
                rng.choice([cascade.light, cascade.heavy]).fail_with = PentimentoError(
                    "MADE_TO_FAIL", "by the benchmark"
                )
            if number % 10 == 9:
                await asyncio.sleep(rng.expovariate(10.0))


def break_now_and_then(interpreter: Interpreter, rng: random.Random) -> None:
    """Skip one effect in a hundred, except the final answers to clients."""

    def breaking(perform: Performer) -> Performer:
        def perform_or_break(effect: effects.Effect) -> None:
            if rng.random() < 0.01:
                raise RuntimeError("failed by the benchmark")
            perform(effect)

        return perform_or_break

    performers = interpreter._performers
    told = {effects.DeliverRecorded: performers[effects.DeliverRecorded]}
    interpreter.perform_with({kind: breaking(perform) for kind, perform in performers.items()} | told)


async def ask(suite: FrontdoorSuite, deadline_ms: int, *, leaves: bool) -> None:
    """Take every answer, or leave as soon as the request is accepted."""
    request = ImageRequest(prompt="a red circle", num_inference_steps=5, seed=1)
    stream = suite.client.generate(replace(request, deadline_ms=deadline_ms) if deadline_ms else request)
    try:
        async with aclosing(stream):
            async for _ in stream:
                if leaves:
                    return
    except PentimentoError:
        pass


if __name__ == "__main__":
    sys.exit(main())
