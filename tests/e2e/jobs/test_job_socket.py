"""Training loops send to a running exporter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpu_exporter.jobs.store import OF_PROCESS, OF_USER_UNVERIFIED, RANK_SERIES
from gpu_exporter.model.job_message import LONGEST_PHASE, MOST_PHASES
from tests.conftest import Exporter, Page, Serve, run
from tests.support.fakes.driver import FakeDriver, identity, mig_device
from tests.support.job_sender import encoded, message, send
from tests.support.tools import until

UUID = str(identity(0)["UUID"])
MESSAGES, STEPS = "gpu_exporter_job_messages_total", "gpu_job_steps_total"
START = "gpu_job_start_timestamp_seconds"


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


def start(serve: Serve, driver: FakeDriver, path: Path, *options: str) -> Exporter:
    procfs = path.parent / "proc"
    for pid in (2, os.getpid()):
        (procfs / str(pid)).mkdir(parents=True, exist_ok=True)
        (procfs / str(pid) / "comm").write_text("kthreadd\n" if pid == 2 else "python3\n")
    return serve(
        *("--job-socket", str(path), "--interval", "200ms", "--procfs", str(procfs), *options), env=driver.environment
    )


def counted(exporter: Exporter, path: Path, result: str, packet: bytes) -> Page:
    """Send a packet until it is counted with this result; return the page."""
    before = exporter.page().value(MESSAGES, result=result)
    until(lambda: send(path, packet), what="room in the socket")
    return exporter.until(lambda page: page.value(MESSAGES, result=result) > before)


def rank(**changes: Any) -> bytes:
    return encoded(message(uuid=UUID, **changes))


def test_a_rank_has_series(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    assert exporter.page().value(MESSAGES, result="accepted") == 0
    page = counted(exporter, path, "accepted", rank(dtype="bf16"))
    labels = {"job_id": "llm-7b", "rank": "0", "gpu": "0", "UUID": UUID}
    assert page.value(STEPS, **labels) == 3
    assert page.value("gpu_job_step_seconds_bucket", le="0.16", **labels) == 0
    assert page.value("gpu_job_step_seconds_bucket", le="0.32", **labels) == 3
    assert page.value("gpu_job_step_seconds_bucket", le="+Inf", **labels) == 3
    assert page.value("gpu_job_self_seconds_sum", **labels) == 0.75
    assert page.value("gpu_job_self_seconds_count", **labels) == 3
    assert page.value("gpu_job_phase_seconds_total", phase="backward", **labels) == 0.1875
    assert page.value("gpu_job_activity_seconds_total", activity="training", **labels) == 0.75
    assert page.value("gpu_job_data_seconds_total", **labels) == 0.075
    assert page.value("gpu_job_tokens_total", **labels) == 12288
    assert page.value("gpu_job_samples_total", **labels) == 24
    assert page.value("gpu_job_model_flops_total", **labels) == 3e15
    assert page.value("gpu_job_last_step_timestamp_seconds", **labels) > 1e9
    assert page.value("gpu_job_activity", activity="training", **labels) == 1
    assert page.value("gpu_job_activity", activity="checkpoint", **labels) == 0
    assert (
        0 < page.value("gpu_job_last_step_timestamp_seconds", **labels) - page.value(START, **labels) < 1.8
    )  # elapsed less since_step: 1.25 s
    assert page.value("gpu_job_rank_info", verified="false", world_size="2", dtype="bf16", **labels) == 1
    assert not any("job" in have for name, have, _ in page.samples if name.startswith("gpu_job_"))


@pytest.mark.parametrize("with_file", [False, True], ids=["", "file of fields"])
def test_the_driver_says_which_gpu_a_process_uses(
    serve: Serve, driver: FakeDriver, path: Path, with_file: bool
) -> None:
    """This process sends, and the driver lists it. Its series of --processes are not exposed."""
    file = path.parent / "fields.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n")
    driver.set("ComputeRunningProcesses", f"{os.getpid()}:1000")
    exporter = start(serve, driver, path, *(("--collectors", str(file)) if with_file else ()))
    page = counted(exporter, path, "accepted", encoded(message()))
    assert page.value("gpu_job_rank_info", UUID=UUID, verified="true") == 1
    assert not page.values("gpu_process_memory_used_bytes")


def test_a_process_on_no_gpu_is_dropped(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    for content in (message(), message(uuid="GPU-of-another-node")):
        assert not counted(exporter, path, "unknown_gpu", encoded(content)).values(STEPS)


def test_counters_continue_when_the_rank_is_started_again(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    counted(exporter, path, "accepted", rank(steps=5))
    begun = exporter.page().value(START)
    page = counted(exporter, path, "accepted", rank(steps=2, attempt="b"))
    assert (page.value(STEPS), page.value(START), page.value("gpu_job_restarts_total")) == (7, begun, 1)
    assert counted(exporter, path, "old_attempt", rank(steps=6)).value(STEPS) == 7
    assert counted(exporter, path, "backwards", rank(steps=1, attempt="b")).value(STEPS) == 7


@pytest.mark.parametrize("kill", [False, True])
def test_series_return_after_a_restart_of_the_exporter(
    serve: Serve, driver: FakeDriver, path: Path, kill: bool
) -> None:
    """A killed exporter leaves its socket, which the next one replaces."""
    exporter = start(serve, driver, path)
    counted(exporter, path, "accepted", rank(steps=5))
    if kill:
        exporter.process.kill()
        exporter.process.wait()
        assert path.is_socket()
    else:
        assert exporter.stop() == 0
        assert not path.exists()
    exporter = start(serve, driver, path)
    assert not exporter.page().values(STEPS)
    assert counted(exporter, path, "accepted", rank(steps=6)).value(STEPS) == 6


def test_a_silent_rank_expires(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    assert counted(exporter, path, "accepted", rank()).values(STEPS)
    exporter.until(lambda page: not page.values(STEPS), 60)


def test_hostile_messages_are_counted_and_dropped(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    counted(exporter, path, "invalid", b"\xff garbage")
    counted(exporter, path, "invalid", rank(data_seconds=float("nan")))
    counted(exporter, path, "too_large", rank() + b" " * 9000)
    page = counted(exporter, path, "version", encoded({"version": 99}))
    assert not page.values(STEPS)
    assert exporter.log.read_text().count("job socket: message of PID") == 1


FLOOD = """
import socket, sys
from itertools import cycle
packets = cycle(sys.argv[2].replace("JOB", f"job-{n}").encode() for n in range(10_000))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as flood:
    flood.connect(sys.argv[1])
    for packet in packets:
        flood.send(packet)
