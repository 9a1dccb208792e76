"""Measures gpu-exporter on a real host engine of DCGM: cost, values beside NVML, and what an engine that fails does.

    python -m benchmarks.dcgm_engine [--sections cost,values,failures,commands] [--seconds 40] [--rows default,full,…]
    python -m benchmarks.dcgm_engine --checkout before=/path/to/an/older/checkout --checkout now=.

Needs `nv-hostengine` on PATH (or NV_HOSTENGINE=/path), DCGM's Python bindings where its packages install them (or
DCGM_BINDINGS=/path), and rich for `top`. `dcgm-exporter` is measured in the same run if it is on PATH, and
values are compared under four loads if PyTorch is installed. Every row has an engine of its own, started before and
ended after it. CPU is a share of one core. `up` is the time from the start of the client until it shows every GPU.
Each `--checkout` measures the gpu_exporter of that directory. Prints tables in Markdown.

`--pages FILE` keeps a page every 15 s of an engine that fails, and `--alerts FILE` plays them into the committed rules:
it prints every alert that has fired, and needs only promtool.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks import harness, peers, played
from benchmarks.exporter import cpu_seconds, free_port, rss_mib
from gpu_exporter.diagnosis import text_format
from tests.support.terminal import Terminal

SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
TWO_FIELDS = "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature.\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock.\n"
ROWS: Mapping[str, Sequence[str]] = {
    "default": (),
    "full": ("--metrics", "full"),
    "two fields": ("--collectors", "two.csv"),
    "default at 5 s": ("--interval", "5s"),
    "embedded": (),
    "embedded full": ("--metrics", "full"),
}
PEER, IDLE = "dcgm-exporter", "engine alone"
SECTIONS = ("cost", "values", "failures", "commands")
LOADS = ("gemm", "copy", "launches", "transfers")
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.1
SCRAPED_SECONDS = 15
# What a log may not say of a GPU that is healthy.
ALARMING = re.compile(r"stuck|reboot|drain|lost", re.IGNORECASE)
# Words of commands that judge a GPU.
VERDICTS = re.compile(r"GpuLost|drain|reboot|critical|stuck", re.IGNORECASE)

Page = Mapping[str, Mapping[str, float]]


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Return the samples of a page by name and labels."""
    page: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if match := SAMPLE.match(line):
            page.setdefault(match["name"], {})[match["labels"] or ""] = float(match["value"])
    return page


