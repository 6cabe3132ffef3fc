"""Keep a worker's place in the fleet, without other work: `python -m tests.faults.controller.replica_process`.

Arguments: the controllers' addresses, separated by commas; the instance id; the model that it claims to hold.
"""

import asyncio
import sys

from pentimento.clients.controller import ControllerClient, Registration, generation_at
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.service.fleet_member import addresses


async def main(controller: str, instance_id: str, model: str) -> None:
    generation = generation_at(SystemClock())
    replica = Replica(
        instance_id, ReplicaKind.UNET_WORKER, f"unix:/{instance_id}", generation, resident_models=(model,)
    )
    report = ReplicaReport(instance_id, generation, (model,))
    client = ControllerClient(*(open_channel(address, RpcChannelSettings()) for address in addresses(controller)))
    await Registration(client, lambda: replica, lambda: report).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