"""


def test_a_flood_of_another_process_shuts_out_nobody(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """It sends as fast as it can, as ten thousand jobs. Other ranks have series meanwhile."""
    exporter = start(serve, driver, path)
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, str(path), rank(job_id="JOB").decode()])
    try:
        exporter.until(lambda page: page.value(MESSAGES, result="limit") > 3)
        assert counted(exporter, path, "accepted", rank(rank=1)).values(STEPS, rank="1") == [3]
        assert len(exporter.page().values(STEPS)) == OF_PROCESS.ranks + 1
        assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait()


# Processes with four connections each, on which they send if there is a message, until stdin is closed.
CROWD = """
import json, os, select, socket, sys
path, user, processes, message = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
if os.getuid() == 0:
    os.setgid(user)
    os.setuid(user)
for number in range(processes):
    if os.fork():
        continue
    senders = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for sender in senders:
        sender.connect(path)
    os.write(1, b"connected\\n")
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        for rank, sender in enumerate(senders if message else ()):
            content = {**message, "job_id": f"{number:128}", "rank": rank, "world_size": 4}
            try:
                sender.send(json.dumps(content).encode(), socket.MSG_DONTWAIT)
            except OSError:
                pass
    os._exit(0)
for _ in range(processes):
    os.wait()
