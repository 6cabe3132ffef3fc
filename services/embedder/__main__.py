"""Run the embedder: `python -m services.embedder --encoder DIR`."""

from pentimento.devices.claims import place_next_to_models
from pentimento.rpc import run_service
from pentimento.service.starting import importing_much, serve_nothing
from pentimento.settings import load_settings
from services.embedder.settings import EmbedderSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(EmbedderSettings, "embedder", argv)
    if settings.missing:
        await serve_nothing(settings.rpc, "embedder", settings.missing)
        return
    place_next_to_models(settings.device_claims_dir, "embedder", settings.device)
    # Imported after the settings hold: a wrong flag is answered before torch is loaded.
    with importing_much():
        from services.embedder.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
