"""Run an embedder of emulated images: `python -m lab.emulation.embedder --encoder DIR`."""

from pentimento.rpc import run_service
from pentimento.service.starting import importing_much
from pentimento.settings import load_settings
from services.embedder.settings import EmbedderSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(EmbedderSettings, "embedder", argv)
    # Imported after the settings hold: a wrong flag is answered before torch is loaded.
    with importing_much():
        from lab.emulation.embedder.model import open_emulated_model
        from services.embedder.wiring import wire

    await wire(settings, open_emulated_model).run()


if __name__ == "__main__":
    run_service(main)
