"""Times how long DistributedDataParallel waits for other ranks in each backward pass. Needs PyTorch.

In synchronous training, step and backward time are the same on all ranks, because all wait for the slowest. What tells
them apart is the moment when a rank has its own last gradient. A communication hook is called then as well, but a
model can have only one, and a hook in Python costs time for each bucket.

Here, a hook on the model's output, which is the first part of a backward pass, registers a callback for the end of
that pass. DDP registers its own callback, which waits for the reduced gradients, with the last bucket, hence later.
Callbacks run in order: the first one notes when all gradients are ready, and registers a third one, which notes when
the waiting is over.

A model with buffers, such as those of batch normalization, gets them from the first rank before each forward pass, and
waits there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gpu_exporter.model.job_message import WAITING
from gpu_exporter.training.recorder import BACKWARD, BETWEEN, FORWARD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_exporter.training.recorder import Recorder

# An output may be nested: a dict of losses, tuples of hidden states. One tensor of the backward pass is enough.
MOST_TENSORS = 16
# A model's method that waits for buffers.
BROADCAST = "_sync_buffers"
DEEPEST = 3


def watch(model: Any, recorder: Recorder) -> bool:
    """Time the waiting of a DDP model. Other models are left alone; returns whether it is one."""
    if not isinstance(model, DistributedDataParallel):
        return False
    model.register_forward_hook(_Backward(recorder))
    if hasattr(model, BROADCAST):
        setattr(model, BROADCAST, _Broadcast(model, recorder))
    recorder.follows_host = True
    return True


class _Broadcast:
    """The method of a model that waits for its buffers. A copy of the model has the original method."""

    def __init__(self, model: Any, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._original = getattr(model, BROADCAST)

    def __call__(self) -> None:
        """Wait for the buffers."""
        self._recorder.enter(WAITING)
        try:
            self._original()
        finally:
            self._recorder.leave_wait()
            self._recorder.mark(FORWARD)

    def __reduce__(self) -> Any:
        return getattr, (self._model, BROADCAST)


class _Backward:
    """The hook of a model's output, and the callbacks of its backward passes. In a copy of the model, it does nothing:
    nobody watches that, and locks cannot be copied."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder: Any = recorder
        self._is_queued = False

    def __reduce__(self) -> Any:
        return _Backward, ()

    def __call__(self, module: Any, inputs: Any, output: Any) -> None:
        """Prepare the backward pass of this output. Also after one that failed."""
        if self._recorder is None:
            return
        self._is_queued = False
        self._recorder.mark(BETWEEN)
        for tensor in _tensors(output):
            tensor.register_hook(self._on_gradient)

    def _on_gradient(self, gradient: Any) -> None:
        """Queue the first callback. Several tensors of the output may have gradients."""
        if not self._is_queued:
            self._is_queued = True
            self._recorder.mark(BACKWARD)
            _queue(self._on_ready)

    def _on_ready(self) -> None:
        self._recorder.enter(WAITING)
        _queue(self._on_reduced)

    def _on_reduced(self) -> None:
        self._recorder.leave()
        self._is_queued = False


def _queue(callback: Any) -> None:
    Variable._execution_engine.queue_callback(callback)


def _tensors(output: Any) -> list[Any]:
    """Return tensors of an output that take part in a backward pass."""
    found: list[Any] = []
    for tensor in _walk(output, DEEPEST):
        if tensor.requires_grad:
            found.append(tensor)
            if len(found) == MOST_TENSORS:
                break
    return found


def _walk(output: Any, depth: int) -> Iterator[Any]:
    if isinstance(output, torch.Tensor):
        yield output
    elif depth and isinstance(output, (list, tuple)):
        for part in output:
            yield from _walk(part, depth - 1)
    elif depth:
        # Outputs of Hugging Face are dicts, others may be objects.
        parts = output if isinstance(output, dict) else getattr(output, "__dict__", {})
        for part in parts.values():
            yield from _walk(part, depth - 1)
