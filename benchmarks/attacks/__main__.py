"""Play one attack: `python -m benchmarks.attacks NAME`. The target is JSON on stdin, the answers are JSON on stdout."""

import asyncio
import json
import sys

from benchmarks.attacks.table import ATTACKS
from benchmarks.attacks.target import AttackTarget


async def play(name: str) -> None:
    print(json.dumps(await ATTACKS[name](AttackTarget.parse(sys.stdin.read()))))


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
