"""A callback for PyTorch Lightning. Needs the package lightning, or pytorch-lightning."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpu_exporter.model.job_message import EVALUATION, TRAINING
from gpu_exporter.training.timer import StepTimer

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:  # the same library under its older name
    from pytorch_lightning.callbacks import Callback


class StepTimerCallback(Callback):  # type: ignore[misc]
    """Measures the steps of a Trainer, its validation and its checkpoints: `Trainer(callbacks=[StepTimerCallback()])`.

    A step is a batch. Time between two batches is counted as data. `amounts(batch)` returns the tokens, samples and
    flops of a batch: `lambda batch: {"tokens": batch["input_ids"].numel()}`. `timer` is made by default.
    """

    def __init__(
        self, timer: StepTimer | None = None, amounts: Callable[[Any], dict[str, float]] | None = None
    ) -> None:
        self.timer, self._amounts = timer or StepTimer(), amounts
        self._step = self.timer.step()
        self._phase: Any = None
        self._between_since: float | None = None
        self._save: Any = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Watch the model, and time checkpoints, for which there is no event."""
        self.timer.watch(getattr(trainer.strategy, "model", None))
        save = self._save = trainer.save_checkpoint

        def timed_save(*args: Any, **options: Any) -> Any:
            with self.timer.checkpoint():
                result = save(*args, **options)
            self._between_since = perf_counter()
            return result

        trainer.save_checkpoint = timed_save

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Begin the first step."""
        self.timer.recorder.start()
        self._between_since = perf_counter()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step. The time since the last one was for this batch."""
        if self._between_since is not None:
            self.timer.add_data(perf_counter() - self._between_since)
        amounts = self._amounts(batch) if self._amounts else {}
        self._step = self.timer.step(**amounts)
        self._step.__enter__()
        self._enter("forward")

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """End the forward phase."""
        self._enter("backward")

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """End the backward phase."""
        self._leave()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Begin the phase of the optimizer."""
        self._enter("optimizer")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step."""
        self._leave()
        self._step.__exit__(None)
        self._between_since = perf_counter()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begin a validation."""
        self.timer.switch(EVALUATION)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """End a validation."""
        self.timer.switch(TRAINING)
        self._between_since = perf_counter()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Send the last sums."""
        self._restore(trainer)
        self.timer.close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Send the last sums."""
        self._restore(trainer)
        self.timer.close()

    def _restore(self, trainer: Any) -> None:
        if self._save is not None:
            trainer.save_checkpoint, self._save = self._save, None

    def _enter(self, name: str) -> None:
        self._leave()
        self._phase = self.timer.phase(name)
        self._phase.__enter__()

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.__exit__()
            self._phase = None
