"""All attacks at once on an exporter and a remediation controller, each in a memory cgroup: `make soak`.

    python -m tests.soak.storm [--seconds 600] [--memory 256] [--calm] [--json FILE]

Two of eight fake GPUs hang. Meanwhile slow readers, half bodies, silent connections, streams and guessed passwords come
from some forty addresses and one trusted proxy, two users hold all connections of the job socket and a third one sends
jobs with long hostile names, the kernel log is full of XIDs, the exporter reloads its files, and nobody reads the logs
of either process. Nobody else must notice: other addresses scrape, log in and open the live page, honest ranks send,
and the controller cordons nodes with the same delay as ever. Memory must not grow. `--calm` leaves out the attacks.

It needs root and a memory cgroup that it may write. Of version 1, a limit does not include socket buffers: both are
added up here, as version 2 does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from fcntl import F_SETPIPE_SZ, fcntl
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

import bcrypt

from gpu_exporter.remediation.settings import Budget, Exporters, Mode
from tests.conftest import Page, command
from tests.e2e.remediation.test_remediation import NODES, PODS, Site, answer
from tests.soak.attacks import PAUSE
from tests.soak.remediation_fleet import PROGRAM
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.memory_cgroup import MIB, MemoryCgroup, Usage, memory_cgroup
from tests.support.outputs import Shown, wrong
from tests.support.tools import until

GPUS, WEDGED = 8, (2, 5)
# The exporter under attack, whose node is n3: those of the nodes n0 to n2 have other addresses and the same port.
HOST, NODE = "127.0.0.4", "n3"
PROMETHEUS, KUBELET, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.200"
# For how long a fault must last before a node is cordoned, and how often the controller looks.
CONFIRM, LOOKS, LATE = 10.0, 5.0, 5.0
# How long the exporter takes to be sure that a GPU hangs: some collections.
DETECTION = 5.0
SCRAPE_TIMEOUT, PROBE_TIMEOUT = 10.0, 5.0
# The growth of memory from the third to the last quarter that is no trend. Before, the heap grows until it has had the
# most that connections can need. Socket buffers have a bound of their own, and fill as fast as the cores allow.
MOST_GROWTH = 1.05
# As few CPU as htpasswd allows would hide what a guess costs.
BCRYPT_COST = 10
UIDS = {"idle": ("2001", "2003"), "grow": "2005", "verified": "2002", "unverified": "2004"}


@dataclass
class Client:
    """Requests that must never fail, however long they take; `seconds` are their durations."""

    name: str
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def keep_asking(self, ask: Callable[[], None], every: float, stop: threading.Event) -> None:
        """Ask regularly until `stop`."""
        begin = due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            started = time.monotonic()
            try:
                ask()
                self.seconds.append(time.monotonic() - started)
            except (OSError, HTTPException, AssertionError) as error:
                self.failures.append(f"after {started - begin:.0f} s: {error!r}"[:200])
            due += every

    def percentile(self, share: float) -> float:
        """Return the duration that this share of the requests does not exceed, in milliseconds."""
        return 1000 * sorted(self.seconds)[int(share * (len(self.seconds) - 1))] if self.seconds else 0.0


class Busy(OSError):
    """The exporter asks to repeat a request later."""


class Server(NamedTuple):
    """Where requests go, from which address, with which headers, and how long an answer may take."""

    host: str
    port: int
    source: str
    headers: Mapping[str, str]
    timeout: float = SCRAPE_TIMEOUT

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, least: int = 200) -> bytes:
        """Return the content of an answer. Raises AssertionError if it has another status."""
        connection = HTTPConnection(self.host, self.port, self.timeout, (self.source, 0))
        try:
            connection.request(method, path, body, {"Accept-Encoding": "gzip", **self.headers})
            response = connection.getresponse()
            if response.status == 429:
                raise Busy("status 429")
            assert response.status == least, f"status {response.status}"
            if path.endswith("/stream"):
                return response.readline()
            content = response.read()
            return gzip.decompress(content) if response.getheader("Content-Encoding") == "gzip" else content
        finally:
            connection.close()


def basic(user: str) -> dict[str, str]:
    """Return the header with the password of a user."""
    return {"Authorization": "Basic " + b64encode(f"{user}:secret-{user}".encode()).decode()}


class UnreadLog:
    """A pipe that is full, and that nobody reads until the end: the output of a process."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl(self.writer, F_SETPIPE_SZ, 4096)

    def fill(self) -> None:
        """Leave no room."""
        # Another description of the pipe: the process's own must go on to block.
        writer = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"x")
        os.close(writer)
        os.close(self.writer)

    def rest(self) -> str:
        """Read everything that waits; the process must end meanwhile."""
        with os.fdopen(self.reader, "rb") as file:
            return file.read().decode("utf-8", "replace")


