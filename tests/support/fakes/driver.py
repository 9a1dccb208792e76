"""A fake of NVIDIA's driver library, loaded by the real binding in a child process."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

Value = str | int | float
LIBRARY = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("nvml.c")
MIB = 1 << 20


def identity(gpu: int) -> dict[str, Value]:
    """Return the values that identify a GPU."""
    return {
        "UUID": f"GPU-00000000-0000-0000-0000-{gpu:012d}",
        "PciBusId": f"00000000:{6 + gpu:02X}:00.0",
        "MinorNumber": gpu,
        "Serial": str(1_650_000_000_000 + gpu),
    }


def _numbered(call: str, values: Mapping[int, Value]) -> dict[str, Value]:
    return {f"{call}.{number}": value for number, value in values.items()}


def _links(links: int, fields: Mapping[int, Value]) -> dict[str, Value]:
    """Return the fields of NVLinks, by link; a link that does not exist is an invalid argument."""
    return {
        "FieldValues.91": f"u:{links}",
        **_numbered("NvLinkState", {**dict.fromkeys(range(links), 1), links: "!2"}),
        **{f"FieldValues.{field}.{link}": fields[field] for field in fields for link in range(links)},
        **{f"FieldValues.{field}.{links}": "!2" for field in fields if field in (164, 165, 166)},
    }


# Values of both generations. ECC: error type 0 corrected, 1 not; counter 0 volatile, 1 aggregate; place 2
# device memory, 7 SRAM.
_COMMON: dict[str, Value] = {
    "Driver": "580.159.04",
    "Nvml": "13.580.159.04",
    "Cuda": 13000,
    "Brand": 14,
    "PersistenceMode": 1,
    "MigMode.current": 0,
    "MigMode.pending": 0,
    "UtilizationRates.gpu": 0,
    "UtilizationRates.memory": 0,
    **_numbered("Samples", {1: 0, 2: 0}),
    **dict.fromkeys(("EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization"), 0),
    **{f"P2PStatus.2.{gpu}": 0 for gpu in range(8)},
    **dict.fromkeys(("ComputeRunningProcesses", "GraphicsRunningProcesses", "ProcessUtilization"), "none"),
    "PerformanceState": 0,
    "CurrentClocksEventReasons": 1,
    "PcieReplayCounter": 0,
    "NumFans": 0,
    "EccMode.current": 1,
    "EccMode.pending": 1,
    **{f"TotalEccErrors.{error}.{counter}": 0 for error in (0, 1) for counter in (0, 1)},
    **{f"MemoryErrorCounter.{e}.{c}.{place}": 0 for e in (0, 1) for c in (0, 1) for place in (2, 7)},
    **_numbered("RemappedRows", dict.fromkeys(range(4), 0)),
    **{f"RowRemapperHistogram.{level}": 0 for level in ("high", "partial", "low", "none")},
    **_numbered("FieldValues", dict.fromkeys((3, 4, 5, 6, *range(74, 82), *range(138, 146)), 0)),
    **_numbered("FieldValues", {1: 1, 2: 1, 94: "u:0", 95: "u:0"}),
}

# Values of a real idle H200 (for NVLink, of two); the GPM values are those of a large bf16 matrix product.
H200: Mapping[str, Value] = {
    **_COMMON,
    "Name": "NVIDIA H200",
    "Architecture": 9,
    "NumGpuCores": 16896,
    "MemoryBusWidth": 6144,
    "CudaComputeCapability.major": 9,
    "CudaComputeCapability.minor": 0,
    "VbiosVersion": "96.00.A5.00.1A",
    "InforomImageVersion": "G520.0282.02.02",
    "PowerUsage": 79715,
    "Samples.0": 79715,
    **dict.fromkeys(("EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit"), 700000),
    "PowerManagementLimitConstraints.min": 200000,
    "PowerManagementLimitConstraints.max": 700000,
    "TotalEnergyConsumption": 2265782,
    "Temperature.0": 36,
    "MarginTemperature": 51,
    **_numbered("TemperatureThreshold", {0: 95, 1: 89, 3: 87}),
    **_numbered("ClockInfo", {0: 885, 1: 885, 2: 3201, 3: 765}),
    **_numbered("MaxClockInfo", {0: 1980, 1: 1980, 2: 3201, 3: 1545}),
    "MemoryInfo.total": 150754820096,
    "MemoryInfo.reserved": 644939776,
    "MemoryInfo.free": 150109880320,
    "MemoryInfo.used": 0,
    "BAR1MemoryInfo.total": 274877906944,
    "BAR1MemoryInfo.free": 274876203008,
    "BAR1MemoryInfo.used": 1703936,
    "RowRemapperHistogram.max": 3072,
    "SramEccErrorStatus.bThresholdExceeded": 0,
    "RepairStatus.channel": 0,
    "RepairStatus.tpc": 0,
    "ValidateInforom": 1,
    **dict.fromkeys(
        (f"GpuFabricInfoV.{part}" for part in ("state", "status", "mask", "clique", "cluster")), 0
    ),  # no fabric
    **dict.fromkeys(("CurrPcieLinkGeneration", "MaxPcieLinkGeneration"), 5),
    **dict.fromkeys(("CurrPcieLinkWidth", "MaxPcieLinkWidth"), 16),
    **_numbered("FieldValues", {78: 18878477344, 80: 9512175264, 81: 9512175264, 140: 28, 141: 141}),
    **_numbered("FieldValues", {82: "u:41", 83: 2455539, 185: "u:82206", 186: "u:79393", 191: 2455539}),
    **_numbered("FieldValues", dict.fromkeys((147, *range(187, 191), 192, *range(251, 257)), "f:0.0")),
    **_numbered("FieldValues", {169: "u:176", 175: "u:5", 176: "u:6", 177: "u:5", 183: "u:22", 184: "u:1"}),
    **_numbered("FieldValues", dict.fromkeys((173, 174, *range(178, 183), *range(226, 231)), "u:0")),
    **_numbered("FieldValues", {193: "i:-8", 194: "i:-2", 195: "i:0", 196: "i:0"}),
    **_numbered("FieldValues", {197: "u:3634845404", 198: "u:801497508", 199: "u:1"}),
    **_numbered("FieldValues", dict.fromkeys((269, 270, 271, 301, 302), 0)),
    **_numbered("FieldValues", {167: "u:1", 168: "u:500", 200: "u:8191", 223: "u:1", 224: "u:0", 225: "u:2"}),
    **_links(18, {146: "u:0", 161: 0, 162: 0, 163: 0, 164: "u:26562", 165: "u:1", 166: "u:6"}),
    "GpmSupported": 1,
    **_numbered("Gpm", dict.fromkeys((*range(30, 38), *range(40, 48), 50, 51, *range(166, 170)), 0.0)),
    **_numbered("Gpm", {1: 99.5, 2: 96.0, 3: 14.0, 4: 5.0, 5: 93.0, 6: 0.0, 7: 93.0, 8: 0.0, 9: 0.0}),
    **_numbered("Gpm", {10: 17.0, 11: 0.0, 12: 3.0, 13: 1.0, 20: 14.0, 21: 12.5}),
    **_numbered("Gpm", {60: 1800.0, 61: 1800.0, **dict.fromkeys(range(62, 98), 100.0)}),
}

# An A100 SXM4 80GB: no GPM, no margin temperature, NVLink errors by lane instead of by link.
AMPERE: Mapping[str, Value] = {
    **_COMMON,
    "Name": "NVIDIA A100-SXM4-80GB",
    "Architecture": 7,
    "NumGpuCores": 6912,
    "MemoryBusWidth": 5120,
    "CudaComputeCapability.major": 8,
    "CudaComputeCapability.minor": 0,
    "VbiosVersion": "92.00.45.00.03",
    "InforomImageVersion": "G506.0210.00.04",
    "PowerUsage": 64312,
    **dict.fromkeys(("EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit"), 400000),
    "PowerManagementLimitConstraints.min": 100000,
    "PowerManagementLimitConstraints.max": 400000,
    "TotalEnergyConsumption": 1930442,
    "Temperature.0": 33,
    **_numbered("TemperatureThreshold", {0: 92, 1: 89, 2: 95, 3: 85}),
    **_numbered("ClockInfo", {0: 210, 1: 210, 2: 1593, 3: 585}),
    **_numbered("MaxClockInfo", {0: 1410, 1: 1410, 2: 1593, 3: 1290}),
    "MemoryInfo.total": 81920 * MIB,
    "MemoryInfo.reserved": 628 * MIB,
    "MemoryInfo.free": 81292 * MIB,
    "MemoryInfo.used": 0,
    "BAR1MemoryInfo.total": 131072 * MIB,
    "BAR1MemoryInfo.free": 131071 * MIB,
    "BAR1MemoryInfo.used": MIB,
    "RowRemapperHistogram.max": 640,
    **dict.fromkeys(("CurrPcieLinkGeneration", "MaxPcieLinkGeneration"), 4),
    **dict.fromkeys(("CurrPcieLinkWidth", "MaxPcieLinkWidth"), 16),
    **_numbered("FieldValues", {82: "u:37", 83: 1930442, 186: "u:64312", 90: "u:25781"}),
    **_numbered("FieldValues", dict.fromkeys((*range(32, 60), *range(96, 120)), 0)),
    **_links(12, {138: 4000, 139: 3000}),
    "PcieThroughput.0": 1500,
    "PcieThroughput.1": 2500,
    "GpmSupported": 0,
}


def mig_device(instance: int, profile: str, **values: Value) -> dict[str, Value]:
    """Return the values of a MIG device that fills a GPU instance: its id, its profile (1g.18gb), and `values`."""
    slices, memory = (int(number) for number in re.findall(r"\d+", profile)[:2])
    total = memory * 1000**3
    return {
        "GpuInstanceId": instance,
        "ComputeInstanceId": 0,
        "UUID": f"MIG-00000000-0000-0000-{slices:04d}-{instance:012d}",
        "Name": f"NVIDIA H200 MIG {profile}",
        "Attributes_v2.gpuInstanceSliceCount": slices,
        "MemoryInfo.total": total,
        "MemoryInfo.reserved": 0,
        "MemoryInfo.free": total,
        "MemoryInfo.used": 0,
        **values,
    }


def steps(*changes: tuple[Value, float]) -> str:
    """Return a value that changes at given times (unix seconds): `steps((0, t), (50, t + 1), ("!15", t + 2))`."""
    return ";".join(f"{value}@{at:.6f}" for value, at in changes)


def sawtooth(driver: FakeDriver, low: float, high: float, on: float, off: float, turns: int) -> None:
    """Make GPU 0 alternate `turns` times, after a second: `on` seconds of work at `high` watts, `off` idle at `low`."""
    begin = time.time() + 1
    times = [(begin + (on + off) * n, begin + (on + off) * n + on) for n in range(turns)]
    with driver.batch():
        driver.set("Samples.0", steps(*[step for on, off in times for step in ((high * 1000, on), (low * 1000, off))]))
        driver.set("Gpm.2", steps(*[step for on, off in times for step in ((96, on), (0, off))]))


def counter(base: float, rate: float, since: float) -> str:
    """Return a value that grows by `rate` a second, from `base` at the time `since`."""
    return f"~{base:.6f}{rate:+.6f}@{since:.6f}"


@cache
def _library(*defined: str) -> bytes:
    with TemporaryDirectory() as scratch:
        built = Path(scratch) / LIBRARY
        options = [
            "-shared",
            f"-Wl,-soname,{LIBRARY}",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-pthread",
            *(f"-D{each}" for each in defined),
        ]
        subprocess.run(["cc", *options, str(SOURCE), "-o", str(built), "-lm"], check=True)
        return built.read_bytes()


class FakeDriver:
    """Controls the fake NVIDIA driver library through its control file; nvml.c describes the keys."""

    def __init__(self, directory: Path, gpus: int = 1, profile: Mapping[str, Value] = H200) -> None:
        self.directory = directory = directory.absolute()
        self._control = directory / "control"
        self._lines: dict[tuple[int | None, str], Value] = {}
        self._lock = threading.RLock()
        self._batches = 0
        self._written = 0
        self._loads = 1
        self._xids: dict[int, list[int]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / LIBRARY).exists():
            (directory / LIBRARY).write_bytes(_library())
        with self.batch():
            for key, value in profile.items():
                self.set(key, value)
            self.load()
            self.count(gpus)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a child process loads this library."""
        path = os.pathsep.join(filter(None, (str(self.directory), os.environ.get("LD_LIBRARY_PATH"))))
        return {
            "LD_LIBRARY_PATH": path,
            "FAKE_NVML": str(self._control),
            # Real GPUs of this machine do not count as expected, and their XIDs are not read.
            "NVIDIA_VISIBLE_DEVICES": "void",
            "GPU_EXPORTER_KERNEL_LOG": "none",
        }

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make all changes inside visible to the library at once."""
        with self._lock:
            self._batches += 1
            try:
                yield
            finally:
                self._batches -= 1
                if not self._batches:
                    self._write()

    def set(self, key: str, value: Value, gpu: int | None = None) -> None:
        """Set a key on one GPU, or on all GPUs without a value of their own."""
        with self.batch():
            self._lines[gpu, key] = int(value) if isinstance(value, bool) else value

    def unset(self, key: str, gpu: int | None = None) -> None:
        """Remove a value: a GPU then has the value of all GPUs, and without that, the key is "not supported"."""
        with self.batch():
            self._lines.pop((gpu, key), None)

    def fail(self, key: str, code: int, gpu: int | None = None) -> None:
        """Make a call (its bare name) or one of its values return an NVML code."""
        self.set(key, f"!{code}", gpu)

    def delay(self, call: str, seconds: float, gpu: int | None = None) -> None:
        """Make a call take this long, or until the delay is unset."""
        self.set(f"Delay.{call}", seconds, gpu)

    def waiting(self) -> Callable[[], bool]:
        """Return a function that returns whether a call has begun to hang, or to take its time, from now on."""
        file = self.directory / "waiting"
        file.unlink(missing_ok=True)
        self.set("WaitingFile", str(file))
        return file.exists

    def lose(self, gpu: int) -> None:
        """Make the GPU fall off the bus."""
        self.set("Lost", 1, gpu)

    def require_reset(self, gpu: int) -> None:
        """Make the GPU answer only that it needs a reset."""
        self.set("Reset", 1, gpu)

    def answer_unknown(self, gpu: int) -> None:
        """Make every call on the GPU fail without a reason, as in a container that has lost its devices."""
        self.set("Unknown", 1, gpu)

    def restore(self, gpu: int) -> None:
        """Bring the GPU back."""
        with self.batch():
            self.unset("Lost", gpu)
            self.unset("Reset", gpu)
            self.unset("Unknown", gpu)

    def block(self, gpu: int) -> None:
        """Make every call on the GPU hang until `unblock`."""
        self.set("Block", 1, gpu)

    def unblock(self, gpu: int) -> None:
        """Let the hanging calls continue."""
        self.unset("Block", gpu)

    def lock(self, scope: str) -> None:
        """Serialise the calls of each GPU (`gpu`) or all calls (`driver`), so that one that hangs stops the others."""
        self.set("Lock", scope)

    def unload(self) -> None:
        """Unload the driver."""
        self.set("Loaded", 0)

    def load(self) -> None:
        """Load a driver: each time another one, so that the library notices that it must be reopened."""
        self.set("Loaded", self._loads)
        self._loads += 1

    def upgrade(self, version: str) -> None:
        """Install and load another driver. Its version is known only to the library that comes with it."""
        draft = self.directory / "draft"
        draft.write_bytes(_library('DRIVER="NextDriver"'))
        draft.replace(self.directory / LIBRARY)
        with self.batch():
            self.set("NextDriver", version)
            self.load()

    def count(self, gpus: int) -> None:
        """Set the number of GPUs; each has its own identity."""
        with self.batch():
            self.set("Count", gpus)
            for gpu in range(gpus):
                for key, value in identity(gpu).items():
                    self._lines.setdefault((gpu, key), value)

    def xid(self, gpu: int, *codes: int) -> None:
        """Make the driver report XIDs, in this order, after earlier ones."""
        xids = self._xids.setdefault(gpu, [])
        xids += codes
        self.set("Xids", ",".join(f"{number}:{code}" for number, code in enumerate(xids, 1)), gpu)

    def partition(self, gpu: int, devices: Mapping[int, Mapping[str, Value]]) -> None:
        """Put a GPU in MIG mode with these MIG devices by slot; `mig_device` makes their values."""
        with self.batch():
            for mode in ("MigMode.current", "MigMode.pending"):
                self.set(mode, 1, gpu)
            for slot in range(7):
                self.unset(f"MigDevice.{slot}", gpu)
                own = 100 * (gpu + 1) + slot
                for key in [key for number, key in self._lines if number == own]:
                    self.unset(key, own)
            for slot, values in devices.items():
                self.set(f"MigDevice.{slot}", 1, gpu)
                for key, value in values.items():
                    self.set(key, value, 100 * (gpu + 1) + slot)

    def _write(self) -> None:
        lines = (f"{'*' if gpu is None else gpu} {key} {value}" for (gpu, key), value in self._lines.items())
        draft = self._control.with_suffix(".draft")
        draft.write_text("\n".join(lines) + "\n")
        # The library notices a new file by its time, for which the clock ticks too slowly.
        self._written = max(self._written + 1, time.time_ns())
        os.utime(draft, ns=(self._written, self._written))
        os.replace(draft, self._control)
