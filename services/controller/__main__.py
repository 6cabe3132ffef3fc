"""`python -m services.controller`"""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire


async def main(argv: list[str]) -> None:
    await wire(load_settings(ControllerSettings, "controller", argv)).run()


if __name__ == "__main__":
    run_service(main)