def label(labels: str, name: str) -> str:
    """Return the value of a label; empty if it is absent."""
    found: dict[str, str] = dict(LABEL.findall(labels))
    return found.get(name, "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# --- an engine and its clients ----------------------------------------------------------------------------------------


class Engine:
    """An nv-hostengine on a free port, which may be killed, stopped and started again."""

    def __init__(self, program: str, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._program, self._folder = program, folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. It listens some time later."""
        command = [
            *(self._program, "-n", "-b", "127.0.0.1", "-p", self.address.rpartition(":")[2], "--log-level", "ERROR"),
            *("-f", str(self._folder / "engine.log"), "--pid", str(self._folder / "engine.pid")),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def engine(program: str) -> Iterator[Engine]:
    """Run a host engine that has listened for a few seconds."""
    with tempfile.TemporaryDirectory() as folder:
        made = Engine(program, Path(folder))
        made.start()
        try:
            time.sleep(3)
            yield made
        finally:
            made.end()


@dataclass
class Client:
    """A program that serves /metrics; `log` has what it wrote."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    began: float = field(default_factory=time.monotonic)
    # What a Prometheus would have scraped: the first page after each scrape interval.
    scraped: list[str | None] = field(default_factory=list)

    def page(self, timeout: float = 5.0) -> dict[str, dict[str, float]] | None:
        """Return the page; None if there is none."""
        import urllib.request

        text = None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=timeout) as answer:
                text = answer.read().decode()
        except OSError:
            pass
        if time.monotonic() >= self.began + len(self.scraped) * SCRAPED_SECONDS:
            self.scraped.append(text)
        return None if text is None else parsed(text)

    def until(self, done: Callable[[Page], bool], seconds: float = PATIENCE_SECONDS) -> float | None:
        """Return the seconds since the start at which a page was as asked; None if none was in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if (page := self.page()) is not None and done(page):
                return time.monotonic() - self.began
            time.sleep(POLL_SECONDS / 2)
        return None


@contextmanager
def client(command: Sequence[str], port: int, env: Mapping[str, str]) -> Iterator[Client]:
    """Run a client."""
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        try:
            yield Client(process, port, Path(log.name))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Setup:
    """What this machine has, and what was chosen."""

    program: str
    bindings: Path
    checkouts: Mapping[str, Path | None]
    gpus: int
    seconds: float
    rows: Sequence[str]
    stopped: Sequence[float]
    loads: Sequence[str]
    folder: Path
    pages: Path | None
    run: harness.Run

    def environment(self, checkout: str) -> dict[str, str]:
        """Return the environment that runs the gpu_exporter of a checkout."""
        path = self.checkouts[checkout]
        paths = (str(path), os.environ.get("PYTHONPATH"))
        return {} if path is None else {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def source(self, address: str) -> list[str]:
        """Return the flags that read a host engine; an empty address is an embedded one."""
        flags = ["--source", "dcgm", "--dcgm-bindings", str(self.bindings)]
        return [*flags, "--dcgm-hostengine", address] if address else flags

    def serve(self, port: int, *flags: str) -> list[str]:
        """Return the command that serves gpu-exporter."""
        return [sys.executable, "-m", "gpu_exporter", "serve", "--address", f"127.0.0.1:{port}", *flags]


def all_up(gpus: int) -> Callable[[Page], bool]:
    """Return a condition: every GPU is read."""
    return lambda page: sum(page.get("gpu_up", {}).values()) >= gpus


# --- cost -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """A row: CPU as shares of a core; None where there is no such process."""

    name: str
    checkout: str
    engine: float | None
    client: float | None
    up: float | None
    samples: int
    rss_mib: float


def measured(client_: Client | None, engine_: Engine | None, seconds: float) -> tuple[float | None, float | None]:
    """Scrape once a second; return the CPU of the engine and of the client, as shares of a core."""
    pids = [
        engine_.process.pid if engine_ and engine_.process else None,
        client_.process.pid if client_ else None,
    ]
    before, begin = [cpu_seconds(pid) if pid else 0.0 for pid in pids], time.monotonic()
    while time.monotonic() < begin + seconds:
        if client_:
            client_.page()
        time.sleep(1)
    took = time.monotonic() - begin
    shares = [(cpu_seconds(pid) - start) / took if pid else None for pid, start in zip(pids, before, strict=True)]
    return shares[0], shares[1]


def cost(setup: Setup) -> Iterator[Cost]:
    """Measure every row of every checkout, then dcgm-exporter."""
    with engine(setup.program) as idle:
        time.sleep(5)
        alone, _ = measured(None, idle, setup.seconds / 2)
        yield Cost(IDLE, "", alone, None, None, 0, 0.0)
    for row in setup.rows:
        for checkout in setup.checkouts:
            yield cost_of(setup, row, checkout)
    if program := peers.program(PEER):
        with engine(setup.program) as served:
            port = free_port()
            command = [program, "-r", served.address, "-c", "1000", "-a", f"127.0.0.1:{port}"]
            yield cost_of_client(setup, PEER, "", command, port, served, lambda page: "DCGM_FI_DEV_GPU_TEMP" in page)


def cost_of(setup: Setup, row: str, checkout: str) -> Cost:
    """Measure one row of gpu-exporter."""
    port, flags = free_port(), [str(setup.folder / flag) if flag.endswith(".csv") else flag for flag in ROWS[row]]
    if row.startswith("embedded"):
        command = setup.serve(port, *setup.source(""), *flags)
        return cost_of_client(setup, row, checkout, command, port, None, all_up(setup.gpus))
    with engine(setup.program) as served:
        command = setup.serve(port, *setup.source(served.address), *flags)
        return cost_of_client(setup, row, checkout, command, port, served, all_up(setup.gpus))


def cost_of_client(
    setup: Setup,
    name: str,
    checkout: str,
    command: Sequence[str],
    port: int,
    served: Engine | None,
    up: Callable[[Page], bool],
) -> Cost:
    """Measure a client, once every GPU is up and the first slow reads are done."""
    with client(command, port, setup.environment(checkout) if checkout else {}) as run:
        shown = run.until(up)
        if run.process.poll() is None:
            time.sleep(15)
        if run.process.poll() is not None:
            last = run.log.read_text(errors="replace").splitlines()[-1:]
            print(f"{name}, {checkout} ended with exit code {run.process.returncode}: {' '.join(last)}", flush=True)
            return Cost(name, checkout, None, None, None, 0, 0.0)
        of_engine, of_client = measured(run, served, setup.seconds)
        page = run.page() or {}
        show_log(f"{name}, {checkout}", run.log)
        samples = sum(map(len, page.values()))
        return Cost(name, checkout, of_engine, of_client, shown, samples, rss_mib(run.process.pid))


def show_log(what: str, log: Path) -> None:
    """Print the lines of a log that alarm."""
    for line in dict.fromkeys(log.read_text(errors="replace").splitlines()):
        if ALARMING.search(line):
            print(f"log of {what}: {line}", flush=True)


def share(value: float | None) -> str:
    """Return a share as text."""
    return "" if value is None else f"{value:.1%}"


def cost_row(each: Cost) -> list[str]:
    """Return a row of the table."""
    both = [value for value in (each.engine, each.client) if value is not None]
    up = "" if each.up is None else f"{each.up:.1f} s"
    name = f"{each.name}, {each.checkout}" if each.checkout else each.name
    return [
        name,
        share(each.engine),
        share(each.client),
        share(sum(both)),
        up,
        str(each.samples),
        f"{each.rss_mib:.0f}",
    ]


def print_cost(setup: Setup) -> None:
    """Print each row when it is measured, and the table at the end."""
    head, rows = ("client", "engine", "client", "together", "up", "samples", "MiB"), []
    measured_rows: list[dict[str, object]] = []
    for each in cost(setup):
        rows.append(cost_row(each))
        print(*rows[-1], sep="  ", flush=True)
        measured_rows.append(asdict(each))
        setup.run.write({"rows": measured_rows}, peers.versions(), is_part=True)
    print(f"\n{table(head, rows)}", flush=True)


# --- values beside NVML -----------------------------------------------------------------------------------------------


def run_load(name: str) -> None:
    """Put a load on every GPU, until killed."""
    import torch

    def step(device: int) -> Callable[[], object]:
        with torch.cuda.device(device):
            if name == "gemm":
                a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
                return lambda: torch.mm(a, b)
            if name == "copy":
                source = torch.empty(2**28, device="cuda")
                target = torch.empty_like(source)
                return lambda: target.copy_(source)
            if name == "launches":
                value = torch.zeros(1, device="cuda")
                return lambda: value.add_(1)
            pinned = torch.empty(2**26, pin_memory=True)
            inside = torch.empty(2**26, device="cuda")
            return lambda: inside.copy_(pinned, non_blocking=True)

    devices = range(torch.cuda.device_count())
    steps = [step(device) for device in devices]
    while True:
        for device in devices:
            with torch.cuda.device(device):
                for _ in range(20):
                    steps[device]()
        for device in devices:
            torch.cuda.synchronize(device)


@contextmanager
def load(name: str) -> Iterator[None]:
    """Run a load in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, "--load", name]) if name != "none" else None
    try:
        time.sleep(20 if process else 5)
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def means(pages: Sequence[Page]) -> dict[str, float]:
    """Return the mean of each classic metric over GPUs and pages; counters are not compared."""
    values: dict[str, list[float]] = {}
    for page in pages:
        for name, samples in page.items():
            if name.startswith("DCGM_FI_"):
                values.setdefault(name, []).extend(samples.values())
    return {name: statistics.fmean(found) for name, found in values.items()}


