"""Train a discriminator: `python -m services.discriminator.training`, with the flags of `TrainingSettings`."""

import logging
from collections import Counter

import torch

from pentimento.diffusion.device import exact_device
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.network_training import NetworkPlan
from pentimento.files.discriminator_records import why_uninformative
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.stores.objects import open_objects
from pentimento.telemetry import configure_logging
from services.discriminator.training import fitting
from services.discriminator.training.pairs import as_tensors, read_pairs
from services.discriminator.training.settings import TrainingSettings

REPORTED_STEPS = 100
# Images per step, and the largest learning rate.
BATCH, PEAK_RATE = 64, 2.0e-3
# With fewer pairs nothing is trained, of more the newest are used.
LEAST_PAIRS, MOST_PAIRS = 200, 4000


async def main(argv: list[str]) -> None:
    """Train by the flags, write the directory, and print the rankings."""
    train(load_settings(TrainingSettings, "training", argv))


def train(settings: TrainingSettings) -> fitting.Fitted:
    """Train a discriminator from the store's pairs, write it, and print what it reaches. Raises what reading,
    decoding and fitting raise; writes nothing then."""
    torch.set_num_threads(settings.threads)
    device = exact_device(settings.device)
    cascade = ">".join(settings.models)
    network = fitting.begun(settings.network, settings.start)
    store = open_objects(settings.objects_url, read_only=True)
    found = read_pairs(store, cascade, LEAST_PAIRS, MOST_PAIRS)
    verdicts = Counter(pair.deferred for pair in found)
    print(f"{len(found)} pairs of {cascade}: {verdicts[True]} deferred, {verdicts[False]} accepted", flush=True)
    pairs = as_tensors(found, settings.size_px)
    plan = NetworkPlan(settings.steps, BATCH, PEAK_RATE, seed=settings.seed)
    fitted = fitting.fit(network, pairs, found[0].prompt.encoder_digest, plan, device, _say, cascade)
    fitting.write(fitted, pairs, settings.network, settings.size_px, settings.out)
    digest = open_discriminator(settings.out, accept_other_digest=True).digest
    for line in report_lines(fitted):
        print(line)
    print(f"{settings.out}: {digest}", flush=True)
    return fitted


def report_lines(fitted: fitting.Fitted) -> list[str]:
    """Return what the discriminator reaches, for people."""
    lines = ["AUROC for 'light is as good' on prompts that it was not trained on, with its interval at 95 %:"]
    lines += [f"  {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]  {name}" for name, one in fitted.rankings.items()]
    share = next(share for at, share in fitted.record.deferral if at >= fitted.record.threshold)
    lines.append(f"recommended threshold {fitted.record.threshold:.2f}: it defers {share:.0%} of the light images")
    if why := why_uninformative(fitted.record.auroc):
        lines.append(f"no cascade is planned with it: {why}")
    return lines


def _say(step: int, loss: float) -> None:
    if (step + 1) % REPORTED_STEPS == 0:
        print(f"step {step + 1}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    logging.captureWarnings(True)
    configure_logging("training", "")
    # The directory is the requested result.
    run_service(main, private=False)
