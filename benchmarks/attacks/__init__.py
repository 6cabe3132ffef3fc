"""Attacks on a running suite, each a small function that is bounded in count and time: `hostile` plays them all.

To add one, write `async def name(target: Target) -> Answers` (what the suite answered, counted) in the module of its
kind and put it in `table.ATTACKS`. Nothing but loopback is ever attacked.
"""