def print_values(setup: Setup) -> None:
    """Print what both sources show at the same time, for each load."""
    checkout = list(setup.checkouts)[-1]
    env, ports = setup.environment(checkout), (free_port(), free_port())
    with engine(setup.program) as served:
        nvml = client(setup.serve(ports[0], "--source", "nvml"), ports[0], env)
        dcgm = client(setup.serve(ports[1], *setup.source(served.address)), ports[1], env)
        with nvml as first, dcgm as second:
            for each in (first, second):
                each.until(all_up(setup.gpus))
            for name in ("none", *(LOADS if find_spec("torch") else ())):
                with load(name):
                    pages: tuple[list[Page], list[Page]] = ([], [])
                    for _ in range(10):
                        for side, run in zip(pages, (first, second), strict=True):
                            side.append(run.page() or {})
                        time.sleep(1)
                of_nvml, of_dcgm = map(means, pages)
                rows = [
                    [metric, text(of_nvml.get(metric)), text(of_dcgm.get(metric))]
                    for metric in sorted({*of_nvml, *of_dcgm})
                ]
                print(f"Load: {name}\n\n{table(('metric', 'NVML', 'DCGM'), rows)}", flush=True)


def text(value: float | None) -> str:
    """Return a value as text."""
    return "absent" if value is None else f"{value:.4g}"


