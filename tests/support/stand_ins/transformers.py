"""Stands for transformers of Hugging Face where it is not installed: a Trainer with the real events, in order.

The order is that of `Trainer._inner_training_loop` and `_maybe_log_save_evaluate` of transformers 4.57. Put the folder
of this file in PYTHONPATH.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class TrainerCallback:
    """Events that do nothing."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **others: None


class TrainingArguments:
    """The arguments of a training."""

    gradient_accumulation_steps = 1

    def __init__(self, folder: str, per_device_train_batch_size: int, **others: Any) -> None:
        self.train_batch_size = per_device_train_batch_size
        self.__dict__.update(others)


def GPT2Config(**sizes: int) -> Any:
    return SimpleNamespace(**sizes)


class GPT2LMHeadModel(torch.nn.Module):  # type: ignore[misc]
    """A model of two layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.head = torch.nn.Linear(config.n_embd, config.vocab_size)

    def num_parameters(self, exclude_embeddings: bool = False) -> int:
        return int(self.head.weight.numel())

    def forward(self, input_ids: Any, labels: Any) -> Any:
        scores = self.head(self.embedding(input_ids))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Trainer:
    """A training loop."""

    def __init__(self, model: Any, args: Any, train_dataset: Any, eval_dataset: Any) -> None:
        self.model = self.model_wrapped = model
        self.args, self.data, self.eval_data = args, train_dataset, eval_dataset
        self.accelerator = SimpleNamespace(backward=lambda loss: loss.backward())
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def _tell(self, event: str, **control: bool) -> None:
        flags = SimpleNamespace(**{"should_evaluate": False, "should_save": False, **control})
        for callback in self.callbacks:
            getattr(callback, event)(self.args, SimpleNamespace(), flags, model=self.model)

    def training_step(self, model: Any, inputs: Any) -> Any:
        loss = model(**inputs)
        self.accelerator.backward(loss)
        return loss.detach()

    def _batch(self, step: int) -> Any:
        size = self.args.train_batch_size
        rows = [self.data[(step * size + index) % len(self.data)] for index in range(size)]
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def train(self) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self._tell("on_train_begin")
        self._tell("on_epoch_begin")
        for step in range(1, self.args.max_steps + 1):
            inputs = self._batch(step)
            self._tell("on_step_begin")
            self.training_step(self.model, inputs)
            self._tell("on_pre_optimizer_step")
            optimizer.step()
            self._tell("on_optimizer_step")
            optimizer.zero_grad()
            evaluates, saves = step % self.args.eval_steps == 0, step % self.args.save_steps == 0
            self._tell("on_step_end", should_evaluate=evaluates, should_save=saves)
            if evaluates:
                with torch.no_grad():
                    self.model(**self._batch(0))
                self._tell("on_prediction_step", should_evaluate=True, should_save=saves)
                self._tell("on_evaluate", should_evaluate=True, should_save=saves)
            if saves:
                self._tell("on_save", should_evaluate=evaluates, should_save=True)
        self._tell("on_epoch_end")
        self._tell("on_train_end")
