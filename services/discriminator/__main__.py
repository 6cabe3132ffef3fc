"""`python -m services.discriminator --cascades LIGHT>HEAVY=DIR`"""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.discriminator.settings import DiscriminatorSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(DiscriminatorSettings, "discriminator", argv)
    # Imported after the settings hold: a wrong flag is answered before torch is loaded.
    from services.discriminator.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