# --- an engine that fails ---------------------------------------------------------------------------------------------


def state(page: Page | None) -> str:
    """Return in words what a page shows of the source and its GPUs."""
    if page is None:
        return "no page"
    source = next(iter(page.get("gpu_exporter_source_up", {}).values()), 0.0)
    reasons = {label(labels, "reason") for labels, value in page.get("gpu_down_reason", {}).items() if value}
    reasons |= {label(key, "reason") for key, value in page.get("gpu_exporter_source_down_reason", {}).items() if value}
    up = int(sum(page.get("gpu_up", {}).values()))
    values = len(page.get("DCGM_FI_DEV_GPU_TEMP", {}))
    why = f" ({', '.join(sorted(reasons))})" if reasons else ""
    return f"source {source:.0f}, {up} GPUs up, {values} with values{why}"


def follow(run: Client, seconds: float, began: float, until: Callable[[Page], bool] | None = None) -> Iterator[str]:
    """Yield each change of the page's state, and the longest scrape."""
    end, last, longest = time.monotonic() + seconds, "", 0.0
    while time.monotonic() < end:
        asked = time.monotonic()
        page = run.page()
        longest = max(longest, time.monotonic() - asked)
        if (now := state(page)) != last:
            last = now
            yield f"{asked - began:.1f} s: {now}"
        if until is not None and page is not None and until(page):
            break
        time.sleep(POLL_SECONDS)
    yield f"longest scrape {longest * 1e3:.0f} ms"


def readable(gpus: int) -> Callable[[Page], bool]:
    """Return a condition: every GPU has values."""
    return lambda page: all_up(gpus)(page) and len(page.get("DCGM_FI_DEV_GPU_TEMP", {})) >= gpus


