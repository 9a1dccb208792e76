"""An exporter whose threads are never started: each step of them is a call, at times that the caller sets.

    python -m tests.counts.exporter FOLDER

Runs it with each of SETUPS in a process that has loaded count.c, and prints what Python allocates meanwhile as JSON;
callgrind writes the instructions. The fake driver's library is in FOLDER.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import gzip
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from gpu_exporter.app.node import Node, ProcessMetrics
from gpu_exporter.app.server import exporter_server
from gpu_exporter.config import Config, package_settings
from gpu_exporter.diagnosis.gather import WatchedScrapes, stamped
from gpu_exporter.diagnosis.remote_scrapes import is_read
from gpu_exporter.diagnosis.result import diagnose_scrapes
from gpu_exporter.diagnosis.text_format import TextParser
from gpu_exporter.io.user_text import Address
from gpu_exporter.jobs.connections import SocketPeer
from gpu_exporter.jobs.watch import JobWatch
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.owners.choice import Poller
from gpu_exporter.pipeline.fields_in_force import Fields, FieldsSettings
from gpu_exporter.sources.nvml.source import NvmlSource
from tests.support.fakes.driver import FakeDriver, counter
from tests.support.fakes.procfs import FakeHost, Task
from tests.support.job_sender import encoded, message

# As Prometheus sends it.
REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nUser-Agent: Prometheus/2.42.0\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
    b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 1\r\n\r\n"
)
# As `diagnose` sends it.
TEXT_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nAccept-Encoding: gzip\r\n\r\n"
# Fields are read every 1, 5, 15 or 60 s. With one GPU, those of 15 s are read once while collections are counted. With
# several GPUs, which read them at different times, fewer collections are counted, because callgrind is slow.
COLLECTIONS, SEVERAL = 15, 5
WARM_UP, SCRAPES = 2, 5
# `diagnose` judges two pages of so many GPUs.
FLEET = 64
DIAGNOSIS = f"diagnosis of {FLEET}"
# The clock of count.c at the start.
UNIX_SECONDS = 1_800_100_000
EVERYTHING = (b"gpu_process_memory_used_bytes", b"gpu_host_workers", b"gpu_job_steps_total")
PIDS = tuple(range(1000, 9000, 1000))
THREADS, WORKERS = 4, 2
PIECE = 64 << 10


@dataclass(frozen=True)
class Setup:
    """The options of an exporter."""

    gpus: int
    everything: bool

    @property
    def name(self) -> str:
        """Its row of the table."""
        return f"{'everything' if self.everything else 'default'}, {self.gpus} GPU{'s' * (self.gpus > 1)}"

    @property
    def collections(self) -> int:
        """How many collections are counted."""
        return COLLECTIONS if self.gpus == 1 else SEVERAL

    def config(self, folder: Path, host: FakeHost) -> Config:
        """Return its settings."""
        config = Config(
            address=Address("127.0.0.1", 0),
            node_name="node",
            kernel_log=None,
            nics=False,
            procfs=host.proc,
            sysfs=host.sys,
        )
        if not self.everything:
            return config
        jobs = folder / f"jobs-{self.gpus}"
        return replace(config, metrics=MetricSet.FULL, processes=True, host_evidence=True, job_socket=jobs)


SETUPS = tuple(Setup(gpus, everything) for everything in (False, True) for gpus in (1, 8))
OF_FLEET = SETUPS[0]


class Counted:
    """Counts what functions do."""

    def __init__(self) -> None:
        self._library = library = ctypes.PyDLL(None)
        library.count_bytes.restype = ctypes.c_longlong
        self.bytes: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to count, which makes callgrind slow."""
        self._library.count_start()

    def stop(self) -> None:
        """Count nothing until the next start."""
        self._library.count_stop()

    def pass_second(self) -> None:
        """Let a second pass."""
        self._library.count_advance(1)

    def __call__(self, name: str, function: Callable[[], object]) -> None:
        """Call the function, and add what it does to the counts of this name."""
        library, before = self._library, self._library.count_bytes()
        library.count_begin()
        function()
        library.count_end(name.encode())
        self.bytes[name] += library.count_bytes() - before


class OneThread(NvmlSource):
    """The driver, read on the thread that asks for a collection."""

    gil_lock = Lock()

    def instant(self, index: int) -> bool:
        """Return that no read waits."""
        return True


class Exporter:
    """The parts of `serve`, with a process on each GPU."""

    def __init__(self, folder: Path, host: FakeHost, setup: Setup) -> None:
        self._pids = PIDS[: setup.gpus]
        occupy(FakeDriver(folder, setup.gpus))
        config = setup.config(folder, host)
        source, selection = (
            OneThread(config.sysfs, config.procfs),
            Fields(package_settings(config, FieldsSettings)).selection,
        )
        node: Any = Node("node", source, config, ProcessMetrics(config.interval), selection, tuple)
        self._collector, self._live, self._steps = node.collector, node.live, 0
        self._jobs: JobWatch | None = next((part for part in node._telemetry if isinstance(part, JobWatch)), None)
        self._polls: list[Callable[[], None]] = []
        if setup.everything:
            self._polls += [partial(poll, poller) for poller in node._attributor._threads]
            self._polls += [partial(watch.poll, 0.0) for watch in node._host.parts]
        self._loop = asyncio.new_event_loop()
        self._server = exporter_server(config.address, [node.endpoint])
        self._server._listen(self._loop)
        self._client = socket.create_connection(("127.0.0.1", self._server.port))
        self._collector._connector._keep_open()

    def collect(self) -> None:
        """Read all GPUs, and publish a page."""
        self._collector.tick()

    def look_up(self) -> None:
        """Do what the threads of attribution, host evidence and jobs do in a second."""
        for each in self._polls:
            each()
        if self._jobs:
            self._steps += 4
            for rank, pid in enumerate(self._pids):
                self._jobs.take(
                    encoded(message(self._steps, rank=rank, world_size=len(self._pids))), SocketPeer(pid, 1000)
                )
            self._jobs._publish(float(self._steps))

    def follow(self) -> None:
        """Do what the thread of the live page does in a second."""
        self._live.follow()

    def scrape(self, request: bytes = REQUEST) -> bytes:
        """Request the page over a connection that stays open, and return the response."""
        response = bytearray()

        def receive() -> None:
            response.extend(self._client.recv(PIECE))
            head, end, body = response.partition(b"\r\n\r\n")
            if end and len(body) == int(head.partition(b"Content-Length: ")[2].split()[0]):
                self._loop.stop()

        self._loop.add_reader(self._client, receive)
        self._client.sendall(request)
        self._loop.run_forever()
        return bytes(response)

    def page(self) -> bytes:
        """Return the page of a scrape."""
        return gzip.decompress(self.scrape(TEXT_REQUEST).partition(b"\r\n\r\n")[2])

    def later_page(self, counted: Counted) -> bytes:
        """Return the page of the next collection."""
        counted.pass_second()
        self.collect()
        return self.page()


