"""Which GPU a sender belongs to."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.places import Places, SenderPlace, places
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import GpuSamples

FIRST = (("GPU_I_ID", "1"), ("GPU_I_PROFILE", "3g.40gb"))
SECOND = (("GPU_I_ID", "2"), ("GPU_I_PROFILE", "3g.40gb"))


def listed(index: int, *pids: int, instances: tuple[Labels, ...] = ()) -> GpuSamples:
    """A GPU with processes. In MIG mode, the first process is on the first instance, and so on."""
    gpu = Gpu(index, f"GPU-{index}")
    where = instances or ((),) * len(pids)
    samples = [
        Sample(Series(m.PROCESS_MEMORY, gpu, (("pid", str(pid)), ("process", "python3"), *labels)), 1)
        for pid, labels in zip(pids, where, strict=False)
    ]
    samples += [
        Sample(Series(m.MIG_DEVICE, gpu, (*labels, ("mig_uuid", f"MIG-{index}-{labels[0][1]}"))), 1)
        for labels in instances
    ]
    return GpuSamples(gpu, None, samples, {})


def pod(index: int, uid: str, instance: str = "") -> Series:
    labels = (("pod_uid", uid), *((("GPU_I_ID", instance),) if instance else ()))
    return Series(m.POD_INFO, Gpu(index, f"GPU-{index}"), labels)


def test_the_driver_knows_better_than_the_sender() -> None:
    known = places([listed(0, 41), listed(1, 42, 43), listed(2, 43)])
    assert known.of_processes([41], "") == known.of_processes([41], "GPU-1") == SenderPlace("GPU-0")
    assert known.of_processes([43], "GPU-2") == SenderPlace("GPU-2")  # on two GPUs, it says which
    assert known.of_processes([43], "GPU-0") is None
    assert known.of_processes([43], "") is None
    assert known.of_processes([41, 42], "GPU-1") == SenderPlace("GPU-1")  # the children of a launcher
    assert known.of_processes([], "GPU-1") is None


def test_a_process_that_the_driver_does_not_list_may_declare_a_gpu_of_this_node() -> None:
    known = places([listed(0, 41)])
    assert known.of_statement("GPU-0", "") == SenderPlace("GPU-0")
    assert known.of_statement("GPU-9", "") is known.of_statement("", "") is None


def test_a_mig_device_is_known_by_its_uuid() -> None:
    """Also as PyTorch gives it, without the prefix."""
    known = places([listed(0, 41, 42, instances=(FIRST, SECOND))])
    assert known.of_statement("MIG-0-2", "") == known.of_statement("GPU-0-2", "") == SenderPlace("GPU-0", SECOND)
    assert known.of_processes([41], "") == SenderPlace("GPU-0", FIRST)


def test_a_pod_with_one_gpu_is_known_by_its_uid() -> None:
    known = places([listed(0), listed(1), listed(2)], [pod(0, "p"), pod(1, "q"), pod(2, "q")])
    assert known.of_statement("", "p") == SenderPlace("GPU-0")
    assert known.of_statement("", "q") is None  # on two GPUs, the sender must say which
    assert known.of_statement("GPU-2", "q") == SenderPlace("GPU-2")
    assert known.of_statement("", "another") is known.of_statement("", "") is None


def test_a_pod_on_a_mig_instance() -> None:
    known = places([listed(0, instances=(FIRST, SECOND))], [pod(0, "p", "2"), pod(0, "q", "9")])
    assert known.of_statement("", "p") == SenderPlace("GPU-0", SECOND)
    assert known.of_statement("", "q") is None  # an instance that is gone


def test_everything_that_is_known_of_a_node() -> None:
    """A GPU without a UUID has no place, and other series say nothing about processes."""
    gpu = Gpu(1, "GPU-1")
    others = [Sample(Series(m.PROCESS_SM, gpu, (("pid", "51"),)), 1), Sample(Series(m.POWER, gpu), 1)]
    found = places(
        [
            listed(0, 41, 42, instances=(FIRST, SECOND)),
            GpuSamples(gpu, None, others, {}),
            GpuSamples(Gpu(2, ""), None, [], {}),
        ],
        [pod(0, "p", "1"), pod(0, "p"), Series(m.POD_INFO, None, (("pod_uid", "q"),)), Series(m.POD_INFO, gpu, ())],
    )
    assert found == Places(
        {"GPU-0": Gpu(0, "GPU-0"), "GPU-1": gpu},
        {
            41: frozenset({SenderPlace("GPU-0", FIRST)}),
            42: frozenset({SenderPlace("GPU-0", SECOND)}),
            51: frozenset({SenderPlace("GPU-1")}),
        },
        {"p": frozenset({SenderPlace("GPU-0", FIRST), SenderPlace("GPU-0")})},
        {
            "0": SenderPlace("GPU-0"),
            "1": SenderPlace("GPU-1"),
            "0-1": SenderPlace("GPU-0", FIRST),
            "0-2": SenderPlace("GPU-0", SECOND),
        },
    )
