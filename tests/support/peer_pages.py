"""Pages of other exporters, recorded on the GPUs of the fake driver; tests compare them with pages of gpu-exporter.

`python -m tests.support.peer_pages [--mig] URL COMMAND...` prints what a peer serves at URL. COMMAND starts it, with
the fake driver's library. With --mig, there is one GPU with two MIG instances. The recorded pages were made with

    python -m tests.support.peer_pages http://127.0.0.1:9835/metrics nvidia_gpu_exporter --collect.backend=nvml \\
        --collect.compute-apps --collect.pcie-throughput > tests/data/nvidia_gpu_exporter.prom
    python -m tests.support.peer_pages --mig http://127.0.0.1:9835/metrics nvidia_gpu_exporter \\
        --collect.backend=nvml > tests/data/nvidia_gpu_exporter_mig.prom
    python -m tests.support.peer_pages http://127.0.0.1:8000/metrics python -m nvitop_exporter \\
        --hostname node > tests/data/nvitop_exporter.prom
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from gpu_exporter.catalogue.peer_series import NVIDIA_GPU_EXPORTER, PEERS, PeerExporter
from tests import ROOT
from tests.conftest import Serve
from tests.support.fakes.driver import MIB, FakeDriver, Value, mig_device
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

DATA = ROOT / "tests" / "data"
# The jobs of gpu-exporter: of the GPUs, and of one in MIG mode.
GPU, MIG = "gpu", "mig"

# What two loaded H200s read, each value different, so that no query is right by chance.
GPUS = 2
# MIG instances with their profiles.
INSTANCES = {7: "3g.71gb", 9: "1g.18gb"}
NODE = "node"
STATE: Mapping[str, Sequence[Value]] = {
    "Index": (0, 1),
    "ComputeRunningProcesses": (f"1:{81000 * MIB}", "none"),
    "ProcessUtilization": ("1:80", "none"),
    "PcieThroughput.0": (14336, 14336),
    "PcieThroughput.1": (12800, 12800),
    "UtilizationRates.gpu": (97, 45),
    "UtilizationRates.memory": (31, 12),
    "EncoderUtilization": (7, 0),
    "DecoderUtilization": (9, 3),
    "ClockInfo.0": (1755, 1980),
    "ClockInfo.1": (1755, 1980),
    "ClockInfo.2": (3201, 2619),
    "ClockInfo.3": (1545, 1320),
    "PowerUsage": (655250, 212000),
    "FieldValues.185": ("u:655250", "u:212000"),
    "FieldValues.186": ("u:660125", "u:208500"),
    "EnforcedPowerLimit": (650000, 600000),
    "PowerManagementLimit": (650000, 600000),
    "Temperature.0": (71, 52),
    "FieldValues.82": ("u:78", "u:58"),
    "MarginTemperature": (16, 35),
    "FanSpeed": (0, 55),
    "MemoryInfo.used": (81234 * MIB, 4096 * MIB),
    "MemoryInfo.free": (61921 * MIB, 139059 * MIB),
    "CurrentClocksEventReasons": (0x4 | 0x40, 0x1),
    "TotalEccErrors.0.0": (5, 0),
    "TotalEccErrors.1.0": (0, 1),
    "TotalEccErrors.0.1": (9, 2),
    "TotalEccErrors.1.1": (3, 1),
    "RemappedRows.0": (4, 0),
    "RemappedRows.1": (1, 0),
    "RemappedRows.2": (1, 0),
    "CurrPcieLinkGeneration": (5, 4),
    "CurrPcieLinkWidth": (16, 8),
    "FieldValues.230": ("u:0", "u:1"),
    "PerformanceState": (0, 2),
    # As the NVLink counters of the fake driver, which nvitop-exporter reads.
    "Gpm.60": (0, 0),
    "Gpm.61": (0, 0),
}


def loaded(directory: Path) -> FakeDriver:
    """Return a fake driver with the GPUs that the pages were recorded on."""
    driver = FakeDriver(directory, GPUS)
    with driver.batch():
        for key, values in STATE.items():
            for gpu, value in enumerate(values):
                driver.set(key, value, gpu)
    return driver


def divided(directory: Path) -> FakeDriver:
    """Return a fake driver with the GPU in MIG mode that a page was recorded on."""
    driver = FakeDriver(directory)
    with driver.batch():
        driver.set("Index", 0)
        parts = {slot: mig_device(instance, profile) for slot, (instance, profile) in enumerate(INSTANCES.items())}
        for number, part in enumerate(parts.values(), 1):
            part |= {"MemoryInfo.used": 500 * number * MIB, "Gpm.2": 40.0 * number, "Gpm.5": 30.0 * number}
        driver.partition(0, parts)
    return driver


class Page(BaseHTTPRequestHandler):
    """Serves the recorded pages."""

    def do_GET(self) -> None:
        """Answer with the page of the path."""
        body = (DATA / self.path.strip("/")).read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def page_of(peer: PeerExporter, which: str = "") -> str:
    """Return the file of a recorded page, which is also its job."""
    return f"{peer.name.replace('-', '_')}{which and '_' + which}.prom"


@contextmanager
def scraped(folder: Path, serve: Serve, interval: str = "1s") -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes gpu-exporter and the pages of the others, all as the same instance.

    It has scraped everything three times.
    """
    arguments = ("--metrics", "full", "--processes", "--interval", "200ms", "--node-name")
    exporters = {
        GPU: serve(*arguments, NODE, env=loaded(folder / "driver").environment),
        MIG: serve(*arguments, MIG, env=divided(folder / "divided").environment),
    }
    for exporter in exporters.values():
        exporter.until(lambda page: len(page.values("DCGM_FI_PROF_SM_ACTIVE")) == 2)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()

    def target(port: int, job: str) -> dict[str, Any]:
        path = f"/{job}" if job.endswith(".prom") else "/metrics"
        labels = {"job": job, "instance": NODE, "__metrics_path__": path}
        return {"targets": [f"127.0.0.1:{port}"], "labels": labels}

    pages = [target(server.server_port, page_of(peer)) for peer in PEERS]
    pages += [target(server.server_port, page_of(NVIDIA_GPU_EXPORTER, MIG))]
    targets = [*pages, *(target(exporter.port, job) for job, exporter in exporters.items())]
    with scraping(folder, interval, {"static_configs": targets}) as running:
        three = "count(count_over_time({__name__=~'gpu_energy_joules_total|nvidia_smi_energy_joules_total'}[5m]) >= 3)"
        until(lambda: running.query(three) == [5.0], 40, "three scrapes of everything")
        yield running
    server.shutdown()
    server.server_close()


def main() -> None:
    """Print the page of a peer."""
    arguments = sys.argv[1:]
    start = divided if arguments[0] == "--mig" else loaded
    url, *command = arguments[arguments[0] == "--mig" :]
    with TemporaryDirectory() as folder:
        environment = os.environ | start(Path(folder) / "driver").environment
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as peer:
            try:
                until(lambda: _page(url), what=f"a page at {url}")
                shown = "mig_sm_activity" if start is divided else "uuid="
                until(lambda: shown in _page(url), what="its GPUs")
                print(_page(url), end="")
            finally:
                peer.terminate()


def _page(url: str) -> str:
    try:
        with urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except URLError:
        return ""


if __name__ == "__main__":
    main()
