"""What is said about a GPU in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.headline import summary
from tests.support.table import table_test


class Unnamed:
    """The identity of a GPU without a workload."""

    job_name = ""
    ports: Mapping[str, Sequence[str]] = MappingProxyType({})
    nvlinks: Mapping[str, Sequence[str]] = MappingProxyType({})


class OfNothing:
    """A diagnosis of a GPU without owner or numbers."""

    identity = Unnamed()
    numbers = MappingProxyType[str, float]({})


@table_test("mode", MODES, lambda mode: mode.name)
def test_summaries_have_no_placeholders(mode: FailureMode) -> None:
    """Those of alerts that name a value or label of Prometheus are replaced by what the mode means."""
    diagnosis: Diagnosis = OfNothing()  # type: ignore[assignment]
    words = summary(mode, diagnosis)
    assert words[0].isupper() or words[0] in "/0123456789"
    assert "{" not in words
    assert not words.endswith(".")
