"""A kubelet that answers too much, or never: only its own answer is affected, and scrapes stay small and fast."""

from __future__ import annotations

import pytest

from tests.conftest import Exporter, Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet, Given, given, pod
from tests.support.fakes.stuck_socket import StuckSocket
from tests.support.owners import UUID, owner, rows, up

READ_AT = "gpu_last_read_timestamp_seconds"


def attributed(serve: Serve, driver: FakeDriver, kubelet: FakeKubelet) -> Exporter:
    """An exporter that uses this kubelet."""
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
    return serve(*own, env=driver.environment)


def test_devices_of_no_gpu_stay_few_series(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """50 000 devices that this node does not have cost neither the owner of a GPU nor a large response."""
    devices = [f"GPU-deadbeef-0000-0000-0000-{number:012d}" for number in range(50_000)]
    kubelet.pods = [given("owner", UUID[0]), pod("strange", Given("nvidia.com/gpu", devices))]
    exporter = attributed(serve, node, kubelet)
    page = exporter.until(
        lambda page: bool(rows(page, "gpu_pod_device_unresolved") and len(page.values("DCGM_FI_DEV_POWER_USAGE")) == 3)
    )
    assert len(page.text) < 500_000
    assert owner(page, UUID[0]) == ("team", "owner", "main")
    assert page.values("gpu_attribution_errors_total", source="kubelet", reason="too_many") >= [1]
    assert up()(page)
    unresolved = page.values("gpu_pod_device_unresolved")
    assert len(unresolved) < 300
    assert 4000 < sum(unresolved) < 4200  # those within the limit of devices of a response


def test_pod_name_of_a_mebibyte_is_dropped(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Its GPU has no owner then; others keep theirs. It is counted at each answer, and logged once."""
    kubelet.pods = [given("owner", UUID[0]), given("x" * (1 << 20), UUID[1])]
    exporter = attributed(serve, node, kubelet)
    page = exporter.until(
        lambda page: page.values("gpu_attribution_errors_total", source="kubelet", reason="too_long") > [3]
    )
    assert len(page.text) < 500_000
    assert owner(page, UUID[0]) == ("team", "owner", "main")
    assert owner(page, UUID[1]) == ("", "", "")
    assert up()(page)
    lines = [line for line in exporter.log.read_text().splitlines() if "is left out" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 400


@pytest.mark.parametrize(
    ("data", "pause"), [(b"", 1.0), (b"\0", 0.1), (b"\xff" * 65536, 0.001)], ids=["nothing", "drips", "garbage"]
)
def test_kubelet_that_never_completes_an_answer(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, data: bytes, pause: float
) -> None:
    """GPUs are read and scraped as if it were not there, and the exporter ends in time."""
    kubelet.stop()
    socket = StuckSocket(kubelet.socket, data, pause)
    try:
        exporter = attributed(serve, node, kubelet)
        exporter.until(lambda page: page.values("gpu_attribution_errors_total", source="kubelet") >= [1], 30)
        page = exporter.until(lambda page: page.values("gpu_up") == [1, 1, 1])
        assert up(value=0)(page)
        for _ in range(5):
            read_at = page.value(READ_AT, UUID=UUID[0])
            page = exporter.until(lambda page, before=read_at: page.value(READ_AT, UUID=UUID[0]) > before)  # type: ignore[misc]
        assert exporter.stop() == 0
    finally:
        socket.close()
