"""`check --active` on stand-ins for both drivers: verdict, exit code, and that no process and no context is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.active_checks.history import ActiveChecks, Run
from gpu_exporter.model.verdict import Health
from tests.conftest import run
from tests.e2e.active_checks.machine import UUID, machine
from tests.support.fakes.driver import FakeDriver


def test_healthy_gpus(tmp_path: Path) -> None:
    """JSON, textfile and history have the rates of the GPUs and of the links between them."""
    two, state, text = machine(tmp_path, gpus=2), tmp_path / "state", tmp_path / "gpu.prom"
    code, out, err = two.check("--json", "--state-dir", str(state), "--textfile", str(text))
    answer: dict[str, Any] = json.loads(out)
    assert (code, err, answer["health"]) == (0, "", "healthy")
    for gpu in answer["active"]["gpus"]:
        rates = {rated["quantity"]: rated["value"] for rated in gpu["rates"]}
        assert rates == pytest.approx(
            {
                "memory_copy": 4.3e12,
                "memory_read": 4.4e12,
                "pcie_to_gpu": 55.2e9,
                "pcie_from_gpu": 55.2e9,
                "fp32": 66e12,
                "bf16": 895e12,
                "nvlink": 397.5e9,
            },
            rel=0.01,
        )
        assert next(rated["how"] for rated in gpu["rates"] if rated["quantity"] == "bf16") == "wgmma"
    assert {(pair["from"], pair["to"]) for pair in answer["active"]["pairs"]} == {(0, 1), (1, 0)}
    last = ActiveChecks(state).read().last(UUID.format(1))
    assert last is not None
    assert (last.health, last.model, last.level) == (Health.HEALTHY, "NVIDIA H200", 1)
    assert f'gpu_probe_passed{{gpu="1",UUID="{UUID.format(1)}"}} 1\n' in text.read_text()
    assert 'quantity="bf16"}' in text.read_text()


@pytest.mark.parametrize(
    ("key", "value", "arguments", "code", "said"),
    [
        ("Rate.bf16", 4.0e14, (), 3, "GPU 1: degraded: tensor cores, bf16: 400 TFLOP/s, 55 % below the other GPUs"),
        ("Wrong.fp32", 3, (), 3, "GPU 1: unhealthy: wrong result: FFMA: 1 of 16 blocks computed something else: 3 ->"),
        ("Sum.bf16_group", 1, (), 3, "GPU 1: unhealthy: wrong result: wgmma: 512 of 512 threads got a wrong sum of"),
        ("LostAfter", 40, (), 3, "GPU 1: unhealthy: the GPU failed: "),
        ("Crash.cuMemAlloc_v2", 3, (), 3, "was ended by signal 11 -> gpu_reset"),
        ("Hang.cuLaunchKernel", 30, ("--timeout", "20s"), 3, "GPU 1: unhealthy: the GPU did not finish in time: "),
        ("Hang.cuMemcpyPeerAsync", 3, (), 3, "copies from GPU 1 to GPU 0: no answer by the deadline -> gpu_reset"),
        ("Hang.cuDevicePrimaryCtxRetain", 1, ("--timeout", "16s"), 3, "did not finish in time: start of CUDA ->"),
        (
            "Fail.cuDevicePrimaryCtxRetain",
            46,
            (),
            1,
            "start of CUDA: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE",
        ),
    ],
)
def test_a_faulty_gpu(tmp_path: Path, key: str, value: float, arguments: tuple[str, ...], code: int, said: str) -> None:
    """The faulty one of two GPUs is named, and the other one is measured nevertheless."""
    two = machine(tmp_path, gpus=2)
    two.cuda.set(key, value, gpu=1)
    ended, out, err = two.check(*arguments)
    assert (ended, err) == (code, "")
    assert said in out
    assert "GPU 0 (NVIDIA H200)\n  device memory, copy (read + write)       4.3 TB/s" in out


def test_a_wrong_word_of_memory(tmp_path: Path) -> None:
    """Level 2 finds it, with its address and its content."""
    one = machine(tmp_path)
    one.cuda.set("Flip", 123456)
    code, out, _ = one.check("--level", "2", "--load-time", "1s", "--json")
    answer = json.loads(out)
    (gpu,) = answer["active"]["gpus"]
    (word,) = gpu["memory_test"]["words"]
    assert (code, gpu["memory_test"]["wrong"], word["offset"], word["bits"]) == (3, 1, 4 * 123456, 1)
    assert answer["gpus"][0]["problems"][0]["what"].startswith("1 wrong word in 30 MiB of memory, the first at 0x")
    assert gpu["sustained"]["last"] == pytest.approx(895e12, rel=0.01)


def without_cuda(driver: FakeDriver) -> None:
    """A machine with NVML, but without libcuda.so.1, as in a container that was given only `utility`."""
    (driver.directory / "libcuda.so.1").write_bytes(b"")


def busy(driver: FakeDriver) -> None:
    """A process uses the GPU whose ID is above every limit of the kernel, so that none of this machine has it."""
    driver.set("ComputeRunningProcesses", f"{2**22 + 1}:1048576")


def held(driver: FakeDriver) -> None:
    """A program in another container holds memory of the GPU: the driver lists no process here."""
    driver.set("MemoryInfo.used", 5_000_000_000)


def in_mig_mode(driver: FakeDriver) -> None:
    """The GPU is split into instances."""
    driver.set("MigMode.current", 1)


@pytest.mark.parametrize(
    ("prepare", "arguments", "code", "said"),
    [
        (without_cuda, (), 1, "start of CUDA: load: libcuda.so.1: no CUDA driver"),
        (busy, (), 4, "GPU 0: in use by 1 process that is not visible here"),
        (
            held,
            (),
            4,
            "PID namespace), with 4.66 GiB of its memory: no comparable result",
        ),
        (busy, ("--force",), 0, "GPUs: 1 healthy"),
        (in_mig_mode, ("--force",), 1, "it is in MIG mode: active checks need whole GPUs"),
    ],
)
def test_the_environment(
    tmp_path: Path, prepare: Callable[[FakeDriver], None], arguments: tuple[str, ...], code: int, said: str
) -> None:
    """What keeps a check from running is no fault of the GPU."""
    one = machine(tmp_path)
    prepare(one.nvml)
    ended, out, err = one.check(*arguments)
    assert (ended, err) == (code, "")
    assert said in out


def test_beside_a_foreign_process(tmp_path: Path) -> None:
    """It is named with its owner. A low rate beside it says nothing about the GPU, nor about others."""
    two = machine(tmp_path / "machine", gpus=2)
    proc = tmp_path / "proc"
    for pid, name in {2: "kthreadd", 4242: "python3"}.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "comm").write_text(f"{name}\n")
    (proc / "4242/status").write_text("Name:\tpython3\nUid:\t4000000\t4000000\t4000000\t4000000\n")
    (proc / "4242/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n")
    two.nvml.set("ComputeRunningProcesses", "4242:1048576", gpu=1)
    who = "GPU 1: in use by process 4242 (python3) of user 4000000, job 17: no comparable result -> end it\n"
    code, out, _ = two.check("--procfs", str(proc))
    assert (code, who in out) == (4, True)
    assert out.endswith("GPUs: 1 healthy, 1 unknown\n")
    two.cuda.set("Rate.bf16", 4.0e14, gpu=1)
    code, out, _ = two.check("--procfs", str(proc), "--force")
    assert (code, who in out, "degraded" in out) == (4, True, False)
    code, out, _ = two.check("--procfs", str(proc), "--force", "--json")
    answer = json.loads(out)
    assert (code, [each["gpu"] for each in answer["in_use"]]) == (4, [1])
    assert [gpu["health"] for gpu in answer["gpus"]] == ["healthy", "unknown"]
    two.cuda.set("Rate.bf16", 4.0e14, gpu=0)
    assert two.check("--procfs", str(proc), "--force")[0] == 3


def test_its_own_past(tmp_path: Path) -> None:
    """A GPU that was faster in three earlier checks is degraded, also when it is checked again."""
    one, history = machine(tmp_path), ActiveChecks(tmp_path / "state")
    for at in range(3):
        history.append({UUID.format(0): Run(float(at), 1, Health.HEALTHY, values={"memory_copy": 4.6e12})})
    for _ in range(2):
        code, out, _ = one.check("--state-dir", str(tmp_path / "state"))
        assert code == 3
        assert "device memory, copy (read + write): 4.3 TB/s, 6.5 % below its own earlier checks -> drain" in out


def test_an_unusable_history(tmp_path: Path) -> None:
    """The check works without a history that cannot be read, and says so."""
    one = machine(tmp_path)
    (tmp_path / "active-checks.json").write_text("{")
    code, out, err = one.check("--state-dir", str(tmp_path))
    assert (code, out.splitlines()[-1]) == (0, "GPUs: 1 healthy")
    assert "warning: the history of active checks cannot be read: " in err
    assert "; remove it" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--level", "2"), "--level needs --active"),
        (("--active", "--load-time", "9s"), "--load-time needs --active --level 2"),
        (("--timeout", "9s"), "--timeout needs --active or --collectives"),
        (("--active", "--collectives"), "--active and --collectives exclude each other"),
        (("--active", "--level", "2", "--timeout", "50s"), "does not fit into a --timeout of 50 s: use --timeout 60s"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    """An option without effect is an error, and so is a load that no GPU could finish in time."""
    ended = run("check", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_simulated_gpus() -> None:
    """A simulation cannot compute."""
    ended = run("check", "--active", "--source", "simulated")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "gpu-exporter: --active needs real GPUs: simulated and replayed ones cannot compute\n"
