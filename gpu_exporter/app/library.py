"""GPUs as plain Python values, for a training loop, a notebook or a test, without a server or Prometheus."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.catalogue.readable import readable as readable_name
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import REPLAY
from gpu_exporter.owners import visible
from gpu_exporter.owners.devices import DeviceRef, NodeDevices, devices
from gpu_exporter.pipeline.monitor import Monitor, observe
from gpu_exporter.sources.choice import local_gpus
from gpu_exporter.sources.choice import recording as recording_path
from gpu_exporter.sources.subset import Subset

INTERVAL_SECONDS = 1.0
# The source of the GPUs of this machine.
LOCAL = "local"
# Two first calls at the same time would start two loops.
ONE_AT_A_TIME = threading.Lock()
VARIABLE = "CUDA_VISIBLE_DEVICES"
INSTANCE = "GPU_I_ID"
# A GPU by its index, or a GPU or MIG instance by its UUID.
Place = int | DeviceRef


class Shown(NamedTuple):
    """What CUDA shows to this process, and why it rejects the rest, as the end of a message."""

    places: tuple[Place, ...]
    rejected: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class GpuReading:
    """One GPU at unix time `at`: its identity, whether it responds (if not, `reason` says why), and its samples.

    If `CUDA_VISIBLE_DEVICES` names a MIG instance, `instance` is the id of the GPU instance, and the samples are those
    of this instance and of the GPU as a whole, without those of other instances.
    """

    at: float
    gpu: Gpu
    up: bool
    reason: str
    samples: tuple[Sample, ...]
    instance: str = ""

    @property
    def index(self) -> int:
        """The index of the GPU in NVML and nvidia-smi."""
        return self.gpu.index

    def __repr__(self) -> str:
        state = f"{len(self.samples)} samples" if self.up else f"down: {self.reason}"
        instance = f" MIG {self.instance}" if self.instance else ""
        return f"<GPU {self.index}{instance}, {self.gpu.model or 'not identified'}, {state}>"

    def as_dict(self, *, readable: bool = False) -> dict[str, float]:
        """Return values by metric name and the labels beyond the GPU's: `gpu_clock_event_seconds_total{reason="…"}`.

        Names, units and ranges are those of the metric reference. A metric that could not be read has no entry. If
        `readable`, names are short, end in their unit, and suit experiment trackers: `sm_active` (0 to 1),
        `power_watts`, `memory_used_bytes`, `clock_event_seconds_total/sw_power_cap`.
        """
        return dict(_readable(sample) if readable else (_key(sample), sample.value) for sample in self.samples)


def _key(sample: Sample) -> str:
    labels = ",".join(f'{name}="{text}"' for name, text in _labels(sample))
    return f"{sample.series.name}{{{labels}}}" if labels else sample.series.name


def _readable(sample: Sample) -> tuple[str, float]:
    name, factor = readable_name(sample.series.metric, sample.series.name, dict(_labels(sample)))
    return name, sample.value * factor


def _labels(sample: Sample) -> Sequence[tuple[str, str]]:
    return sample.series.metric.labels + sample.series.labels


def readings(snapshot: Snapshot) -> tuple[GpuReading, ...]:
    """Split a snapshot by GPU: what was read and its integrals, without metrics of the exporter itself."""
    samples: dict[Gpu, list[Sample]] = {status.gpu: [] for status in snapshot.gpus}
    for sample in snapshot.samples:
        metric, gpu = sample.series.metric, sample.series.gpu
        if gpu is not None and (metric.nvml or metric.integral_of or metric.sum_of or metric.peak_of):
            samples[gpu].append(sample)
    return tuple(
        GpuReading(snapshot.at, status.gpu, status.up, status.reason, tuple(samples[status.gpu]))
        for status in snapshot.gpus
    )


def read(
    *,
    metrics: str = "default",
    gpus: Sequence[int] | None = None,
    source: str = LOCAL,
    recording: str | os.PathLike[str] | None = None,
) -> tuple[GpuReading, ...]:
    """Return the current state of this machine's GPUs, which a loop in the background collects once a second.

    The first call starts the loop and takes up to a second; later calls take 0.3 ms and never wait for a driver.
    Profiling values (SM active, tensor, DRAM …) are means over the last second. For an exact mean between two calls,
    subtract their time integrals (`gpu_sm_active_seconds_total`). `metrics` is `default` or `full`.

    `gpus` are the indices to read, as CUDA counts: in a job with one process per GPU, pass the local rank. If
    `CUDA_VISIBLE_DEVICES` is set, only the GPUs and MIG instances that it names are read, in its order; as in CUDA, an
    entry that is malformed, or a UUID of another machine, hides itself and all that follow. `index` of a reading is
    always the index of nvidia-smi, of a MIG instance that of its GPU. `CUDA_DEVICE_ORDER` is taken to be the order of
    nvidia-smi.

    With `source="replay"`, the GPUs are those of `recording`, a file or the name of a packaged recording
    (`h200_workloads`), which is played in real time, again and again; `gpus` are their indices.

    Raises GpuExporterError, in one line, if there is no driver, no GPU, or not every one of `gpus`, or if
    `CUDA_VISIBLE_DEVICES` names no GPU of this machine. A GPU that is lost or stuck is `up=False`.
    """
    if metrics not in (names := [each.value for each in (MetricSet.DEFAULT, MetricSet.FULL)]):
        raise GpuExporterError(f"metrics: {metrics!r} is not a set of metrics: use {' or '.join(names)}")
    file = _recording(source, recording)
    with ONE_AT_A_TIME:
        chosen = _chosen(gpus, _visible(None if file else os.environ.get(VARIABLE), os.getpid()))
        monitor = _monitor(MetricSet(metrics), _names(chosen), file, os.getpid())
    found = readings(monitor.snapshot())
    return found if chosen is None else _in_order(found, chosen)


def _recording(source: str, named: str | os.PathLike[str] | None) -> Path | None:
    """Return the recording to replay; None for the GPUs of this machine. Raises GpuExporterError."""
    if source not in (LOCAL, REPLAY.name):
        raise GpuExporterError(f"source: {source!r} is not a source: use {LOCAL} or {REPLAY.name}")
    if source == LOCAL and named is not None:
        raise GpuExporterError('recording: needs source="replay": a recording is never mistaken for GPUs')
    if source == LOCAL:
        return None
    if named is None:
        raise GpuExporterError('source: "replay" needs a recording: a file, or a packaged one such as "h200_workloads"')
    return recording_path(Path(named))


def _source(gpus: tuple[int | str, ...] | None, recording: Path | None) -> Source:
    """Return the chosen GPUs of this machine, or of a recording. Raises GpuExporterError."""
    if recording is None:
        return local_gpus(gpus=gpus)
    from gpu_exporter.sources.recording.format import load  # only replays need these
    from gpu_exporter.sources.recording.replay import ReplaySource

    source = ReplaySource(load(recording))
    return source if gpus is None else Subset(source, gpus, setting="gpus")


def _in_order(found: Sequence[GpuReading], chosen: Sequence[Place]) -> tuple[GpuReading, ...]:
    """Return the reading of each chosen place, and then those of GPUs that cannot be identified now."""
    named = [_of(reading, place) for place in chosen for reading in found if _is(reading.gpu, place)]
    others = (reading for reading in found if not any(_is(reading.gpu, place) for place in chosen))
    return (*named, *others)


def _is(gpu: Gpu, place: Place) -> bool:
    return gpu.index == place if isinstance(place, int) else gpu.uuid == place.uuid


def _of(reading: GpuReading, place: Place) -> GpuReading:
    """Return a reading without the samples of other MIG instances than the chosen one, if one is chosen."""
    if isinstance(place, int) or not place.instance:
        return reading
    samples = (each for each in reading.samples if dict(each.series.labels).get(INSTANCE) in (None, place.instance))
    return replace(reading, samples=tuple(samples), instance=place.instance)


@cache
def _visible(text: str | None, process: int) -> Shown | None:
    """Return what CUDA shows for a value of `CUDA_VISIBLE_DEVICES`; None for all GPUs.

    MIG devices do not change while a process uses them. Raises GpuExporterError if CUDA shows nothing.
    """
    if text is None:
        return None
    named = visible.entries(text)
    if not named:
        raise GpuExporterError(f"{VARIABLE} hides all GPUs: change or unset it")
    indices = tuple(name for name in named if isinstance(name, int))
    if len(set(indices)) < len(indices):
        raise GpuExporterError(f"{VARIABLE} names a GPU twice: CUDA shows none then; name each once")
    if indices:
        return Shown(indices)
    snapshot, _ = observe(local_gpus(), (m.MIG_DEVICE,))
    here = _devices(snapshot)
    try:
        refs, rejected = visible.shown(tuple(map(str, named)), here)
    except visible.Repeated as error:
        raise GpuExporterError(f"{VARIABLE} names {error} twice: CUDA shows none then; name each once") from error
    if not refs:
        gpus = [f"{status.gpu.index} ({status.gpu.uuid or status.reason})" for status in snapshot.gpus]
        fix = f"choose from {', '.join((*gpus, *here.migs))}"
        raise GpuExporterError(f"{VARIABLE}: {_no_device(rejected)}", fix=fix)
    return Shown(refs, f"; {_no_device(rejected)}" if rejected else "")


def _no_device(name: str) -> str:
    return f"{printable(name, 80)} is not the UUID, or the beginning of the UUID, of one GPU or MIG device"


def _devices(snapshot: Snapshot) -> NodeDevices:
    """Return the GPUs of a snapshot and their MIG devices."""
    migs = {}
    for series, _ in snapshot.samples:
        if series.metric is m.MIG_DEVICE and series.gpu:
            labels = dict(series.labels)
            migs[labels["mig_uuid"]] = DeviceRef(series.gpu.uuid, labels[INSTANCE])
    return devices((status.gpu for status in snapshot.gpus), migs)


def _chosen(gpus: Sequence[int] | None, shown: Shown | None) -> tuple[Place, ...] | None:
    """Return the places to read; None for all GPUs. Raises GpuExporterError for an index that does not exist."""
    if gpus is None:
        return None if shown is None else shown.places
    for index in gpus:
        if type(index) is not int or index < 0:
            raise GpuExporterError(f"gpus: {index!r} is not the index of a GPU: use whole numbers such as [0, 1]")
        if shown is not None and index >= len(shown.places):
            message = f"gpus: there is no GPU {index}: {VARIABLE} names {len(shown.places)}{shown.rejected}"
            raise GpuExporterError(message)
    return tuple(gpus) if shown is None else tuple(shown.places[index] for index in gpus)


def _names(chosen: Sequence[Place] | None) -> tuple[int | str, ...] | None:
    """Return the GPUs of these places, by index or UUID, each once; None for all."""
    if chosen is None:
        return None
    return tuple(dict.fromkeys(place if isinstance(place, int) else place.uuid for place in chosen))


@dataclass(frozen=True, slots=True)
class GpuDiagnosis:
    """What limits one GPU or MIG instance, and what is wrong with it.

    `bottleneck` is the class, such as `data-loading-bound`; "" if it is unknown. `findings` are the names of the
    failure modes that match, `advice` has what to do about each. `details` are as in `gpu-exporter diagnose --json`.
    """

    gpu: str
    uuid: str
    bottleneck: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeDiagnosis:
    """The GPUs, those that could not be judged with the reason, and the report as text, which `print` shows."""

    gpus: tuple[GpuDiagnosis, ...]
    absent: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def diagnose(
    *,
    seconds: float = 20.0,
    gpus: Sequence[int] | None = None,
    recording: str | os.PathLike[str] | None = None,
    phase: str = "",
    one_job: bool = False,
) -> NodeDiagnosis:
    """Watch this machine's GPUs for `seconds`, and return what limits each and what is wrong: `print(diagnose())`.

    `gpus` are chosen as in `read`. With `one_job`, they are ranks of one job: its straggler is named.
    With `recording`, a file or the name of a packaged recording, nothing is watched: the recording is diagnosed, or one
    `phase` of it. Raises GpuExporterError, in one line, as `read` does.
    """
    from gpu_exporter.diagnosis import report  # `read` needs none of these
    from gpu_exporter.diagnosis.gather import LONGEST_SECONDS, watch_source
    from gpu_exporter.diagnosis.result import diagnose_recording, diagnose_scrapes
    from gpu_exporter.diagnosis.window import ONE_JOB

    instances: set[DeviceRef] = set()
    if recording is not None:
        if gpus is not None:
            raise GpuExporterError("gpus: a recording is diagnosed as a whole: leave out gpus")
        result = diagnose_recording(recording_path(Path(recording)), phase)
    else:
        if phase:
            raise GpuExporterError("phase: selects a phase of a recording: name it with recording=")
        if not 0 < seconds <= LONGEST_SECONDS:
            raise GpuExporterError(f"seconds: {seconds} is not between 0 and {LONGEST_SECONDS:.0f}")
        with ONE_AT_A_TIME:
            chosen = _chosen(gpus, _visible(os.environ.get(VARIABLE), os.getpid()))
        instances |= {place for place in chosen or () if isinstance(place, DeviceRef) and place.instance}
        scrapes = watch_source(_source(_names(chosen), None), seconds, threading.Event())
        result = diagnose_scrapes(scrapes, ONE_JOB if one_job else "")
    diagnoses = [
        diagnosis
        for diagnosis in result.diagnoses
        if not instances
        or not diagnosis.device.instance
        or DeviceRef(diagnosis.device.uuid, diagnosis.device.instance) in instances
    ]
    absent = tuple(report.absences(result.absent))
    text = "\n".join([*absent, *report.lines(diagnoses)])
    found = report.as_dict(diagnoses)["gpus"]
    return NodeDiagnosis(tuple(map(_gpu_diagnosis, found)), absent, text)


def _gpu_diagnosis(found: Mapping[str, Any]) -> GpuDiagnosis:
    """Return a diagnosis from its JSON."""
    modes = found["modes"]
    names, advice = tuple(mode["name"] for mode in modes), tuple(mode["advice"] for mode in modes)
    return GpuDiagnosis(found["gpu"], found["UUID"], found["class"] or "", names, advice, found)


@cache
def _monitor(metrics: MetricSet, gpus: tuple[int | str, ...] | None, recording: Path | None, process: int) -> Monitor:
    """Return the monitor of this process: a forked child needs its own, since threads do not survive a fork."""
    monitor = Monitor(_source(gpus, recording), selected(metrics), INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        monitor.start()
    except GpuExporterError:
        monitor.stop()
        raise
    atexit.register(_stop, monitor, process)
    return monitor


def _stop(monitor: Monitor, process: int) -> None:
    """Stop a monitor of this process: no thread may be inside the driver's library when its destructors run."""
    if process == os.getpid():
        monitor.stop()


def _renew_lock() -> None:
    """Replace the lock in the child of a fork: a thread of the parent that holds it does not exist there."""
    global ONE_AT_A_TIME
    ONE_AT_A_TIME = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
