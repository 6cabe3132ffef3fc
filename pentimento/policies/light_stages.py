"""Decide when a cascade's light stage is skipped: its image would be rejected, or costs more than it saves; and when
its image needs no score.

A rejected light image costs device seconds and the client's time (DiffServe, section 3.1, pays them for every deferred
request). A prompt says less than its image, so only prompts that are sure to be hard are skipped, and none that the
threshold in force would accept. An accepted light image saves the next stage: with probability p it saves p times the
next stage's seconds, and it costs its own (`price`: own ÷ next).
"""

from pentimento.domain.foresight import PromptForesight, Verdict


def verdict_at(foresight: PromptForesight | None, threshold: float) -> Verdict:
    """Return the sure verdict on the prompt at the threshold in force: a hard prompt stays hard at a threshold above
    the verdict's, an easy one stays easy below it."""
    if foresight is None or not 0.0 <= foresight.probability <= 1.0:
        return Verdict.UNSURE
    holds = {Verdict.HARD: threshold >= foresight.threshold, Verdict.EASY: threshold <= foresight.threshold}
    return foresight.verdict if holds.get(foresight.verdict) else Verdict.UNSURE


def leaves_out_light(
    foreseen: PromptForesight | None, bound: float | None, threshold: float | None, price: float = 0.0
) -> bool:
    """Return whether the light stage is skipped.

    `foreseen`: the prediction from the prompt; None without one: then only a stage that could not pay for any prompt is
    skipped. `bound`: below this probability a prompt is sure to be hard; 0 for never, None for the verdict.
    `threshold`: the confidence that a light image must exceed now; None if it is not scored.
    `price`: seconds of the light stage ÷ those of the next; 0 if unknown. A probability outside 0..1 counts as None.
    """
    if threshold is None:
        return False
    if foreseen is None or not 0.0 <= foreseen.probability <= 1.0:
        return price >= 1.0
    probability = foreseen.probability
    if price > 0.0 and probability <= price:
        return True
    if bound is None:
        return verdict_at(foreseen, threshold) is Verdict.HARD
    return probability < bound and probability <= threshold


def needs_no_score(foreseen: PromptForesight | None, threshold: float) -> bool:
    """Return whether the prompt shows that the light image will surely be accepted."""
    return verdict_at(foreseen, threshold) is Verdict.EASY
