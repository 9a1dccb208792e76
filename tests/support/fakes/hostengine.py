"""Controls a fake nv-hostengine, a process that can be stopped, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.support.tools import LIMIT, free_port, until

BINDINGS = Path(__file__).with_name("dcgm_bindings")
LINKS = 18

# Values of a real H200 in DCGM 4.6.0, in DCGM's units; profiling of a large bf16 product.
H200: Mapping[str, Any] = {
    "55": 0,
    "63": 9 << 16,
    "66": 1,
    "67": 0,
    "84": 1,
    "90": 262144,
    "92": 4,
    "93": 262140,
    "100": 1980,
    "101": 3201,
    "102": 1545,
    "112": 4,
    "113": 1980,
    "114": 3201,
    "115": 1545,
    "140": 51,
    "150": 42,
    "153": 45,
    "155": 512.5,
    "156": 1234567890,
    "157": 530.25,
    "158": 89,
    "159": 92,
    **{str(field): 700.0 for field in (160, 162, 163, 164)},
    "161": 200.0,
    "170": 3,
    "171": 0,
    "190": 0,
    "202": 0,
    "203": 100,
    "204": 37,
    "206": 0,
    "207": 0,
    "235": 5,
    "236": 16,
    "237": 5,
    "238": 16,
    "250": 143771,
    "251": 142147,
    "252": 1024,
    "253": 600,
    "254": 0.00715,
    "300": 1,
    "301": 1,
    **{str(field): 0 for field in (*range(310, 314), 318, 319, 328, 329, *range(342, 347), *range(385, 390))},
    "385": 2624,
    **{str(field): None for field in (390, 391, 392)},
    **{str(field): 0 for field in range(393, 397)},
    **{str(field): None for field in (409, 429, 439)},
    **{str(field): 0 for field in (243, 244, 245, *range(1420, 1425), 1501, 1523)},
    "1420": 3_500_000_000,
    "1001": 0.986,
    "1002": 0.95,
    "1003": 0.14,
    "1004": 0.922,
    "1005": 0.17,
    "1006": 0.0,
    "1007": 0.015,
    "1008": 0.005,
    "1009": 125829120,
    "1010": 251658240,
    "1011": 1153433600,
    "1012": 1048576000,
    "1013": 0.0,
    "1014": 0.92,
    "1015": 0.0,
    "1016": 0.12,
    **{str(field): 0.0 for field in range(1017, 1035)},
}
LINK = {"1525": 0, "1527": 0, "1528": 0, "1532": 64 << 20, "1533": 58 << 20}


def gpu(number: int) -> dict[str, Any]:
    """Return one H200."""
    return {
        "id": number,
        "attributes": {
            "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "deviceName": "NVIDIA H200",
            "pciBusId": f"00000000:{6 + number:02X}:00.0",
            "serial": f"{number:013d}",
            "vbios": "96.00.BC.00.02",
            "inforomImageVersion": "G520.0280.00.07",
            "driverVersion": "580.159.04",
        },
        "fields": {**H200, "54": f"GPU-00000000-0000-0000-0000-{number:012d}", "55": number},
        "links": [3] * LINKS,
        "link_fields": dict(LINK),
        "xids": [],
    }


def instance(number: int, entity: int, on: int, slices: int, profile: str, **fields: float) -> list[dict[str, Any]]:
    """Return a MIG instance with its one compute instance."""
    gpu_instance, compute = [4, entity], [5, entity]
    info = {"nvmlInstanceId": number, "nvmlProfileSlices": slices, "nvmlComputeInstanceId": 0}
    of = {"250": 16384, "251": 16000, "252": 384, "253": 0, "254": 0.0234, "1001": 0.4, "1002": 0.3}
    return [
        {"entity": gpu_instance, "parent": [1, on], "info": info, "fields": {"50": profile, **of, **fields}},
        {"entity": compute, "parent": gpu_instance, "info": info, "fields": {"54": f"MIG-{on}-{number}"}},
    ]


class FakeHostengine:
    """A host engine on TCP, or on a Unix socket, with GPUs that a test changes."""

    def __init__(self, folder: Path, gpus: int = 1, *, unix: bool = False, version: str = "4.6.0") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "state.json"
        self.address = str(folder / "hostengine.sock") if unix else f"127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.state: dict[str, Any] = {
            "version": version,
            "gpus": [gpu(number) for number in range(gpus)],
            "system": {"2": "13.580.159.04", "5": 13000},
        }
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for the fake bindings: a call that hangs takes 3 s, not 60."""
        major = self.state["version"].split(".")[0]
        return {"STANDIN_DCGM_TIMEOUT": "3", "STANDIN_DCGM_STATE": str(self.path), "STANDIN_DCGM": major}

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of a command that reads it."""
        return ("--source", "dcgm", "--dcgm-hostengine", self.address, "--dcgm-bindings", str(BINDINGS))

    def write(self) -> None:
        """Write `state`."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.state))
        os.replace(part, self.path)

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        """Change the state within the block."""
        yield self.state
        self.write()

    def set(self, field: int, value: Any, on: int = 0) -> None:
        """Give a field of a GPU a value: a number, None for a blank, the name of a blank, or {"status": code}."""
        with self.changed() as state:
            state["gpus"][on]["fields"][str(field)] = value

    def remove(self, number: int) -> None:
        """Detach a GPU, which is still listed, but cannot be read."""
        with self.changed() as state:
            state["gpus"][number]["supported"] = False

    def restore(self, number: int) -> None:
        """Attach it again."""
        with self.changed() as state:
            state["gpus"][number].pop("supported", None)
            state["gpus"][number].pop("lost", None)

    def lose(self, number: int) -> None:
        """Make all values of a GPU blank."""
        with self.changed() as state:
            state["gpus"][number]["lost"] = True

    def xid(self, *codes: int, on: int = 0) -> None:
        """Report XIDs, one after the other."""
        with self.changed() as state:
            state["gpus"][on]["xids"] += codes

    def start(self) -> None:
        """Start it, and wait until it listens."""
        arguments = [sys.executable, "-m", "tests.support.fakes.hostengine_server", str(self.path), self.address]
        self.process = subprocess.Popen(arguments, cwd=ROOT)
        end = time.monotonic() + LIMIT
        while not self._listens():
            assert self.process.poll() is None
            assert time.monotonic() < end, "the fake host engine does not listen"
            time.sleep(0.02)

    def _listens(self) -> bool:
        unix = self.address.startswith("/")
        host, _, port = self.address.rpartition(":")
        with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
            client.settimeout(1)
            return client.connect_ex(self.address if unix else (host, int(port))) == 0

    def signal(self, number: signal.Signals) -> None:
        """Stop it with SIGSTOP, or continue it with SIGCONT; wait until it has."""
        assert self.process is not None
        self.process.send_signal(number)
        status = Path(f"/proc/{self.process.pid}/stat")
        until(lambda: (status.read_text().rpartition(")")[2].split()[0] == "T") is (number == signal.SIGSTOP))

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
