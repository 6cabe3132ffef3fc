"""Construct a ControlNet process."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from pentimento.api.auth.v1 import auth_pb2 as auth_pb
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import add_ControlNetServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.devices.choices import CompileMode
from pentimento.devices.claims import visible_gpus
from pentimento.diffusion.controlnets import PLAIN, ControlNetForm
from pentimento.diffusion.controlnets.depth import DepthModel, load_depth_model
from pentimento.diffusion.device import choose_device, choose_dtype, device_memory, memory_budget_bytes
from pentimento.diffusion.engine.captured import cuda_recorder, replaying
from pentimento.diffusion.kernels import usual_kernels
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan, Replica, ReplicaKind, ReplicaReport
from pentimento.files.file_sums import file_sums_in
from pentimento.rpc import RpcServer
from pentimento.rpc.settings import room_for_streams
from pentimento.service.credits import BusyMeter, CreditNews
from pentimento.service.fleet_member import FleetMember, PlanFollower
from pentimento.service.process import ServiceProcess
from pentimento.tensors.cuda import outgoing_tensor, region_directory
from services.controlnet_svc.compute.thread import ComputeThread
from services.controlnet_svc.networks import NetworkShelf, ShelvedNetwork, shelved_networks, with_depth
from services.controlnet_svc.servicer import FULL_NAME, ControlNetServicer, Outgoing
from services.controlnet_svc.settings import ControlNetSettings
from services.controlnet_svc.stored_networks import stored_networks
from services.controlnet_svc.streams import ControlNets

logger = logging.getLogger(__name__)

# Share of the device's memory for weights: the rest is for intermediate results.
BUDGET_SHARE = 0.5
# Recordings of each ControlNet: each holds its residuals, 108 MB for a guided image of SDXL.
KEPT_RECORDINGS = 8
# For a message of StreamResiduals: the contract's max_request_bytes.
_STREAM = pb.DESCRIPTOR.services_by_name["ControlNetService"].methods_by_name["StreamResiduals"]
MAX_REQUEST_BYTES = _STREAM.GetOptions().Extensions[auth_pb.max_request_bytes]


@dataclass(frozen=True)
class NetworkSource:
    """Describe a source of ControlNets, by name, of their outgoing residuals, and of a depth model: a real device, or a
    paced one."""

    networks: Callable[[ControlNetSettings, torch.device, torch.dtype], Mapping[str, ShelvedNetwork]]
    outgoing: Outgoing
    depth: Callable[[ControlNetSettings, torch.device, torch.dtype], DepthModel | None] = lambda *_: None


def _registered(settings: ControlNetSettings, device: torch.device, dtype: torch.dtype) -> Mapping[str, ShelvedNetwork]:
    if not settings.registered:
        raise InvalidArgument.of("controlnets", f"{settings.controlnets} must name a ControlNet at least")
    sums = file_sums_in(settings.component_cache_dir)
    stored = stored_networks(settings)
    return shelved_networks(stored.registered, device, dtype, _form(settings, device), sums, stored.load)


def _form(settings: ControlNetSettings, device: torch.device) -> ControlNetForm:
    if device.type != "cuda" or settings.compile is CompileMode.OFF:
        return PLAIN
    return ControlNetForm(usual_kernels(device), replaying(cuda_recorder(device), KEPT_RECORDINGS))


def _depth(settings: ControlNetSettings, device: torch.device, dtype: torch.dtype) -> DepthModel | None:
    found = settings.registered_depth_model()
    return None if found is None else load_depth_model(found.directory, device, dtype, found.digest)


REGISTERED = NetworkSource(_registered, outgoing_tensor, _depth)


@dataclass(kw_only=True)
class ControlNetProcess(ServiceProcess):
    controlnets: ControlNets
    settings: ControlNetSettings
    controller: ControllerClient | None = None
    _placed: tuple[str, ...] = ()

    async def prepare(self) -> None:
        """Prefetch the configured ControlNets before the first request; from then on, load ControlNets that plans place
        here."""
        logger.info("loading ControlNets", extra={"visible_gpus": visible_gpus()})
        await self.controlnets.shelf.prefetch(self.settings.prefetch)
        if self.controller is not None:
            self.run_beside(partial(PlanFollower(self.controller, self.server.instance_id).run, self.follow), "plan")

    def follow(self, plan: Plan) -> None:
        placed = plan.placed_on(ReplicaKind.CONTROLNET, self.server.instance_id)
        if placed != self._placed:
            self._placed = placed
            self.run_beside(partial(self.controlnets.shelf.place, placed), "placed")

    async def finish(self) -> None:
        await self.controlnets.drain()

    async def close(self) -> None:
        self.controlnets.compute.close()


def wire(settings: ControlNetSettings, source: NetworkSource = REGISTERED) -> ControlNetProcess:
    """Construct the process inside its event loop. Raises errors of the registry, and FailedPrecondition if CUDA is
    requested and unavailable."""
    torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    # Every stream of the credits may be receiving the largest message at the same time.
    bounds = room_for_streams(settings.credits, MAX_REQUEST_BYTES)
    server = RpcServer(settings.rpc, "controlnet_svc", bounds=bounds)
    news, busy = CreditNews(), BusyMeter(time.monotonic)
    networks = source.networks(settings, device, dtype)
    sharers = settings.claims_per_device if device.type == "cuda" else 1
    budget_bytes = memory_budget_bytes(device, settings.memory_budget_mib, sharers, BUDGET_SHARE)
    depth = source.depth(settings, device, dtype)
    if depth is not None:
        networks, budget_bytes = with_depth(networks, depth.digest), budget_bytes - depth.memory_bytes
    compute = ComputeThread(settings.max_batch, busy.add)
    shelf = NetworkShelf(networks, budget_bytes, news.changed)
    controlnets = ControlNets(shelf, compute, settings.credits, news.changed, depth)
    regions = region_directory(settings.shared_memory_dir, device if settings.share_device_memory else None)
    servicer = ControlNetServicer(controlnets, news, regions, server.instance_id, source.outgoing)
    server.add(add_ControlNetServiceServicer_to_server, servicer, FULL_NAME)
    member = FleetMember(server, ReplicaKind.CONTROLNET, settings)
    registration = member.registration(
        lambda replica: _described(replica, controlnets, device), lambda report: _reported(report, controlnets, busy)
    )
    return ControlNetProcess(
        server=server,
        registration=registration,
        controlnets=controlnets,
        settings=settings,
        controller=member.controller,
    )


def _described(replica: Replica, controlnets: ControlNets, device: torch.device) -> Replica:
    shelf = controlnets.shelf
    names = tuple(adapter.name for adapter in shelf.adapters)
    return replace(
        replica,
        device=str(device),
        device_memory_bytes=device_memory(device).total_bytes,
        available_models=names,
        resident_models=shelf.resident,
        adapters=shelf.adapters,
        stored=shelf.stored,
        adapter_memory_bytes=shelf.budget_bytes,
    )


def _reported(report: ReplicaReport, controlnets: ControlNets, busy: BusyMeter) -> ReplicaReport:
    return replace(
        report,
        resident_models=controlnets.shelf.resident,
        load_speeds=controlnets.shelf.load_speeds,
        running_count=controlnets.open_count,
        busy_share=busy.share(),
        completed_count=controlnets.compute.step_count,
        draining=controlnets.draining,
    )
