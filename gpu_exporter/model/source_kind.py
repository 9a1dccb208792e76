"""The ways to read GPUs: every value of `--source`, and what the exporter says about it."""

from __future__ import annotations

from typing import NamedTuple


class SourceKind(NamedTuple):
    """One value of `--source`. `live`: it reads GPUs that this machine, or a host engine, has now.

    The description of a kind that is not live is shown wherever its values are, so that nobody mistakes them for
    readings of real GPUs.
    """

    name: str
    description: str
    live: bool


AUTO = SourceKind("auto", "the NVIDIA driver, and DCGM for GPUs older than Hopper", live=True)
NVML = SourceKind("nvml", "the NVIDIA driver", live=True)
DCGM = SourceKind("dcgm", "DCGM's host engine", live=True)
REPLAY = SourceKind("replay", "a recording of real GPUs", live=False)
# The description of a replay whose recording is of these.
OF_SIMULATED = "a recording of simulated GPUs"
SIMULATED = SourceKind("simulated", "simulated GPUs, without hardware", live=False)

# What is shown above GPUs that nobody may mistake for those of now.
BANNERS = {REPLAY.name: f"Replayed from {REPLAY.description}", SIMULATED.name: "Simulated GPUs"}

# In the order in which `--source` lists them. `sources/choice.py` has a factory for each.
SOURCE_KINDS = {kind.name: kind for kind in (AUTO, NVML, DCGM, REPLAY, SIMULATED)}
