"""`python -m services.frontdoor`"""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.wiring import run


async def main(argv: list[str]) -> None:
    await run(load_settings(FrontdoorSettings, "frontdoor", argv))


if __name__ == "__main__":
    run_service(main)
