"""Settings that earlier versions had. They are refused with the reason."""

import re

REMOVED = {
    "compile_halves": "captured CUDA graphs, the default on a GPU, are faster",
    "discriminator_s": "discriminators report what scoring takes",
    "hedge_after": "a request has one running attempt",
    "match_predictor_file": "the predictor learns again after a restart",
    "plan_reuse": "plans no longer say how much of the cache's tables hits use",
    "trace_file": "`python -m lab.fixtures.traced_process` writes such files",
}


def why_removed(text: str) -> str:
    """Return the reasons of the removed settings that a name, flag or message has, in parentheses; else nothing."""
    names = (word.strip("-").replace("-", "_") for word in re.findall(r"[\w-]+", text))
    reasons = [REMOVED[name] for name in names if name in REMOVED]
    return f" (it was removed: {'; '.join(reasons)})" if reasons else ""
