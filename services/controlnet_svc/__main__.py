"""Start a ControlNet service: `python -m services.controlnet_svc --controlnets REGISTRY`."""

from pentimento.diffusion.lean_imports import import_networks_alone
from pentimento.rpc import run_service
from pentimento.rpc.memory import keep_freed_memory
from pentimento.service.starting import importing_much, serve_nothing
from pentimento.settings import load_settings
from services.controlnet_svc.settings import ControlNetSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(ControlNetSettings, "controlnet_svc", argv)
    if settings.skip_missing and not settings.registered:
        await serve_nothing(settings.rpc, "controlnet_svc", f"no ControlNet by {settings.controlnets}")
        return
    settings.claim_gpu()
    keep_freed_memory()
    # Imported after the settings are valid: a wrong flag is reported before torch is loaded.
    with importing_much():
        import_networks_alone()
        from services.controlnet_svc.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
