"""`python -m services.unet_worker.emulation --fleet FILE --devices NAME`: a worker that stands for a device that is not
here. Starts without torch."""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.unet_worker.emulation.wiring import wire
from services.unet_worker.settings import EmulatedWorkerSettings


async def main(argv: list[str]) -> None:
    await wire(load_settings(EmulatedWorkerSettings, "emulated_worker", argv)).run()


if __name__ == "__main__":
    run_service(main)
