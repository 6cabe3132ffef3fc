"""`python -m services.unet_worker.handover_profile --model DIR --light-model DIR --prompts FILE --embedder-address
ADDRESS`: how many of a cascade's later model's steps may be left out where it starts from the picture before it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.policies.handover_profiles import HandoverProfile, handover_to_json
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.selector_profile import study
from services.unet_worker.settings import HandoverProfileSettings

if TYPE_CHECKING:
    from services.unet_worker.models.reuse_study import PictureEncoder
    from services.unet_worker.models.thinning_measuring import JudgesOf


async def main(argv: list[str]) -> None:
    settings = load_settings(HandoverProfileSettings, "bench_handover_profile", argv)
    check_checkpoint(settings.light_model)
    await study(settings, write_handover_profile)


def write_handover_profile(
    settings: HandoverProfileSettings,
    prompts: Sequence[str],
    encoder: "PictureEncoder",
    encoder_of: tuple[str, str],
    judges_of: "JudgesOf" = lambda prompts: (),
) -> None:
    """Measure, write the profile, and print it as text. `judges_of` gives judges beside CLIPScore."""
    # Imported here: a wrong flag or a bad checkpoint is answered before torch is loaded.
    from services.unet_worker.models.handover_measuring import measure

    profile = measure(settings, prompts, encoder, encoder_of, judges_of)
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / f"{profile.light}-to-{profile.heavy}.json"
    path.write_text(handover_to_json(profile), encoding="utf-8")
    print(f"{path}\n{described_handover(profile)}", flush=True)


def described_handover(profile: HandoverProfile) -> str:
    """Return the table as text: a line for each share, and the share that each rule allows."""
    lines = [
        f"{profile.heavy} from images of {profile.light}, {profile.step_count} steps, {profile.quality}",
        f"  {profile.light}'s own images have {profile.light_share:.4f} of the quality from noise",
        "  spared  taken    kept       mean   allowed by",
    ]
    for row in profile.rows:
        lines.append(
            f"  {row.reuse_share:6g}  {row.taken_count:5}  {row.kept_count:4}/{row.picture_count:<4}"
            f"  {row.mean_share:.4f}   {', '.join(rule.value for rule in row.allowed) or 'none'}"
        )
    lines += [f"  {rule.value}: reuse_share {profile.reuse_share(rule):g}" for rule in ThresholdRule]
    return "\n".join(lines)


if __name__ == "__main__":
    configure_logging("bench_handover_profile", "")
    # Its file is a result that its user asked for.
    run_service(main, private=False)