class Watched:
    """A process in a memory cgroup, and what it uses; CPU in seconds."""

    def __init__(self, process: subprocess.Popen[bytes], cgroup: MemoryCgroup, log: UnreadLog) -> None:
        self.process, self.cgroup, self.log = process, cgroup, log
        self.used: list[Usage] = []
        self.descriptors: list[int] = []

    def keep_looking(self, stop: threading.Event) -> None:
        """Note its memory, twice a second, until `stop`."""
        while not stop.wait(0.5):
            self.used.append(self.cgroup.usage())
            with suppress(FileNotFoundError):
                self.descriptors.append(len(os.listdir(f"/proc/{self.process.pid}/fd")))

    def cpu(self) -> float:
        """Return the CPU seconds that it has used."""
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def waited(self) -> float:
        """Return the seconds in which its threads were ready to run, but other processes used the cores."""
        waited = 0.0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):
                waited += int((thread / "schedstat").read_text().split()[1]) / 1e9
        return waited

    def medians(self, parts: int) -> list[Usage]:
        """Return the median of memory and that of socket buffers in each of so many parts of the time."""
        size = max(1, len(self.used) // parts)
        chunks = [self.used[size * part : size * (part + 1)] for part in range(parts)]
        return [
            Usage(*(int(statistics.median(column)) for column in zip(*chunk, strict=True))) for chunk in chunks if chunk
        ]

    def end(self) -> tuple[int, float, str]:
        """Stop it; return its exit code, how long that took, and the rest of its log."""
        begin = time.monotonic()
        self.process.terminate()
        rest = self.log.rest()
        return self.process.wait(), time.monotonic() - begin, rest


@contextmanager
def watched(
    name: str, limit: int, arguments: Sequence[str], environment: Mapping[str, str], ready: Callable[[], object]
) -> Iterator[Watched]:
    """Run a process in a cgroup of its own; when it is ready, its log is not read any more."""
    log = UnreadLog()
    with memory_cgroup(name, limit) as cgroup:
        process = subprocess.Popen(
            cgroup.command(arguments),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log.writer,
            stderr=log.writer,
        )
        try:
            until(lambda: process.poll() is not None or ready(), what=f"that the {name} is ready")
            log.fill()
            assert process.poll() is None, log.rest().rstrip("x")
            yield Watched(process, cgroup, log)
        finally:
            process.kill()
            process.wait()


def works(ask: Callable[[], object]) -> bool:
    """Return whether a request succeeds."""
    with suppress(OSError, HTTPException, AssertionError):
        ask()
        return True
    return False


class Cluster(Site):
    """The nodes n0 to n2, whose fake exporters report faults in turn, and n3 with the exporter under attack."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "api")
        self.late: list[float] = []
        self._boots = count(2)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status = {"nodeInfo": {"bootID": boot}, "capacity": {"nvidia.com/gpu": str(GPUS)}}
        self.api.put(NODES, {"metadata": {"name": NODE, "uid": NODE}, "spec": {}, "status": status})
        labels = {"app.kubernetes.io/component": "exporter"}
        pod = {"metadata": {"name": "e", "labels": labels}, "spec": {"nodeName": NODE}}
        self.api.put(PODS, {**pod, "status": {"phase": "Running", "podIP": HOST}})

    def config(self, folder: Path) -> Path:
        """Write the configuration of the controller; return its path."""
        pool = {"budget": Budget(4, 1.0), "confirm": f"{CONFIRM:g}s", "clean": "1s"}
        (folder / "password").write_text("secret-controller")
        exporters = Exporters("gpu", port=self.port, user="controller", password_file=str(folder / "password"))
        settings = replace(self.settings(Mode.CORDON, **pool), interval=f"{LOOKS:g}s", exporters=exporters)
        path = folder / "controller.yml"
        path.write_text(json.dumps(asdict(settings), default=_value))
        return path

    def is_cordoned(self, name: str) -> bool:
        """Return whether no pod may be scheduled on a node."""
        return bool(self.node(name)["spec"].get("unschedulable"))

    def keep_failing(self, stop: threading.Event) -> None:
        """Let one node after another fail, wait for its cordon, and repair it; note how late each cordon is."""
        for name in cycle(("n0", "n1", "n2")):
            begin = time.time()
            while not self.is_cordoned(name):
                self._report(name, begin)
                if stop.wait(0.1):
                    return
            self.late.append(time.time() - begin - CONFIRM - LOOKS)
            node, boot = self.node(name), f"boot-{next(self._boots)}"
            node["status"]["nodeInfo"]["bootID"] = boot
            self.answers[name] = answer(name, boot)
            self.api.put(NODES, node)
            while self.is_cordoned(name):
                if stop.wait(0.1):
                    return

    def _report(self, name: str, since: float) -> None:
        """Let the exporter of a node report a fault since then."""
        boot = self.node(name)["status"]["nodeInfo"]["bootID"]
        problem = {"reason": "stalled", "health": "unhealthy", "action": "node_reboot", "what": "hangs", "since": since}
        healthy = answer(name, boot)
        gpu = {**healthy["gpus"][0], "health": "unhealthy", "problems": [problem]}
        self.answers[name] = {**healthy, "at": time.time(), "gpus": [gpu]}


def _value(item: object) -> Any:
    assert isinstance(item, Enum)
    return item.value


class Storm:
    """The processes, those that attack them, and those that must not notice it."""

    def __init__(self, folder: Path, seconds: float, limit: int, *, calm: bool) -> None:
        self.folder, self.seconds, self.limit, self.calm = folder, seconds, limit, calm
        self.stop, self.stack = threading.Event(), ExitStack()
        self.clients: list[Client] = []
        self.driver = FakeDriver(folder / "driver", gpus=GPUS)
        self.driver.set("Name", "NVIDIA \x1b]0;x\x07<b>\u202e H200", gpu=GPUS - 1)
        self.cluster = Cluster(folder)
        self.stack.callback(self.cluster.stop)
        self.jobs, self.kernel_log = folder / "jobs.sock", folder / "kern.log"
        self.kernel_log.touch()
        self.names = ["prometheus", "controller", "reader", *(f"first-{number}" for number in range(60))]
        hashes = {
            name: bcrypt.hashpw(f"secret-{name}".encode(), bcrypt.gensalt(BCRYPT_COST)).decode() for name in self.names
        }
        self.web = {"basic_auth_users": hashes}
        self.n3_late = float("inf")
        self.attacks: dict[str, subprocess.Popen[bytes]] = {}
        self.fields: Sequence[str] = (
            "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n",
            "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\nDCGM_FI_DEV_POWER_USAGE, gauge, Power\n",
        )
        self._rewrite(0)

    def server(self, source: str, user: str, *, timeout: float = SCRAPE_TIMEOUT) -> Server:
        """Return the exporter as this client sees it."""
        return Server(HOST, self.cluster.port, source, basic(user), timeout)

    def _rewrite(self, number: int) -> None:
        """Write the files that the exporter reloads."""
        for name, content in (("web.yml", json.dumps({**self.web})), ("fields.csv", self.fields[number % 2])):
            draft = self.folder / f"{name}.draft"
            draft.write_text(content + "\n" * (number % 3))
            draft.rename(self.folder / name)

    def exporter(self) -> Watched:
        """Start the exporter."""
        state = self.folder / "state"
        state.mkdir()
        arguments = (
            *("serve", "--address", f"{HOST}:{self.cluster.port}", "--source", "nvml", "--metrics", "full"),
            *("--kernel-log", str(self.kernel_log), "--state-dir", str(state), "--job-socket", str(self.jobs)),
            *("--processes", "--host-evidence", "--node-name", NODE, "--log-level", "debug"),
            *("--web.config.file", str(self.folder / "web.yml"), "--collectors", str(self.folder / "fields.csv")),
            *("--web-trusted-proxies", PROXY),
        )
        ready = partial(works, lambda: self.server(PROMETHEUS, "prometheus").ask("/metrics"))
        return self.stack.enter_context(
            watched("exporter", self.limit, command(*arguments), self.driver.environment, ready)
        )

    def controller(self) -> Watched:
        """Start the remediation controller."""
        site = self.cluster
        arguments = (sys.executable, "-c", PROGRAM, str(site.config(self.folder)), str(site.api.account))
        return self.stack.enter_context(
            watched(
                "controller",
                self.limit,
                arguments,
                site.api.environment,
                lambda: "gpu_remediation_leader 1.0" in site.metrics(),
            )
        )

    def start(self, target: Callable[..., object], *arguments: object) -> None:
        """Run something on a thread until the end of the storm."""
        thread = threading.Thread(target=target, args=(*arguments, self.stop), daemon=True)
        thread.start()
        self.stack.callback(thread.join)

    def attack(self, name: str, attack: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a process of `tests.soak.attacks`."""
        whole = [sys.executable, "-m", "tests.soak.attacks", attack, str(self.seconds), *map(str, arguments)]
        with (self.folder / f"attack-{name}").open("wb") as log:
            process = subprocess.Popen(whole, stdout=log, stderr=log, start_new_session=True)
        self.attacks[name] = process
        self.stack.callback(end_group, process)
        return process

    def attack_all(self) -> None:
        """Start all attacks."""
        exporter, own = f"{HOST}:{self.cluster.port}", f"127.0.0.1:{self.cluster.own_port}"
        reader = f"Authorization: {basic('reader')['Authorization']}"
        self.attack("readers", "slow_readers", exporter, addresses(10, 14), 508, PAUSE, reader)
        self.attack("proxy", "slow_readers", exporter, PROXY, 100, 0.2, reader, "X-Forwarded-For: 10.6.6.6")
        self.attack("bodies", "half_bodies", exporter, addresses(20, 24), 300, "/-/reload")
        self.attack("silent", "silent", exporter, addresses(30, 34), 600)
        self.attack("streams", "streams", exporter, addresses(40, 41), 64, reader)
        self.attack("guesses", "guesses", exporter, addresses(60, 84), "prometheus", "reader")
        self.attack("controller-bodies", "half_bodies", own, addresses(20, 24), 600, "/webhook")
        self.attack("controller-readers", "slow_readers", own, addresses(10, 14), 508, PAUSE)
        self.attack("idle", "idle", self.jobs, *UIDS["idle"])
        self.attack("grow", "grow", self.jobs, UIDS["grow"], identity(1)["UUID"])
        self.attack("xids", "xids", self.kernel_log)

    def ranks(self) -> None:
        """Start two honest ranks, one of them on a GPU."""
        on_gpu = self.attack("verified", "rank", self.jobs, UIDS["verified"], identity(0)["UUID"], "verified")
        self.driver.set("ComputeRunningProcesses", f"{on_gpu.pid}:1000", gpu=0)
        self.attack("unverified", "rank", self.jobs, UIDS["unverified"], identity(1)["UUID"], "unverified")

    def keep_reloading(self, exporter: Watched, stop: threading.Event) -> None:
        """Request a reload every two seconds, and change the files every ten."""
        for number in count():
            if stop.wait(2):
                return
            if number % 5 == 0:
                self._rewrite(number // 5)
            exporter.process.send_signal(signal.SIGHUP)

    def wedge(self, stop: threading.Event) -> None:
        """Let two GPUs hang, and note how late the node is cordoned."""
        begin = time.monotonic()
        for gpu in WEDGED:
            self.driver.block(gpu)
        while not self.cluster.is_cordoned(NODE):
            if stop.wait(0.1):
                return
        self.n3_late = time.monotonic() - begin - DETECTION - CONFIRM - LOOKS

    def scrape(self, server: Server) -> None:
        """Scrape, and check that the page is complete."""
        page = server.ask("/metrics")
        rows = page.count(b"\ngpu_up{")
        assert rows == GPUS, f"{rows} GPUs on the page"
        for job in (b"verified", b"unverified"):
            assert b'job_id="%b"' % job in page, f"no series of the job {job!r}"

    def log_in_first(self, numbers: Iterator[int]) -> None:
        """Log in as a user who has not been verified before, from an address that has not been seen.

        The exporter may ask to repeat that, but must know the user within the time of a scrape.
        """
        number, end = next(numbers), time.monotonic() + SCRAPE_TIMEOUT
        server = self.server(f"127.0.1.{number + 1}", f"first-{number % 60}")
        while time.monotonic() < end - 1:
            with suppress(Busy):
                server.ask("/api/v1/node")
                return
            time.sleep(1)
        server.ask("/api/v1/node")

    def start_clients(self) -> None:
        """Start those that must not notice anything."""
        site = self.cluster
        own = Server("127.0.0.1", site.own_port, KUBELET, {}, PROBE_TIMEOUT)
        proxied = self.server(PROXY, "prometheus")
        proxied = proxied._replace(headers={**proxied.headers, "X-Forwarded-For": "10.9.9.9"})
        probe = self.server(KUBELET, "prometheus", timeout=PROBE_TIMEOUT)
        stream = self.server("127.0.0.5", "prometheus")
        hook = own._replace(source=PROMETHEUS, headers={"Authorization": "Bearer secret"})
        alerts = b'{"alerts": [{"status": "firing", "labels": {"node": "n0"}}]}'
        asked: Sequence[tuple[str, float, Callable[[], object]]] = (
            ("scrape", 1, partial(self.scrape, self.server(PROMETHEUS, "prometheus"))),
            ("scrape through the proxy", 2, partial(self.scrape, proxied)),
            ("probe of the exporter", 2, partial(probe.ask, "/healthz")),
            ("stream of the live page", 10, partial(stream.ask, "/api/v1/stream")),
            ("first login of a user", 10, partial(self.log_in_first, count())),
            ("probe of the controller", 1, partial(own.ask, "/healthz")),
            ("scrape of the controller", 5, partial(own._replace(source=PROMETHEUS).ask, "/metrics")),
            ("webhook of Alertmanager", 10, partial(hook.ask, "/webhook", "POST", alerts, 202)),
        )
        for name, every, ask in asked:
            self.clients.append(client := Client(name))
            self.start(client.keep_asking, ask, every)

    def run(self) -> dict[str, Any]:
        """Run the storm; return what was measured."""
        with self.stack:
            exporter, controller = self.exporter(), self.controller()
            self.ranks()
            complete = partial(works, partial(self.scrape, self.server(PROMETHEUS, "prometheus")))
            until(complete, what="the series of the honest ranks")
            processes = {"exporter": exporter, "controller": controller}
            if not self.calm:
                self.attack_all()
            self.start(self.keep_reloading, exporter)
            for process in processes.values():
                self.start(process.keep_looking)
            self.start(self.cluster.keep_failing)
            self.start(self.wedge)
            self.start_clients()
            cpu = {name: (each.cpu(), each.waited()) for name, each in processes.items()}
            begin = time.monotonic()
            while time.monotonic() < begin + self.seconds and all(
                each.process.poll() is None for each in processes.values()
            ):
                time.sleep(0.5)
            ended = {name: process.poll() for name, process in self.attacks.items()}
            self.stop.set()
            seconds = time.monotonic() - begin
            for attack in self.attacks.values():
                end_group(attack)
            result: dict[str, Any] = {
                "seconds": round(seconds, 1),
                "limit_mib": self.limit / MIB,
                "cgroup": exporter.cgroup.version,
                "clients": {client.name: summary(client) for client in self.clients},
                "late_cordons_s": [round(late, 1) for late in self.cluster.late],
                "late_cordon_of_exporter_s": round(self.n3_late, 1),
                "attacks_that_failed": [name for name, code in ended.items() if code],
            }
            for name, process in processes.items():
                alive = process.process.poll() is None
                result[name] = usage(process) | {"alive": alive}
                if alive:
                    ran, waited = process.cpu() - cpu[name][0], process.waited() - cpu[name][1]
                    of_time = {"cpu_percent": ran, "waiting_for_a_core_percent": waited}
                    result[name] |= {key: round(100 * value / seconds, 1) for key, value in of_time.items()}
            result["page"] = self.page() if exporter.process.poll() is None else {}
            for name, process in processes.items():
                code, took, log = process.end()
                result[name] |= {"exit_code": code, "exit_s": round(took, 2), "tracebacks": log.count("Traceback")}
            return result

    def page(self) -> dict[str, Any]:
        """Return what the last page says, which must be valid."""
        text = self.server(PROMETHEUS, "prometheus").ask("/metrics").decode()
        page = Page(text)
        dropped = {
            labels["limit"]: value
            for name, labels, value in page.samples
            if name == "gpu_exporter_http_connections_dropped_total"
        }
        return {
            "kib": round(len(text) / 1024),
            "problem": wrong(Shown("page", "lines", text)),
            "down": sorted(
                int(labels["gpu"]) for name, labels, value in page.samples if name == "gpu_up" and not value
            ),
            "dropped": dropped,
            "job_messages": {
                labels["result"]: value
                for name, labels, value in page.samples
                if name == "gpu_exporter_job_messages_total" and value
            },
            "log_lines_dropped": page.value("gpu_exporter_log_dropped_total"),
        }


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def addresses(first: int, end: int) -> str:
    """Return addresses of this machine, separated by commas."""
    return ",".join(f"127.0.0.{number}" for number in range(first, end))


def summary(client: Client) -> dict[str, Any]:
    """Return the numbers of a client."""
    times = {
        f"{name}_ms": round(client.percentile(share), 1) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }
    return {"done": len(client.seconds), "failed": client.failures[:5], **times}


def usage(process: Watched) -> dict[str, Any]:
    """Return what a process used, in MiB."""
    peak = max(process.used, key=lambda each: each.total, default=Usage(0, 0))
    return {
        "oom_kills": process.cgroup.oom_kills(),
        "peak_mib": round(peak.total / MIB, 1),
        "memory_peak_mib": round(max((each.memory for each in process.used), default=0) / MIB, 1),
        "sockets_peak_mib": round(max((each.sockets for each in process.used), default=0) / MIB, 1),
        "memory_by_tenth_mib": [round(each.memory / MIB) for each in process.medians(10)],
        "sockets_by_tenth_mib": [round(each.sockets / MIB) for each in process.medians(10)],
        "memory_by_quarter_mib": [round(each.memory / MIB, 1) for each in process.medians(4)],
        "descriptors": max(process.descriptors, default=0),
    }


def problems(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what must not have happened."""
    for name, client in result["clients"].items():
        if client["failed"] or not client["done"]:
            yield f"{name}: {client['failed'] or 'none succeeded'}"
    late = [*result["late_cordons_s"], result["late_cordon_of_exporter_s"]]
    if len(late) < 2 or max(late) > LATE:
        yield f"cordons are late by more than {LATE:g} s: {late}"
    if result["attacks_that_failed"]:
        yield f"attacks ended: {result['attacks_that_failed']}"
    for name in ("exporter", "controller"):
        used = result[name]
        if used["oom_kills"] or not used["alive"] or used["exit_code"] or used["tracebacks"]:
            yield f"the {name} died, or logged a traceback: {used}"
        if used["peak_mib"] > result["limit_mib"]:
            yield f"the {name} needs {used['peak_mib']} MiB, of {result['limit_mib']}"
        *_, third, last = used["memory_by_quarter_mib"]
        if last > MOST_GROWTH * third:
            yield f"the memory of the {name} grows: {used['memory_by_tenth_mib']} MiB by tenths of the time"
    page = result["page"]
    if not page or page["problem"] or page["down"] != [*WEDGED]:
        yield f"the last page is wrong: {page}"


def main() -> int:
    """Run the storm, and print the result."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--memory", type=int, default=256, help="the limit of each process in MiB")
    options.add_argument("--calm", action="store_true", help="leave out the attacks")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started ends
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # other users connect to the job socket
        result = Storm(Path(folder), chosen.seconds, chosen.memory * MIB, calm=chosen.calm).run()
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(f"{text}\n")
    failed = [*problems(result)]
    print(*(f"FAILED: {each}" for each in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