"""


@contextmanager
def crowd(path: Path, user: int, processes: int, content: Mapping[str, Any]) -> Iterator[None]:
    """Let the processes of a user hold the socket, once all are connected."""
    path.parent.chmod(0o755)
    arguments = (str(path), str(user), str(processes), json.dumps(content))
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(processes):
            assert process.stdout.readline() == "connected\n"
        yield
        process.stdin.close()


def test_connections_that_send_nothing_give_way(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """Two users hold all connections; without root, one user holds its own share."""
    exporter = start(serve, driver, path)
    rank = encoded(message(uuid=UUID))
    with crowd(path, 2001, 32, {}), crowd(path, 2003, 32, {}):
        until(lambda: send(path, rank) and exporter.page().values(STEPS) == [3], what="a rank of another user")


def test_one_user_cannot_grow_the_page_of_all(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """It sends as 64 ranks with 32 phases of long names. A rank on the GPU has all its series."""
    driver.set("ComputeRunningProcesses", f"{os.getpid()}:1000")
    exporter = start(serve, driver, path)
    phases = {f"{number:{LONGEST_PHASE}}": 1 for number in range(MOST_PHASES)}
    with crowd(path, 2001, 16, message(uuid=UUID, phase_seconds=phases)):
        exporter.until(lambda page: page.value("gpu_exporter_job_messages_total", result="limit") > 64)
        rank = encoded(message(phase_seconds={"mine": 1}))
        until(lambda: send(path, rank) and exporter.page().values("gpu_job_phase_seconds_total", phase="mine") == [1])
        lines = [line for line in exporter.page().text.splitlines() if line.startswith("gpu_job_")]
    flooding = [line for line in lines if 'job_id="llm-7b"' not in line]
    assert RANK_SERIES < len(flooding) <= OF_USER_UNVERIFIED.series
    assert sum(len(line) + 1 for line in flooding) <= OF_USER_UNVERIFIED.bytes


def test_a_deleted_socket_is_made_again(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    path.unlink()
    until(path.is_socket, what="another socket")
    assert counted(exporter, path, "accepted", rank()).value(STEPS) == 3


def test_two_exporters_on_one_path(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """The second one serves everything else, and takes the path when the first one has ended."""
    first, second = start(serve, driver, path), start(serve, driver, path)
    assert second.page().value("gpu_exporter_job_socket_up") == 0
    assert counted(first, path, "accepted", rank()).value(STEPS) == 3
    assert first.stop() == 0
    second.until(lambda page: page.value("gpu_exporter_job_socket_up") == 1)
    assert counted(second, path, "accepted", rank()).value(STEPS) == 3
    assert f"{path}: another process listens on it: stop it, or use another path" in second.log.read_text()


def test_errors_have_one_line(path: Path) -> None:
    def error(*options: str) -> str:
        ended = run("serve", "--source", "simulated", "--address", "127.0.0.1:0", *options)
        assert ended.returncode == 1
        return ended.stderr.strip().splitlines()[-1]

    missing = path.parent / "missing" / "jobs.sock"
    assert "No such file or directory: create its directory first" in error("--job-socket", str(missing))
    file = path.parent / "file"
    file.write_text("kept")
    assert "exists, and is not a socket: use another path or remove it" in error("--job-socket", str(file))
    assert file.read_text() == "kept"
    assert "longer than 107 bytes: use a shorter path" in error("--job-socket", str(path.parent / ("x" * 200)))
    assert "jobs belong to one node" in error("--job-socket", str(path), "--nodes", "2")


def test_doctor_says_what_became_of_messages(serve: Serve, driver: FakeDriver, path: Path) -> None:
    exporter = start(serve, driver, path)
    counted(exporter, path, "accepted", rank())
    counted(exporter, path, "unknown_gpu", encoded(message(uuid="GPU-of-another-node")))
    address = f"127.0.0.1:{exporter.port}"
    said = run("doctor", "--source", "simulated", "--job-socket", str(path), "--address", address).stdout
    assert "messages of training loops accepted: 1; sending now: ranks 1, jobs 1" in said
    assert "messages of training loops dropped: 1, because their GPU is unknown" in said
    assert "not seen on a GPU (unverified): 1 of 1" in said


def test_a_rank_on_a_mig_device(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """It declares the UUID of its device. Its peak is that of its share of the GPU."""
    device = mig_device(3, "2g.35gb")
    driver.partition(0, {0: device})
    exporter = start(serve, driver, path)
    page = counted(exporter, path, "accepted", encoded(message(uuid=device["UUID"], dtype="bf16")))
    labels = {"UUID": UUID, "GPU_I_ID": "3", "GPU_I_PROFILE": "2g.35gb"}
    assert page.value(STEPS, **labels) == 3
    assert page.value("gpu_job_peak_flops_per_second", **labels) == pytest.approx(989e12 * 32 / 132)
