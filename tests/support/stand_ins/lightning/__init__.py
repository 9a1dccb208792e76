"""Stands for PyTorch Lightning where it is not installed: a Trainer with the events of the real one, in order.

The order is that of the fit loop of lightning 2.5. Put the folder above in PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LightningModule = torch.nn.Module


class Trainer:
    """A training loop, with a checkpoint after each epoch."""

    def __init__(self, max_epochs: int, callbacks: list[Any], default_root_dir: str, **others: Any) -> None:
        self.epochs, self.callbacks, self.folder = max_epochs, callbacks, default_root_dir
        self.strategy = SimpleNamespace(model=None)

    def save_checkpoint(self, path: Any, weights_only: bool = False) -> None:
        torch.save({}, path)

    def _tell(self, event: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, self.model, *args)

    def _validate(self, loader: Any) -> None:
        self._tell("on_validation_start")
        with torch.no_grad():
            for index, batch in enumerate(loader):
                self.model.validation_step(batch, index)
        self._tell("on_validation_end")

    def fit(self, model: Any, loader: Any, validation: Any) -> None:
        self.model = self.strategy.model = model
        optimizer = model.configure_optimizers()
        self._validate(list(validation)[:2])  # the sanity check
        self._tell("on_train_start")
        for _ in range(self.epochs):
            self._tell("on_train_epoch_start")
            for index, batch in enumerate(loader):
                self._tell("on_train_batch_start", batch, index)
                loss = model.training_step(batch, index)
                self._tell("on_before_zero_grad", optimizer)
                optimizer.zero_grad()
                self._tell("on_before_backward", loss)
                loss.backward()
                self._tell("on_after_backward")
                self._tell("on_before_optimizer_step", optimizer)
                optimizer.step()
                self._tell("on_train_batch_end", loss, batch, index)
            self._validate(validation)
            self.save_checkpoint(Path(self.folder) / "last.ckpt")
        self._tell("on_train_end")
