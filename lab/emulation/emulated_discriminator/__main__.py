"""Run an emulated discriminator: `python -m lab.emulation.emulated_discriminator --fleet FILE`."""

from lab.emulation.emulated_discriminator.settings import EmulatedDiscriminatorSettings
from lab.emulation.emulated_discriminator.wiring import wire
from pentimento.rpc import run_service
from pentimento.settings import load_settings


async def main(argv: list[str]) -> None:
    await wire(load_settings(EmulatedDiscriminatorSettings, "emulated_discriminator", argv)).run()


if __name__ == "__main__":
    run_service(main)
