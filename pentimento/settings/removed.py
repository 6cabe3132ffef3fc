"""List settings of earlier versions. They are rejected with the reason."""

import re

REMOVED = {
    "compile_halves": "captured CUDA graphs, the default on a GPU, are faster",
    "demand_weight": "`policy_options` takes it, as demand_weight=NUMBER",
    "discriminator_s": "discriminators report what scoring takes",
    "donor_timeout_s": "a start waits 2 s for a cached object",
    "expected_per_s": "`policy_options` takes it, as expected_per_s=NUMBER",
    "fixed_threshold": "`policy_options` takes it, as fixed_threshold=NUMBER",
    "handover_rule": "`profile_rule` is the rule of all profiles",
    "hedge_after": "a request has one running attempt",
    "hysteresis": "`policy_options` takes it, as hysteresis=NUMBER",
    "index_build_share": "a build starts when a twentieth of the entries changed",
    "index_build_threads": "a build runs on one thread at the lowest priority",
    "index_search_candidates": "a graph search has 96 candidates",
    "lora_bounds": "`profiles` names files of all kinds",
    "lora_cache_dir": "`component_cache_dir` holds uploaded LoRAs",
    "lora_cache_mib": "`component_disk_mib` bounds the disk for components",
    "match_predictor_file": "the predictor learns again after a restart",
    "match_predictor_generation_s": "a missed hit counts as 10 s",
    "max_open_grants": "at most 4096 grants are open",
    "max_prompt_chars": "a prompt has at most 10000 characters",
    "max_text_bytes": "a text has at most 16 KiB",
    "max_texts": "a call has at most 64 texts",
    "max_wait_ms": "a batch waits for 2 ms",
    "max_watchers": "as many plan streams as `max_replicas` may be open",
    "orphan_s": "an attempt survives its stream for 10 s",
    "peak_per_s": "`policy_options` takes it, as peak_per_s=NUMBER",
    "pipelining_bounds": "`profiles` names files of all kinds",
    "plan_reuse": "plans no longer say how much of the cache's tables hits use",
    "preview_side_px": "previews have sides of at most 128 pixels",
    "prompt_memo_entries": "256 encoded prompts are cached",
    "retention_s": "a silent replica stays visible for 60 s",
    "selector_profiles": "`profiles` names files of all kinds",
    "selector_rule": "`profile_rule` is the rule of all profiles",
    "step_lines": "steps use shared memory where both ends are on one host",
    "tenant_open_grants": "at most 1024 grants of a tenant are open",
    "thinning_profiles": "`profiles` names files of all kinds",
    "thinning_rule": "`profile_rule` is the rule of all profiles",
    "trace_file": "`python -m lab.fixtures.traced_process` writes such files",
    "unfinished_upload_s": "unfinished uploads are deleted after an hour",
    "upload_timeout_s": "a result waits 2 s for its uploads",
}


def why_removed(text: str) -> str:
    """Return the reasons of the removed settings in a name, flag or message, in parentheses; "" without any."""
    names = (word.strip("-").replace("-", "_") for word in re.findall(r"[\w-]+", text))
    reasons = [REMOVED[name] for name in names if name in REMOVED]
    return f" (it was removed: {'; '.join(reasons)})" if reasons else ""
