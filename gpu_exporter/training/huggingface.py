"""A callback for the Trainer of Hugging Face. Needs the package transformers."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from gpu_exporter.model.job_message import CHECKPOINT, EVALUATION, TRAINING
from gpu_exporter.training.timer import StepTimer

if TYPE_CHECKING:
    from typing_extensions import Self

# The inputs of a language model; their elements are tokens.
TOKENS = "input_ids"
# Operations of forward and backward pass for each parameter and token (Kaplan et al. 2020, arXiv:2001.08361).
FLOPS_PER_PARAMETER = 6


class StepTimerCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the steps of a Trainer, its evaluations and its checkpoints.

    `Trainer(callbacks=[StepTimerCallback()])` measures step time, data and optimizer. `StepTimerCallback().attach(
    trainer)` also measures forward, backward, waiting for other ranks, and tokens. Time between two steps is counted
    as data. `timer` is made by default.
    """

    def __init__(self, timer: StepTimer | None = None) -> None:
        self.timer = timer or StepTimer()
        self._step, self._optimizer = self.timer.step(), self.timer.phase("optimizer")
        self._trainer: Any = None
        self._in_optimizer = False
        self._tokens, self._samples, self._flops_per_token = 0, 0, 0.0
        self._between_since: float | None = None

    def attach(self, trainer: Any) -> Self:
        """Add this to a trainer, and measure what events do not tell. Call it before `train`; returns itself."""
        timer, training_step, backward = self.timer, trainer.training_step, trainer.accelerator.backward

        def timed_step(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            self._count(inputs)
            with timer.phase("forward"):
                return training_step(model, inputs, *args, **options)

        def timed_backward(*args: Any, **options: Any) -> Any:
            with timer.phase("backward"):
                return backward(*args, **options)

        trainer.training_step, trainer.accelerator.backward = timed_step, timed_backward
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def _count(self, inputs: Any) -> None:
        """Count what a rank processes, from shapes, which are known without waiting for the GPU."""
        tokens = inputs.get(TOKENS) if hasattr(inputs, "get") else None
        if tokens is not None:
            self._tokens += tokens.numel()
            self._samples += len(tokens)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Watch the model that the Trainer wrapped for several ranks."""
        if self._trainer is not None:
            self.timer.watch(self._trainer.model_wrapped)
            self._flops_per_token = _flops_per_token(others.get("model"))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the first step."""
        self.timer.recorder.start()
        self._between_since = perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin a step. The time since the last one was for its batches."""
        self._resume()
        if self._between_since is not None:
            self.timer.add_data(perf_counter() - self._between_since)
        self._tokens = self._samples = 0
        self._step = self.timer.step()
        self._step.__enter__()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the phase of the optimizer."""
        self._in_optimizer = True
        self._optimizer.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the phase of the optimizer, if this version of the Trainer announced its begin."""
        if self._in_optimizer:
            self._in_optimizer = False
            self._optimizer.__exit__()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End a step. The Trainer then does what `control` says."""
        step = self._step
        step.tokens, step.flops = self._tokens, self._tokens * self._flops_per_token
        step.samples = self._samples or args.train_batch_size * args.gradient_accumulation_steps
        step.__exit__(None)
        self._between_since = perf_counter()
        self._between(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note what the Trainer does next."""
        self._between(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End an evaluation; a checkpoint may follow."""
        self._between(control, evaluated=True)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End a checkpoint."""
        self._resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Send the last sums."""
        self._resume()
        self.timer.close()

    def _between(self, control: Any, *, evaluated: bool = False) -> None:
        """Mark what the Trainer does now, which is evaluating before saving."""
        if control.should_evaluate and not evaluated:
            self.timer.switch(EVALUATION)
        elif control.should_save:
            self.timer.switch(CHECKPOINT)
        else:
            self._resume()

    def _resume(self) -> None:
        if self.timer.switch(TRAINING) != TRAINING:
            self._between_since = perf_counter()


def _flops_per_token(model: Any) -> float:
    """Return the operations per token; 0 if only a part of the model is trained, because that needs fewer."""
    if not hasattr(model, "num_parameters") or not all(each.requires_grad for each in model.parameters()):
        return 0.0
    return float(FLOPS_PER_PARAMETER * model.num_parameters(exclude_embeddings=True))