def failures(setup: Setup, checkout: str) -> Iterator[list[str]]:
    """Yield what an exporter shows while its engine fails."""
    with engine(setup.program) as served:
        port, back = free_port(), readable(setup.gpus)
        command = setup.serve(port, *setup.source(served.address), "--log-level", "info")
        with client(command, port, setup.environment(checkout)) as run:
            run.until(back)
            began = time.monotonic()
            served.end()
            changes = [*follow(run, 10, began)]
            served.start()
            changes += [f"started after {time.monotonic() - began:.1f} s", *follow(run, PATIENCE_SECONDS, began, back)]
            yield [checkout, "killed, started after 10 s", "<br>".join(changes)]
            for seconds in setup.stopped:
                began = time.monotonic()
                served.signal(signal.SIGSTOP)
                with ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(judged, setup, checkout, commands_of(setup, served.address, run.port))
                    changes = [*follow(run, seconds, began)]
                    served.signal(signal.SIGCONT)
                    changes += [f"continued after {time.monotonic() - began:.1f} s", *follow(run, 120, began, back)]
                    changes += [f"{name}: exit code {code}, {said}" for name, code, _, said in asked.result()]
                yield [checkout, f"stopped for {seconds:g} s", "<br>".join(changes)]
            began, changes = time.monotonic(), []
            for _ in range(4):
                served.end()
                served.start()
                changes += follow(run, 6, began)
            changes += follow(run, PATIENCE_SECONDS, began, back)
            yield [checkout, "restarted every 6 s, four times", "<br>".join(changes)]
            changes = [*follow(run, 60, time.monotonic())]
            show_log(f"failures, {checkout}", run.log)
            if setup.pages:
                with gzip.open(setup.pages, "wt") as file:
                    json.dump(run.scraped, file)


def print_alerts(pages: Path, program: Path) -> None:
    """Print every alert of these pages."""
    with gzip.open(pages, "rt") as file:
        texts = json.load(file)
    fired = played.fired(program, [text_format.parsed(text) if text else [] for text in texts], SCRAPED_SECONDS)
    names = ("alertname", "severity", "action", "gpu")
    print(f"{len(texts)} scrapes, {texts.count(None)} failed\n")
    print(table(names, sorted([each.get(name, "") for name in names] for each in fired)))


def print_failures(setup: Setup) -> None:
    """Print the table of failures."""
    rows = [row for checkout in setup.checkouts for row in failures(setup, checkout)]
    print(table(("checkout", "engine", "what the page shows"), rows), flush=True)


# --- commands on healthy GPUs -----------------------------------------------------------------------------------------


LOCAL, REMOTE = ("diagnose", "check", "doctor", "top"), ("diagnose", "top")
TOP_SECONDS = 30


def commands_of(setup: Setup, address: str, port: int | None = None) -> Sequence[Sequence[str]]:
    """Return the commands that judge the GPUs of an engine, and those that ask an exporter."""
    url = [] if port is None else ["--url", f"http://127.0.0.1:{port}"]
    return [*([name, *setup.source(address)] for name in LOCAL), *([name, *url] for name in REMOTE if url)]


