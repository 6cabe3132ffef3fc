"""Hold the numbers that the papers and their public artefacts state. Nothing here was chosen after a run.

If a paper's text and its artefact differ, both are here, and orderings are tested against the text's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Latencies = Mapping[int, float]
Points = tuple[tuple[float, float], ...]

# DiffServe: seconds of a run by batch size, A100 (the artefact's profiles)
SD_TURBO: Latencies = {1: 0.10, 2: 0.15, 4: 0.22, 8: 0.41, 16: 0.77, 32: 1.56}
SDXS: Latencies = {1: 0.05, 2: 0.06, 4: 0.08, 8: 0.13, 16: 0.24, 32: 0.48}
SD15: Latencies = {1: 1.78, 2: 2.16, 4: 3.68, 8: 6.79, 16: 12.88, 32: 25.35}
SDXL_LIGHTNING: Latencies = {1: 0.55, 2: 0.98, 4: 1.85, 8: 3.58, 16: 7.10}
SDXL: Latencies = {1: 6.10, 2: 10.65, 4: 20.92, 8: 40.23, 16: 79.11}
DISCRIMINATOR_S = 0.01  # section 4.4

# f(t): the share of light images that the threshold t defers (points of the artefact's tables of 201). The artefact has
# SDXS's table for SDXL-Lightning too.
SD_TURBO_DEFERRAL: Points = (
    *((0.0, 0.0), (0.005, 0.143), (0.01, 0.2), (0.015, 0.233), (0.02, 0.26), (0.03, 0.306), (0.04, 0.333)),
    *((0.05, 0.36), (0.075, 0.409), (0.1, 0.449), (0.15, 0.514), (0.2, 0.582), (0.25, 0.69), (0.3, 0.788)),
    *((0.35, 0.837), (0.4, 0.878), (0.45, 0.922), (0.5, 0.993), (0.56, 1.0), (1.0, 1.0)),
)
SDXS_DEFERRAL: Points = (
    *((0.0, 0.0), (0.005, 0.037), (0.01, 0.068), (0.015, 0.093), (0.02, 0.115), (0.03, 0.152), (0.04, 0.189)),
    *((0.05, 0.215), (0.075, 0.272), (0.1, 0.321), (0.15, 0.413), (0.2, 0.497), (0.25, 0.616), (0.3, 0.715)),
    *((0.35, 0.784), (0.4, 0.846), (0.45, 0.908), (0.5, 0.999), (0.505, 1.0), (1.0, 1.0)),
)


@dataclass(frozen=True)
class Held:
    """Hold DiffServe-Static's allocation: threshold, devices and batch sizes of light and heavy (the artefact's)."""

    threshold: float
    light_count: int
    heavy_count: int
    light_batch: int
    heavy_batch: int


@dataclass(frozen=True)
class Cascade:
    """Describe a pair of models.

    `slo_s`: section 4.1. `fid` by the share that the light model answers, 0 to 1 in tenths, if the discriminator
    chooses (the artefact's tables). `low` and `peak`: requests per second of the scaled trace.
    """

    name: str
    light: Latencies
    heavy: Latencies
    slo_s: float
    fid: tuple[float, ...]
    deferral: Points
    static: Held
    low: float
    peak: float


CASCADES = (
    Cascade(
        "SD-Turbo, SD 1.5",
        SD_TURBO,
        SD15,
        5.0,
        (18.55, 17.85, 17.33, 16.98, 16.79, 16.95, 17.26, 17.95, 18.86, 20.17, 22.77),
        SD_TURBO_DEFERRAL,
        Held(0.02, 4, 12, 16, 4),
        4.0,
        32.0,
    ),
    Cascade(
        "SDXS, SD 1.5",
        SDXS,
        SD15,
        5.0,
        (18.55, 17.68, 17.08, 16.97, 17.13, 17.58, 18.21, 19.23, 20.54, 22.34, 24.86),
        SDXS_DEFERRAL,
        Held(0.12, 2, 14, 32, 4),
        4.0,
        32.0,
    ),
    Cascade(
        "SDXL-Lightning, SDXL",
        SDXL_LIGHTNING,
        SDXL,
        15.0,
        (23.31, 23.14, 23.27, 23.67, 24.42, 25.33, 26.34, 27.53, 29.27, 31.01, 33.27),
        SDXS_DEFERRAL,
        Held(0.02, 9, 7, 4, 2),
        1.0,
        8.0,
    ),
)

# Azure Functions 2019 (CC BY 4.0) as the artefact plays it: its lowest hour is 0, its busiest 1, an hour is a second;
# means of twelve seconds. Fig. 5 and 6 play 4 to 32 requests a second, 1 to 8 for Cascade 3 (A.3.4).
AZURE_SHAPE = (
    *(0.015, 0.073, 0.181, 0.153, 0.145, 0.304, 0.342, 0.416, 0.478, 0.539, 0.596, 0.579, 0.597, 0.658),
    *(0.688, 0.788, 0.941, 0.960, 0.923, 0.949, 0.831, 0.859, 0.854, 0.811, 0.650, 0.544, 0.438, 0.270),
)
AZURE_SEGMENT_S = 12.0

# DiffServe, 3.3: "the over-provisioning factor ... set to 1.05 by default". The artefact multiplies by 1.2.
OVERPROVISION = 1.05
ARTEFACT_OVERPROVISION = 1.2
# The artefact's heartbeat and solver: demand is averaged every second with a centre of mass of 2.1; plans are made
# every five seconds.
DEMAND_WEIGHT = 1 / (1 + 2.1)
CONTROL_PERIOD_S = 5.0

# Fig. 4: Clipper-heavy violates 45.10 % at the low load and 74.11 % at the high one. Sixteen devices with an image
# every 1.78 s carry 9.0 a second, so that the loads were about 16 and 35; the medium one is assumed midway.
STATIC_LOADS = {"low": 16.4, "medium": 25.6, "high": 34.7}

# MoDM: seconds an image on an MI210 (the artefact's). Its SLOs on A40s are 120 and 240 s, 2 and 4 times the large
# model's 60 s; the small models are assumed to have the MI210's proportions.
MI210_SECONDS = {"large": 91.5, "sdxl": 16.5, "sana": 6.5}
A40_SECONDS = {model: 60.0 * seconds / 91.5 for model, seconds in MI210_SECONDS.items()}
MODM_CONTROL_PERIOD_S = 180.0

# NIRVANA, 7.1 and 4.1: seconds an image on an A10G, and of a search
NIRVANA_IMAGE_S = 8.59
NIRVANA_SEARCH_S = 0.1

# Katz, Fig. 14: H800, 50 steps; seconds of Diffusers on one device, of Katz, and the devices that Katz uses
KATZ_LATENCIES = {
    "0C0L": (2.88, 1.71, 2),
    "0C1L": (6.19, 1.84, 2),
    "1C0L": (4.26, 1.74, 4),
    "1C1L": (7.29, 1.89, 4),
    "2C2L": (13.36, 2.00, 6),
    "3C0L": (7.09, 1.80, 8),
    "3C2L": (14.78, 2.03, 8),
}
