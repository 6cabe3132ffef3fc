"""Verdicts of an operator's classifiers about prompts and images."""

from dataclasses import dataclass

PROMPT, IMAGE = "prompt", "image"
SUBJECTS = frozenset({PROMPT, IMAGE})


@dataclass(frozen=True)
class SafetyVerdict:
    """Hold a classifier's verdict: `probability` of its unsafe labels together (0..1), the least one that is refused
    (`limit`), and the likeliest unsafe label. Requests and images without a check have none."""

    probability: float
    limit: float
    label: str
    classifier_digest: str

    @property
    def unsafe(self) -> bool:
        return self.probability >= self.limit
