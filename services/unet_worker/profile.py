"""`python -m services.unet_worker.profile --model DIR --out FILE`: what the model costs on this device, measured."""

import asyncio

from pentimento.devices.profile import profile_to_json
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.triton_package import check_triton
from pentimento.files.folders import check_folder
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.settings import KernelChoice, ProfileSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(ProfileSettings, "bench_profile", argv)
    check_folder("out", settings.out)
    if settings.kernels is KernelChoice.FUSED:
        check_triton()
    check_checkpoint(settings.model)
    # Imported after that: a wrong flag, a bad checkpoint or a missing package is answered before torch is loaded.
    from services.unet_worker.models.model_profile import measure

    profile = await asyncio.to_thread(measure, settings)
    await asyncio.to_thread(settings.out.write_text, profile_to_json(profile))


if __name__ == "__main__":
    configure_logging("bench_profile", "")
    # Its file is a result that its user asked for.
    run_service(main, private=False)
