"""The identity of a GPU, where a driver answers with zeros for what it does not know."""

from __future__ import annotations

import pytest

from gpu_exporter.model.gpu import detail
from gpu_exporter.sources.dcgm.bindings import Attributes
from gpu_exporter.sources.dcgm.device import CUDA_DRIVER, identify
from gpu_exporter.sources.dcgm.inventory import COMPUTE_CAPABILITY, MINOR_NUMBER
from gpu_exporter.sources.dcgm.values import FieldAnswer


@pytest.mark.parametrize("text", ["", "0", "0000000000000", "0.0", "00.00.00.00.00", "00000000:00:00.0", "____", " - "])
def test_zeros_are_no_detail(text: str) -> None:
    assert detail(text) == ""


@pytest.mark.parametrize("text", ["1320923000000", "96.00.A5.00.01", "00000000:06:00.0", "G520.0200.00.05", "9.0"])
def test_details(text: str) -> None:
    assert detail(text) == text


def test_dcgm_without_details() -> None:
    """The minor number may be 0."""
    answers = {field: FieldAnswer(0, "", 0, 0) for field in (CUDA_DRIVER, MINOR_NUMBER, COMPUTE_CAPABILITY)}
    attributes = Attributes("GPU-0", "Orin", "00000000:00:00.0", "0", "00.00.00.00.00", "0000", "580.1")
    gpu = identify(0, attributes, answers)
    assert (gpu.pci_bus_id, gpu.device, dict(gpu.info)) == ("", "nvidia0", {"driver_version": "580.1"})
