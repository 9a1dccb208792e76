"""The timer of a training loop: steps, phases, waiting and activities, as context managers and a loader."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from time import perf_counter

from gpu_exporter.model.job_message import (
    ACTIVITIES,
    AMOUNTS,
    CHECKPOINT,
    COMPILE,
    EVALUATION,
    LONGEST_PHASE,
    SEND_SECONDS,
    SOCKET_VARIABLE,
    TRAINING,
    WAITING,
)
from gpu_exporter.training.clocks import cuda, gpu_uuid
from gpu_exporter.training.launcher import JobPlace, place, process_group, visible_uuid
from gpu_exporter.training.recorder import ONLY_WAITING, Recorder
from gpu_exporter.training.sections import Activity, Loader, Phase, Step
from gpu_exporter.training.totals import MOST_PHASES, StepTotals, TimerState, amount, message
from gpu_exporter.training.transport import SenderThread, transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    from gpu_exporter.training.profiled import StepSampler

    Item = TypeVar("Item")


class StepTimer:
    """Measures a training loop, and sends sums to the exporter of this node about once a second.

    `job_id` is the same on all ranks; by default the launcher's, or the name of the program. Rank, number of ranks and
    local rank are those of torchrun, MPI or Slurm, unless given. `socket` is the exporter's socket, or the path of a
    textfile (`*.prom`), by default $GPU_EXPORTER_JOB_SOCKET; without it, the timer only measures. `dtype` (`bf16`) is
    that of the matrix products, for the peak that MFU refers to. `uuid` is the GPU, where PyTorch does not say.

    With `gpu=False`, times are those of the CPU.

    Self time needs to know how long this rank waits for others: call `watch`, `waiting`, `sample_every` or
    `mark_collectives`. Use the timer in the thread of the loop. Nothing of it waits for the GPU or the exporter, except
    the steps that `sample_every` profiles.
    """

    def __init__(
        self,
        job_id: str = "",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        socket: str | os.PathLike[str] | None = None,
        dtype: str = "",
        uuid: str = "",
        gpu: bool = True,
    ) -> None:
        self.place = self._place(job_id, rank, world_size, local_rank)
        self.totals, self._lock = StepTotals(), threading.Lock()
        self._sampler: StepSampler | None = None
        self._data_of_step = 0.0
        waits = ONLY_WAITING if self.place.world_size == 1 else None  # a single rank waits for none
        self.recorder = Recorder(self.totals, self._lock, waits, gpu=gpu)
        # torch.multiprocessing.spawn starts ranks without telling them their number on this node.
        launched = place(os.environ).world_size == self.place.world_size
        known_rank = self.place.local_rank if launched or local_rank is not None else None
        self._uuid, self._dtype = uuid or visible_uuid(os.environ, known_rank), dtype
        self._attempt, self._process = os.urandom(8).hex(), os.getpid()
        self._created = self._step_ended = self._activity_began = perf_counter()
        self._activity = TRAINING
        self._phases: dict[str, Phase] = {}
        self._step = Step(self)
        path = os.environ.get(SOCKET_VARIABLE, "") if socket is None else os.fspath(socket)
        way = transport(path, self.place.rank)
        self._sender = SenderThread(way, self.message, SEND_SECONDS) if way else None
        if self._sender:
            atexit.register(self.close)

    @staticmethod
    def _place(job_id: str, rank: int | None, world_size: int | None, local_rank: int | None) -> JobPlace:
        """Return the place of this process, of which arguments, the process group and the launcher say parts."""
        said = place(os.environ, sys.argv[0] if sys.argv else "")
        default_rank, default_size = process_group() or (said.rank, said.world_size)
        rank = default_rank if rank is None else rank
        world_size = max(default_size, rank + 1) if world_size is None else world_size
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size} ranks: ranks count from 0 to world_size - 1")
        local_rank = said.local_rank if local_rank is None else local_rank
        return JobPlace(job_id or said.job_id, rank, world_size, local_rank, said.pod_uid)

    # --- what a loop calls --------------------------------------------------------------------------------------------

    def data(self, loader: Iterable[Item]) -> Loader[Item]:
        """Iterate over a loader, and measure how long it takes to give each batch."""
        return Loader(self, loader)

    def step(self, *, tokens: float = 0, samples: float = 0, flops: float = 0) -> Step:
        """Measure a step: `with timer.step(tokens=…):`. It begins where the last one ended, with data and all.

        The amounts are those of this rank; `with timer.step() as step: step.tokens = …` sets them later. Numbers only:
        to read a tensor of the GPU would wait for it.
        """
        step = self._step
        step.tokens, step.samples, step.flops = tokens, samples, flops
        return step

    def phase(self, name: str) -> Phase:
        """Measure a phase of a step: `with timer.phase("forward"):`. Phases may be nested; times do not overlap."""
        phase = self._phases.get(name)
        if phase is None:
            phase = Phase(self.recorder, str(name)[:LONGEST_PHASE] or "unnamed")
            if len(self._phases) < MOST_PHASES:
                self._phases[name] = phase
        return phase

    def waiting(self) -> Phase:
        """Measure time that is spent waiting for other ranks. It is not part of the self time."""
        self.know_waiting()
        return self.phase(WAITING)

    def activity(self, name: str) -> Activity:
        """Mark time that is no training: `evaluation`, `checkpoint` or `compile`. Ranks are not compared meanwhile."""
        if name not in ACTIVITIES:
            raise ValueError(f"activity {name!r}: use one of {', '.join(ACTIVITIES)}")
        return Activity(self, name)

    def evaluation(self) -> Activity:
        """Mark an evaluation."""
        return Activity(self, EVALUATION)

    def checkpoint(self) -> Activity:
        """Mark the writing of a checkpoint."""
        return Activity(self, CHECKPOINT)

    def compile(self) -> Activity:
        """Mark compilation and warm-up; it may contain whole steps."""
        return Activity(self, COMPILE)

    def watch(self, model: Any) -> None:
        """Measure how long a model waits for other ranks. Call it when the model is wrapped, before the loop.

        For DistributedDataParallel, in each backward pass, with every communication hook, for its buffers, and in the
        collectives that Python calls. For FSDP, tensor and pipeline parallelism, in the collectives that Python calls,
        in some of the steps. A single rank waits for none.
        """
        from gpu_exporter.training.ddp import watch  # imports torch, which the model's owner has imported

        is_watched = watch(model, self.recorder)
        if not self._sampler and self.place.world_size > 1 and process_group():
            from gpu_exporter.training.collectives import watch as watch_collectives

            is_watched = watch_collectives(model, self.recorder, is_ddp=is_watched)
        if is_watched:
            self.know_waiting()

    def sample_every(self, steps: int) -> None:
        """Profile one of so many steps on a GPU: only these have a self time. Call it on all ranks, before the loop.

        For jobs with collectives all over the step: FSDP, tensor parallelism. Raises ValueError for less than 2 steps.
        """
        from gpu_exporter.training.profiled import StepSampler  # few jobs need it

        sampler = StepSampler(steps)
        if self.place.world_size > 1:  # a single rank waits for none
            self._sampler, self.recorder.waits = sampler, None
            self.recorder.watch = self.recorder.beside = None

    def mark_collectives(self, *phases: str) -> None:
        """Leave phases that contain collectives out of the self time. Call it before the loop.

        For other jobs in which nothing tells how long this rank waits. `sample_every` takes precedence.
        """
        if not self._sampler:
            self.recorder.waits = ONLY_WAITING.union(self.recorder.waits or (), phases)

    def summary(self) -> dict[str, float]:
        """Return means per step in seconds, shares and rates of this rank since the timer was created.

        For a logger, or to print at the end. Unknown values have no entry.
        """
        self.recorder.collect()
        with self._lock:
            return self.totals.summary(perf_counter() - self._created)

    def close(self) -> None:
        """Send the last sums, and stop sending until the next step. The exit of the program calls it as well.

        Without it, a program that does something else after the training looks like a training that is stalled.
        """
        self.recorder.unwatch()
        if self._sender and self._process == os.getpid():  # not at the exit of a forked child
            self.recorder.collect()
            self._sender.close()

    def __enter__(self) -> StepTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for sections and callbacks -----------------------------------------------------------------------------------

    def know_waiting(self) -> None:
        """Note that the phase `waiting` has all the time in which this rank waits, unless it is set otherwise."""
        if self.recorder.waits is None and not self._sampler:
            self.recorder.waits = ONLY_WAITING

    def begin_step(self) -> None:
        """Begin the first step, or go on with one."""
        self.recorder.start()
        if self._sampler and self.recorder.on_gpu and self._activity == TRAINING:
            self._sampler.begin(self.totals.steps)
        if self._sender and not self._sender.started:
            self._begin_sending()

    def end_step(self, step: Step) -> None:
        """Count a step that is over."""
        was_profiled, own = self._sampler.end() if self._sampler else (False, None)
        self.recorder.end_step(is_timed=not was_profiled, data=self._data_of_step)
        with self._lock:
            totals = self.totals
            if own is not None:
                own += self._data_of_step
                totals.own.add(own)
                totals.own_squares += own * own
            self._data_of_step = 0.0
            totals.steps += 1
            for name in AMOUNTS:
                totals.amounts[name] += amount(getattr(step, name))
            self._step_ended = perf_counter()

    def add_data(self, seconds: float) -> None:
        """Count time in the loader, unless it was for an evaluation."""
        if self._activity == TRAINING:
            with self._lock:
                self.totals.data += seconds
                self._data_of_step += seconds

    def fail_step(self) -> None:
        """End a step that does not count."""
        if self._sampler:
            self._sampler.end()

    def switch(self, activity: str) -> str:
        """Change the activity. Returns the one before."""
        now, before = perf_counter(), self._activity
        with self._lock:
            if before != TRAINING:
                self.totals.activities[before] += now - self._activity_began
            self._activity, self._activity_began = activity, now
        if (before == TRAINING) != (activity == TRAINING):
            self.recorder.resume() if activity == TRAINING else self.recorder.pause()
        return before

    def message(self) -> dict[str, Any]:
        """Return the message to the exporter. Safe in any thread."""
        now = perf_counter()
        with self._lock:
            state = TimerState(now - self._created, now - self._step_ended, self._activity, now - self._activity_began)
            facts = {"uuid": self._uuid, "dtype": self._dtype}
            return message(self.place, self._attempt, state, self.totals, **facts, on_gpu=self.recorder.on_gpu)

    def _begin_sending(self) -> None:
        """Start to send. The GPU is known only now, because the loop chooses it after it makes the timer."""
        module = cuda()
        if module and not self._uuid:
            self._uuid = gpu_uuid(module)
        if self._sender:
            self._sender.start()
