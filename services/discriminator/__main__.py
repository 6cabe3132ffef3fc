"""Run the discriminator: `python -m services.discriminator --cascades LIGHT>HEAVY=DIR`."""

from pentimento.devices.claims import place_next_to_models
from pentimento.diffusion.discriminator_files import discriminator_files
from pentimento.rpc import run_service
from pentimento.service.starting import importing_much, serve_nothing
from pentimento.settings import load_settings
from services.discriminator.settings import DiscriminatorSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(DiscriminatorSettings, "discriminator", argv)
    directories = settings.directories()
    if not directories and not settings.classifier_directories():
        await serve_nothing(settings.rpc, "discriminator", settings.missing)
        return
    for directory in directories.values():
        discriminator_files(directory, accept_other_digest=settings.accepts_other_digest)
    place_next_to_models(settings.device_claims_dir, "discriminator", settings.device)
    # Imported last: a wrong flag or directory is refused before torch is loaded.
    with importing_much():
        from services.discriminator.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
