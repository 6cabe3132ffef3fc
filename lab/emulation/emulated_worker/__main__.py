"""`python -m lab.emulation.emulated_worker --fleet FILE#NAME`: a worker that stands for a device that is not
here. Starts without torch."""

from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire
from pentimento.rpc import run_service
from pentimento.settings import load_settings


async def main(argv: list[str]) -> None:
    await wire(load_settings(EmulatedWorkerSettings, "emulated_worker", argv)).run()


if __name__ == "__main__":
    run_service(main)
