"""The least that reading the GPUs can cost: what `benchmarks.cost` compares gpu-exporter with.

    python -m benchmarks.floor                     imports pynvml, reads each GPU once, prints a line and sleeps
    python -m benchmarks.floor SECONDS serve …     the CPU of one loop with the NVML calls of gpu-exporter, as JSON

The loop makes the calls that gpu-exporter with these options makes within so many seconds, with the same arguments, in
the same seconds, on one thread. It does nothing with what they return. Calls that open, wait or free are left out. The
JSON also has the CPU of each function: what a metric costs in the driver.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pynvml

WARM_SECONDS = 5.0
# Parts of the names of functions that are not called again: their second call would wait, leak, or free twice.
ONCE = ("Init", "Shutdown", "Alloc", "Free", "EventSet", "Events")
PER_GPU = (
    pynvml.nvmlDeviceGetName,
    pynvml.nvmlDeviceGetUUID,
    pynvml.nvmlDeviceGetPowerUsage,
    pynvml.nvmlDeviceGetUtilizationRates,
    pynvml.nvmlDeviceGetMemoryInfo,
    lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
)


class Call(NamedTuple):
    """A call of a function of pynvml or of the library."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


class Recorder:
    """Records the outermost calls by second, while it is asked to; then lets no other thread call the driver."""

    def __init__(self) -> None:
        self.calls: defaultdict[int, list[Call]] = defaultdict(list)
        self._begin, self._ended = float("inf"), threading.Event()
        self._of_thread = threading.local()

    def wrapped(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a function that does the same, and records its calls."""

        def record(*arguments: Any, **options: Any) -> object:
            since, nested = time.monotonic() - self._begin, getattr(self._of_thread, "nested", False)
            if self._ended.is_set() and not nested:
                threading.Event().wait()
            if since >= 0 and not nested:
                self.calls[int(since)].append(Call(function, arguments, options))
            self._of_thread.nested = True
            try:
                return function(*arguments, **options)
            finally:
                self._of_thread.nested = nested

        return record

    def install(self) -> None:
        """Wrap the functions of pynvml, and that of the library which gpu-exporter calls itself."""
        names = [name for name in vars(pynvml) if name.startswith("nvml") and not any(part in name for part in ONCE)]
        for name in names:
            if callable(function := getattr(pynvml, name)) and not isinstance(function, type):
                setattr(pynvml, name, self.wrapped(function))
        init = pynvml.nvmlInit

        def initialised() -> None:
            init()
            with suppress(AttributeError):
                pynvml.nvmlLib.nvmlDeviceGetSamples = self.wrapped(pynvml.nvmlLib.nvmlDeviceGetSamples)

        pynvml.nvmlInit = initialised

    def record(self, seconds: float) -> None:
        """Record for so many seconds."""
        self._begin = time.monotonic()
        time.sleep(seconds)
        self._begin = float("inf")
        self._ended.set()
        time.sleep(1.0)  # the calls in progress end

    def replay(self, seconds: float) -> tuple[float, dict[str, float]]:
        """Make the calls again, each in its second; return the share of a core that they take, also by function."""
        self._of_thread.nested = True  # this thread may call the driver
        begin, cpu = time.monotonic(), time.thread_time()
        functions: defaultdict[str, float] = defaultdict(float)
        for second in range(int(seconds)):
            time.sleep(max(0.0, begin + second - time.monotonic()))
            for function, arguments, options in self.calls.get(second, ()):
                before = time.thread_time()
                with suppress(pynvml.NVMLError):
                    function(*arguments, **options)
                functions[function.__name__] += time.thread_time() - before
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        passed = time.monotonic() - begin
        return (time.thread_time() - cpu) / passed, {name: spent / passed for name, spent in functions.items()}


def _watch(recorder: Recorder, seconds: float) -> None:
    time.sleep(WARM_SECONDS)
    recorder.record(seconds)
    cpu, functions = recorder.replay(seconds)
    number = sum(len(calls) for second, calls in recorder.calls.items() if second < seconds)
    print(json.dumps({"cpu": cpu, "calls": number / seconds, "functions": functions}), flush=True)
    os._exit(0)


def read_once() -> None:
    """Read each GPU once, say so, and sleep until stdin ends."""
    pynvml.nvmlInit()
    for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
        for read in PER_GPU:
            with suppress(pynvml.NVMLError):
                read(handle)
    print("read", flush=True)
    sys.stdin.read()


def main() -> None:
    """Read once, or record and replay the calls of `serve`."""
    if len(sys.argv) == 1:
        read_once()
        return
    from gpu_exporter.cli.main import main as exporter

    recorder = Recorder()
    recorder.install()
    threading.Thread(target=_watch, args=(recorder, float(sys.argv.pop(1))), daemon=True).start()
    exporter()


if __name__ == "__main__":
    main()
