"""Times how long a rank waits for others in collectives that Python calls: FSDP, tensor and pipeline parallelism.

Needs PyTorch. A collective begins on a GPU when its own rank arrives, and ends when the last rank has arrived and the
data is there. So a step without its collectives is the rank's own time. Of collectives on other streams, as in FSDP,
only the time for which the stream of the loop waits counts.

In the steps that are measured, the methods of PyTorch's process groups and `torch.cuda.Event.wait` are replaced; in all
others, nothing is. Collectives of compiled code are not seen, and those of DTensor neither.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gpu_exporter.model.job_message import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_exporter.training.recorder import Recorder

# Methods of a process group. Each queues a collective on the current stream, or on one for which `Work.wait` waits.
METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "barrier", "gather", "scatter"),
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base"),
    *("reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base"),
    *("alltoall", "alltoall_base", "send", "recv", "recv_anysource"),
)
# DeepSpeed waits for streams of its own, and its collectives would be seen in part.
UNSEEN = "deepspeed"


def watch(model: Any, recorder: Recorder, *, is_ddp: bool) -> bool:
    """Time the collectives of a model of several ranks; return whether all of its waiting is measured.

    Of a model with DistributedDataParallel, these are the other ones: of SyncBatchNorm, or of a loop that reduces its
    loss.
    """
    if is_ddp or recorder.beside:
        if not recorder.watch and not recorder.beside:
            recorder.beside = CollectiveWatch(recorder, events=False)
        return True
    if not _is_visible(model):
        return False
    recorder.watch = CollectiveWatch(recorder)
    recorder.follows_host = True
    return True


def _is_visible(model: Any) -> bool:
    """Return whether no collective of a model is one of DTensor or DeepSpeed.

    FSDP2 shards its parameters as DTensors over one dimension of the mesh, and calls the collectives itself.
    """
    if not isinstance(model, torch.nn.Module) or type(model).__module__.partition(".")[0] == UNSEEN:
        return False
    is_fsdp = any(type(module).__name__.startswith("FSDP") for module in model.modules())
    shards = [
        sum(placement.is_shard() for placement in parameter.placements)
        for parameter in model.parameters()
        if hasattr(parameter, "placements")
    ]
    return not shards or (is_fsdp and max(shards) <= 1)


class CollectiveWatch:
    """Marks the waiting of the thread that makes it, and of the backward passes that this thread waits for; with
    `events`, also that for CUDA events of collectives."""

    def __init__(self, recorder: Recorder, *, events: bool = True) -> None:
        self._recorder, self._events, self._thread = recorder, events, get_ident()
        self._restore: list[tuple[Any, str, Any, Any]] = []
        self._is_inside = False
        self._stream: Any = None
        self._backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    def switch(self, *, on: bool) -> None:
        """Begin or end to measure. The current stream is that of the loop."""
        if on and not self._restore:
            self._stream = torch.cuda.current_stream() if self._recorder.on_gpu else None
            for name in METHODS:
                if hasattr(dist.ProcessGroup, name):
                    self._replace(dist.ProcessGroup, name, self._timed)
            self._replace(dist.Work, "wait", self._timed)
            if self._events and self._stream is not None:
                self._replace(torch.cuda.Event, "wait", self._timed_event)
        elif not on:
            for owner, name, original, timed in self._restore:
                if getattr(owner, name) is timed:  # else another library has replaced it, and calls this
                    setattr(owner, name, original)
            self._restore = []

    def _replace(self, owner: Any, name: str, timed: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        replacement = timed(original)
        setattr(owner, name, replacement)
        self._restore.append((owner, name, original, replacement))

    def _timed(self, original: Any) -> Any:
        def timed(*arguments: Any, **options: Any) -> Any:
            if not self._is_waiting():
                return original(*arguments, **options)
            return self._time(original, arguments, options)

        return timed

    def _timed_event(self, original: Any) -> Any:
        def timed(event: Any, stream: Any = None) -> None:
            if (stream is None or stream == self._stream) and _is_of_collective() and self._is_waiting():
                self._time(original, (event, stream), {})
            else:
                original(event, stream)

        return timed

    def _is_waiting(self) -> bool:
        """Return whether the loop itself waits here, for which it is not known to wait yet."""
        if self._is_inside or not self._restore or (get_ident() != self._thread and self._backward() < 0):
            return False
        return self._stream is None or torch.cuda.current_stream() == self._stream

    def _time(self, original: Any, arguments: Any, options: Any) -> Any:
        self._is_inside = True
        self._recorder.enter(WAITING)
        try:
            return original(*arguments, **options)
        finally:
            self._recorder.leave_wait()
            self._is_inside = False


def _is_of_collective() -> bool:
    """Return whether PyTorch's own code for several ranks waits for an event: other code may wait for its copies."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "torch.cuda.streams":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.distributed.")