def watched(line: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Watch `top` for some seconds, and quit it; return its exit code and its last screen."""
    terminal = Terminal(line, size=(160, 50), env=environment)
    try:
        end = time.monotonic() + TOP_SECONDS
        while time.monotonic() < end and terminal.read(0.2):
            pass
        text = terminal.screen.text
        terminal.press("q")
        return terminal.end(), text
    finally:
        terminal.close()


def judged(setup: Setup, checkout: str, commands: Sequence[Sequence[str]]) -> Sequence[tuple[str, int, float, str]]:
    """Run commands at the same time; return the name, the exit code, the seconds and the words of judgement of each."""

    environment = setup.environment(checkout)

    def run(command: Sequence[str]) -> tuple[str, int, float, str]:
        line, begin = [sys.executable, "-m", "gpu_exporter", *command], time.monotonic()
        if command[0] == "top":
            code, output = watched(line, environment)
        else:
            env = {**os.environ, **environment}
            done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
            code, output = done.returncode, done.stdout + done.stderr
        found = [line.strip() for line in output.splitlines() if VERDICTS.search(line)]
        said = found[:6] or [line.strip() for line in output.splitlines() if line.strip()][-4:]
        name = f"{command[0]}{' --url' if '--url' in command else ''}"
        return name, code, time.monotonic() - begin, "<br>".join(said)

    with ThreadPoolExecutor(len(commands)) as pool:
        return [*pool.map(run, commands)]


def print_commands(setup: Setup) -> None:
    """Print how the commands judge healthy GPUs: with a host engine, an embedded one, and an exporter with all metrics;
    at rest and under load."""
    rows = []
    for checkout in setup.checkouts:
        for name in setup.loads:
            with engine(setup.program) as served, load(name):
                port = free_port()
                command = setup.serve(port, *setup.source(served.address), "--metrics", "full")
                with client(command, port, setup.environment(checkout)) as run:
                    run.until(all_up(setup.gpus))
                    for where, address, of in (("remote", served.address, port), ("embedded", "", None)):
                        for each in judged(setup, checkout, commands_of(setup, address, of)):
                            rows.append([checkout, name, each[0], where, str(each[1]), f"{each[2]:.1f} s", each[3]])
    print(table(("checkout", "load", "command", "engine", "exit code", "took", "output"), rows), flush=True)


# --- the command ------------------------------------------------------------------------------------------------------


def gpus_of_driver() -> int:
    """Return the number of GPUs that the kernel driver lists."""
    return len([*Path("/proc/driver/nvidia/gpus").glob("*")])


def found(chosen: argparse.Namespace, folder: Path) -> Setup | str:
    """Return the setup, or what is missing."""
    program, bindings = peers.program("nv-hostengine"), peers.bindings()
    if not program:
        return "nv-hostengine (on PATH, or NV_HOSTENGINE)"
    if bindings is None:
        return "DCGM's Python bindings (DCGM_BINDINGS)"
    checkouts = dict(entry.split("=", 1) for entry in chosen.checkout)
    (folder / "two.csv").write_text(TWO_FIELDS)
    return Setup(
        program,
        bindings,
        {name: Path(path).resolve() for name, path in checkouts.items()} or {"now": None},
        gpus_of_driver() if chosen.gpus is None else chosen.gpus,
        chosen.seconds,
        chosen.rows.split(","),
        [float(seconds) for seconds in chosen.stopped.split(",") if seconds],
        chosen.loads.split(","),
        folder,
        chosen.pages,
        harness.begin(__name__, chosen),
    )


def main() -> int:
    """Run the chosen sections; return 2 if something that they need is missing."""
    parser = harness.options(__name__, __doc__, written=False)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what to measure (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40, help="how long a row is measured (default: %(default)s)")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows of the cost (default: %(default)s)")
    parser.add_argument("--checkout", action="append", default=[], metavar="NAME=DIR", help="a gpu_exporter to measure")
    parser.add_argument("--gpus", type=int, help="number of GPUs (default: those of the kernel driver)")
    parser.add_argument("--stopped", default="25", help="seconds for which the engine stops (default: %(default)s)")
    parser.add_argument("--loads", default="none", help="none, gemm or both, while commands run (default: %(default)s)")
    parser.add_argument("--pages", type=Path, metavar="FILE", help="keep the pages of an engine that fails (.json.gz)")
    parser.add_argument("--alerts", type=Path, metavar="FILE", help="print the alerts of such pages")
    parser.add_argument("--load", choices=LOADS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        run_load(chosen.load)
    if chosen.alerts:
        if not (program := played.promtool()):
            print("benchmarks.dcgm_engine --alerts needs promtool")
            return 2
        print_alerts(chosen.alerts, program)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        setup = found(chosen, Path(folder))
        if isinstance(setup, str):
            print(f"benchmarks.dcgm_engine needs {setup}")
            return 2
        parts = {"cost": print_cost, "values": print_values, "failures": print_failures, "commands": print_commands}
        for section in chosen.sections.split(","):
            print(f"## {section}\n", flush=True)
            parts[section](setup)
    return 0


if __name__ == "__main__":
    sys.exit(main())
