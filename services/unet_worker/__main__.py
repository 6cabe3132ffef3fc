"""Start a UNet worker: `python -m services.unet_worker --model DIR`."""

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.lean_imports import import_networks_alone
from pentimento.rpc import run_service
from pentimento.rpc.memory import keep_freed_memory
from pentimento.service.starting import importing_much, serve_nothing
from pentimento.settings import load_settings
from services.unet_worker.models.model_card import needs_networks_alone
from services.unet_worker.models.stored_models import with_stored
from services.unet_worker.settings import UnetWorkerSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(UnetWorkerSettings, "unet_worker", argv)
    settings, stored = await with_stored(settings)
    if settings.missing:
        await serve_nothing(settings.rpc, "unet_worker", settings.missing)
        return
    check_checkpoint(settings.model)
    settings.claim_gpu()
    keep_freed_memory()
    # Imported late: a wrong flag or a bad checkpoint is reported before torch is loaded.
    with importing_much():
        if needs_networks_alone(settings):
            import_networks_alone()
        from services.unet_worker.wiring import wire

    await wire(settings, stored).run()


if __name__ == "__main__":
    run_service(main)