def fleet_page(page: bytes) -> str:
    """Return a page of FLEET GPUs, each with the samples of the GPU of a page."""
    lines = page.decode().splitlines()
    uuid = next(line.partition('UUID="')[2].partition('"')[0] for line in lines if 'UUID="' in line)
    of_gpus = (
        line.replace(uuid, f"{uuid[:-4]}{gpu:04d}").replace('gpu="0"', f'gpu="{gpu}"')
        for line in lines
        for gpu in range(FLEET if uuid in line else 1)
    )
    return "\n".join((*of_gpus, ""))


def diagnosed(pages: Sequence[str]) -> None:
    """Do what `diagnose --url` does with the pages of an exporter."""
    parse = TextParser(is_read)
    scrapes = [stamped(parse(page)) for page in pages]
    found = diagnose_scrapes(WatchedScrapes(scrapes, "", scrapes[-1].at - scrapes[0].at))
    assert len(found.diagnoses) == FLEET, "not every GPU is judged"


def occupy(driver: FakeDriver) -> None:
    """Put a process on each GPU, and let values change every second."""
    with driver.batch():
        for gpu, pid in enumerate(PIDS):
            driver.set("ComputeRunningProcesses", f"{pid}:20000000000", gpu)
            driver.set("ProcessUtilization", f"{pid}:97", gpu)
        for key in ("PowerUsage", "Samples.0"):
            driver.set(key, counter(300_000, 500, UNIX_SECONDS))
        driver.set("Temperature.0", counter(50, 0.5, UNIX_SECONDS))
        driver.set("TotalEnergyConsumption", counter(2_000_000, 300_000, UNIX_SECONDS))
        for metric in (1, 2, 3, 5, 7, 10, 20, 21):
            driver.set(f"Gpm.{metric}", counter(10, 0.25, UNIX_SECONDS))


def host_with_processes(folder: Path) -> FakeHost:
    """Return a machine with the processes, each with threads and loader workers."""
    host = FakeHost(folder)
    host.put("proc/2/comm", "kthreadd\n")  # the host's procfs, not a container's
    for pid in PIDS:
        host.put(f"proc/{pid}/comm", "python\n")
        threads = {pid + n: Task(pid + n, b"thread") for n in range(1, THREADS + 1)}
        workers = tuple(range(pid + 100, pid + 100 + WORKERS))
        host.tasks[pid] = Task(pid, threads=threads, children=workers)
        host.tasks.update({worker: Task(worker, b"pt_data_worker", parent=pid) for worker in workers})
    host.write()
    return host


def poll(poller: Poller[Any]) -> None:
    """Do what an attribution thread does in its period."""
    poller.lookup.answer(poller._ask())


def count(exporter: Exporter, setup: Setup, counted: Counted) -> None:
    """Count what one collection does on each thread, and what a scrape does."""
    for _ in range(WARM_UP):
        counted.pass_second()
        for step in (exporter.collect, exporter.look_up, exporter.follow):
            step()
    gc.collect()
    gc.freeze()
    gc.disable()  # when it runs depends on everything that ran before
    counted.start()
    for _ in range(setup.collections):
        counted.pass_second()
        exporter.scrape()  # so the page is compressed in advance
        counted(f"{setup.name}: collection", exporter.collect)
        counted(f"{setup.name}: live page", exporter.follow)
        if setup.everything:
            counted(f"{setup.name}: owners, host and jobs", exporter.look_up)
    for _ in range(SCRAPES):
        counted(f"{setup.name}: scrape", exporter.scrape)
    if setup == OF_FLEET:
        pages = [fleet_page(each) for each in (exporter.page(), exporter.later_page(counted))]
        diagnosed(pages)  # imports
        counted(f"{setup.name}: {DIAGNOSIS}", lambda: diagnosed(pages))
    counted.stop()
    gc.enable()
    gc.unfreeze()
    page = exporter.page()
    for name in (b"DCGM_FI_PROF_SM_ACTIVE", *EVERYTHING) if setup.everything else (b"DCGM_FI_DEV_POWER_USAGE",):
        assert page.count(b"\n" + name + b"{") == setup.gpus, f"{setup.name}: {name.decode()} is not of each GPU"


def main() -> None:
    """Run all setups, and print the bytes that each allocates."""
    folder = Path(sys.argv[1])
    host = host_with_processes(folder / "host")
    counted = Counted()
    for setup in SETUPS:
        count(Exporter(folder, host, setup), setup, counted)
    print(json.dumps(counted.bytes))


if __name__ == "__main__":
    main()
