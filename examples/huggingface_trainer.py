"""A small language model with the Trainer of Hugging Face: `python examples/huggingface_trainer.py`.

Needs the packages transformers and accelerate. Downloads nothing. Runs on one GPU or CPU, or with torchrun.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gpu_exporter.training import StepTimer
from gpu_exporter.training.huggingface import StepTimerCallback

STEPS, BATCH, LENGTH, WORDS = 20, 4, 64, 1000


class RandomText(torch.utils.data.Dataset):  # type: ignore[misc]
    """Sequences of random tokens."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            eval_strategy="steps",
            eval_steps=STEPS // 2,
            save_steps=STEPS // 2,
            report_to=[],
        )
        trainer = Trainer(model, arguments, train_dataset=RandomText(), eval_dataset=RandomText())
        callback = StepTimerCallback(StepTimer("huggingface-example", dtype="fp32")).attach(trainer)
        trainer.train()
    for name, value in callback.timer.summary().items():
        print(f"{name:<28}{value:.6g}")


if __name__ == "__main__":
    main()
