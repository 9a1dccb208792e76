"""What the driver answers on public GPU models (`tests/data/gpu_models.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY
from gpu_exporter.model.metric import Metric
from tests import ROOT

Values = Mapping[Metric, float]
# The dumps have no NVLinks. These are the links of SXM boards and superchips, all of which lead to a fabric or a peer.
NVLINKS = {"A100-SXM4": 12, "H100 80GB HBM3": 18, "H200": 18, "B200": 18, "GB200": 18}


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """The answers of one board, idle: `name`, `architecture` and `brand` as the driver names them."""

    name: str
    architecture: str
    brand: str
    virtualization: str
    values: Values

    @property
    def busy(self) -> Values:
        """The values under load: at the highest clock, and with the fastest link that it has."""
        values = dict(self.values)
        if m.GPU_UTIL in values:
            values[m.GPU_UTIL] = 97.0
        if m.PSTATE in values:
            values[m.PSTATE] = 0.0
        if m.PCIE_MAX_GEN in values:
            values[m.PCIE_GEN] = values[m.PCIE_MAX_GEN]
        return values


def _answers(row: Mapping[str, Any]) -> ModelAnswers:
    values = {BY_KEY[key]: float(value) for key, value in row["values"].items()}
    links = next((count for name, count in NVLINKS.items() if name in row["model"]), 0)
    if links and not values.get(m.MIG_MODE):
        values |= {m.NVLINK_COUNT: float(links), m.NVLINK_UP: float(links)}
    return ModelAnswers(row["model"], row["architecture"], row["brand"], row["virtualization"], values)


ANSWERS = tuple(_answers(json.loads(line)) for line in (ROOT / "tests/data/gpu_models.jsonl").read_text().splitlines())
