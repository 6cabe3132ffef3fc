"""Attack a running suite: each attack is a small function, bounded in calls and time. `hostile` plays all.

To add one, write `async def name(target: AttackTarget) -> Answers` (counts of the suite's answers) in the module of its
kind and add it to `table.ATTACKS`. Only loopback is attacked.
"""
