"""`gpu-exporter profile`, with the real py-spy, a fake driver, a fake kubelet and jobs that speak Kineto's IPC."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import command, run
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet, given
from tests.support.html import Document
from tests.support.kineto_jobs import SLOW_LOADER, jobs, short_folder, traces_in


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def profile(*arguments: str, driver: FakeDriver | None = None) -> subprocess.CompletedProcess[str]:
    return run("profile", *arguments, env=driver.environment if driver else None)


def test_stacks_of_the_process_on_a_gpu(driver: FakeDriver, tmp_path: Path) -> None:
    with busy_job("loader", tmp_path) as (job, line):
        driver.set("ComputeRunningProcesses", f"{job.pid}:1000")
        files = [f"--{name}={tmp_path / name}" for name in ("folded", "pprof", "report")]
        ran = profile("--gpu", "0", "--seconds", "1", *files, "--procfs", "/proc", driver=driver)
    assert ran.returncode == 0, ran
    first, second, *others = ran.stdout.splitlines()
    assert first.startswith(f"Process {job.pid} (")
    assert ") on GPU 0: sampled " in first
    assert second == "  main thread"
    assert others[0].endswith("waiting for the data loader")
    assert others[1].endswith(f"{line}: load_batch")
    audit = f"profile method=stacks seconds=1 pids={job.pid} uids={os.getuid()} gpus=0 by_uid={os.getuid()}"
    assert ran.stderr == f"gpu-exporter: {audit}\n"
    assert f"{line}: load_batch" in (tmp_path / "folded").read_text()
    Document((tmp_path / "report").read_text())
    for name in ("folded", "pprof", "report"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_several_processes_of_which_one_is_no_python(driver: FakeDriver, tmp_path: Path) -> None:
    with busy_job("busy", tmp_path) as (job, line), subprocess.Popen(["sleep", "60"]) as other:
        driver.set("ComputeRunningProcesses", f"{job.pid}:1000,{other.pid}:1000")
        ran = profile("--seconds", "1", "--json", driver=driver)
        other.kill()
    assert ran.returncode == 0, ran
    (found,) = json.loads(ran.stdout)["processes"]
    assert found["pid"] == job.pid
    assert found["threads"][0]["causes"][0]["lines"][0]["frame"].startswith(f"{line}: ")
    assert f"gpu-exporter: process {other.pid} (sleep 60) on GPU 0: it does not run Python\n" in ran.stderr


def test_the_process_of_a_pod(driver: FakeDriver, kubelet: FakeKubelet, tmp_path: Path) -> None:
    """Kubelet says which pod has which GPU."""
    kubelet.pods = [given("trainer", "GPU-00000000-0000-0000-0000-000000000000", namespace="ml")]
    settings = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--seconds", "1")
    with busy_job("busy", tmp_path) as (job, _):
        driver.set("ComputeRunningProcesses", f"{job.pid}:1000")
        ran = profile("--pod", "ml/trainer", *settings, driver=driver)
        other = profile("--pod", "ml/other", *settings, driver=driver)
    assert ran.stdout.startswith(f"Process {job.pid} ("), ran
    assert (other.returncode, other.stderr) == (
        1,
        "gpu-exporter: no process holds a GPU in pod ml/other: name the GPU with --gpu or the process with --pid\n",
    )


def test_a_trace(folder: Path, tmp_path: Path) -> None:
    """The process says where its socket is; the file that it wrote is gone afterwards."""
    with jobs("records", folder=folder) as (job,):
        files = [f"--{name}={tmp_path / name}" for name in ("folded", "pprof", "report")]
        ran = profile("--trace", "--pid", str(job.pid), *files, "--keep", str(tmp_path / "kept"))
        assert job.poll() is None
    assert ran.returncode == 0, ran
    assert ran.stdout.startswith("Verdict: data-loading-bound\n")
    assert "<stdin>(12): go > <built-in function sleep>" in ran.stdout
    kept = tmp_path / "kept" / f"trace_{job.pid}.json.gz"
    cost, audited, *others = ran.stderr.splitlines()
    assert "makes a job slower until it ends" in cost
    assert "profile method=trace" in audited
    assert others == [f"gpu-exporter: kept {kept}"]
    assert kept.read_bytes() == SLOW_LOADER.read_bytes()
    assert not traces_in(folder)
    for path in (kept, *(tmp_path / name for name in ("folded", "pprof", "report"))):
        assert path.stat().st_mode & 0o777 == 0o600


def test_one_rank_that_fails_does_not_spoil_the_others(folder: Path) -> None:
    with jobs("records", "dies", folder=folder) as (job, dying):
        ran = profile("--trace", "--json", "--pid", str(job.pid), "--pid", str(dying.pid))
    assert ran.returncode == 0, ran
    assert json.loads(ran.stdout)["ranks"][0]["file"] == f"process {job.pid}"
    assert "it ended while it recorded its trace" in ran.stderr


def test_a_trace_that_is_garbage(folder: Path) -> None:
    with jobs("garbage", folder=folder) as (job,):
        ran = profile("--trace", "--pid", str(job.pid))
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(f"gpu-exporter: the trace cannot be analysed: process {job.pid}: ")


def test_a_job_without_the_variable(folder: Path, tmp_path: Path) -> None:
    with busy_job("loader", tmp_path) as (job, _):
        ran = profile("--trace", "--pid", str(job.pid), "--socket-dir", str(folder))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith(
        ": it was not started with KINETO_USE_DAEMON=1: set it in the job, or leave out --trace to sample stacks\n"
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--pid", "1", "--gpu", "0"), "--pid names processes: leave out --gpu, --pod and --job"),
        (("--pid", "1", "--keep", "x"), "--no-stacks, --keep, --socket-dir and --trace-dir need --trace"),
        (("--pid", "1", "--trace", "--native"), "--native and --trace exclude each other"),
        (("--pod", "trainer"), "--pod: give the namespace, too, as in --pod training/trainer-0"),
        (("--pod", "ml/trainer"), "--pod needs --kubernetes"),
        (("--pid", "1", "--trace", "--seconds", "60"), "--seconds: at most 10 s of a trace"),
        (("--pid", "4194305"), "there is no process 4194305 here"),
        (("--pid", "4194305", "--report", "/none/x"), "/none/x: No such file or directory"),  # before it is looked for
        (("--source", "simulated"), "--source simulated: only processes on the GPUs of this machine can be profiled"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], why: str) -> None:
    ran = profile(*arguments)
    assert ran.returncode in (1, 2)
    assert why in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout


def test_without_py_spy(tmp_path: Path) -> None:
    """An interpreter without the program: it is said before anything is asked."""
    program = (
        "import sys\nfrom gpu_exporter.profiling import pyspy\npyspy.sys.prefix = '/nowhere'\n"
        "pyspy.sysconfig.get_path = lambda name: '/nowhere'\nfrom gpu_exporter.cli.main import main\n"
        "sys.argv = ['gpu-exporter', 'profile', '--pid', '1']\nmain()"
    )
    environment = {**os.environ, "PATH": str(tmp_path)}
    interpreter, *_ = command()
    ran = subprocess.run([interpreter, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert ran.stderr == "gpu-exporter: stacks are sampled by py-spy, which is not installed: pip install py-spy\n"
