"""`python -m services.discriminator.emulated --fleet FILE`: scores what emulated devices paint."""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.discriminator.emulated_wiring import wire
from services.discriminator.settings import EmulatedDiscriminatorSettings


async def main(argv: list[str]) -> None:
    await wire(load_settings(EmulatedDiscriminatorSettings, "emulated_discriminator", argv)).run()


if __name__ == "__main__":
    run_service(main)
