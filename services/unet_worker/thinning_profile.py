"""`python -m services.unet_worker.thinning_profile --model DIR --prompts FILE --embedder-address ADDRESS`: how many of
the model's steps may be left out, and from which step on."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pentimento.domain.models import derived_name
from pentimento.files.documents import read_document
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiles import ThinnedRow, ThinningProfile, thinning_from_json, thinning_to_json
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.selector_profile import study
from services.unet_worker.settings import ThinningProfileSettings

if TYPE_CHECKING:
    from services.unet_worker.models.reuse_study import PictureEncoder
    from services.unet_worker.models.thinning_measuring import JudgesOf


async def main(argv: list[str]) -> None:
    settings = load_settings(ThinningProfileSettings, "bench_thinning_profile", argv)
    await study(settings, write_profile)


def write_profile(
    settings: ThinningProfileSettings,
    prompts: Sequence[str],
    encoder: "PictureEncoder",
    encoder_of: tuple[str, str],
    judges_of: "JudgesOf" = lambda prompts: (),
) -> None:
    """Measure, write the profile, and print it as text. `judges_of` gives judges beside CLIPScore. Raises
    InvalidArgument where rows are to be added to a file that is none or was measured otherwise."""
    path = settings.out / f"{'+'.join((derived_name(settings.model.resolve().name), *settings.with_loras))}.json"
    earlier = read_document(path, thinning_from_json, "add") if settings.add else None
    # Imported here: a wrong flag or a bad checkpoint is answered before torch is loaded.
    from services.unet_worker.models.thinning_measuring import measure

    profile, found = measure(settings, prompts, encoder, encoder_of, judges_of, earlier)
    settings.out.mkdir(parents=True, exist_ok=True)
    path.write_text(thinning_to_json(profile), encoding="utf-8")
    if settings.samples:
        lines = (
            json.dumps({**place_of(one.row), "qualities": [each.quality, each.full_quality]})
            for one in found
            for each in one.samples
        )
        path.with_suffix(".samples.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{path}\n{described(profile)}", flush=True)


def place_of(row: ThinnedRow) -> dict[str, float]:
    """Return which thinning a row is of, by the names of its file."""
    return {name: getattr(row, name) for name in ("resume_step", "spacing", "first_step", "taken_count")}


def described(profile: ThinningProfile) -> str:
    """Return the table as text: a line for each thinning, and what each rule allows at the least."""
    head = "  resumed  spacing  from  taken  in all    kept       mean   allowed by"
    lines = [f"{profile.name}, {profile.step_count} steps, {profile.quality}", head]
    for row in profile.rows:
        lines.append(
            f"  {row.resume_step or '':7}  {row.spacing:7g}  {row.first_step:4}  {row.taken_count:5}"
            f"  {row.first_step + row.taken_count:6}"
            f"  {row.kept_count:4}/{row.picture_count:<4}  {row.mean_share:.4f}"
            f"   {', '.join(rule.value for rule in row.allowed) or 'none'}"
        )
    for rule in ThresholdRule:
        least = min((option.total for option in profile.options(profile.step_count, rule)), default=None)
        lines.append(f"  {rule.value}: {'no thinning' if least is None else f'{least} steps at the least'}")
    return "\n".join(lines)


if __name__ == "__main__":
    configure_logging("bench_thinning_profile", "")
    # Its file is a result that its user asked for.
    run_service(main, private=False)
