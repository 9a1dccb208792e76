"""A small model with PyTorch Lightning: `python examples/lightning_trainer.py`.

Needs the package lightning. Runs on one GPU or CPU.
"""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch

from gpu_exporter.training import StepTimer
from gpu_exporter.training.lightning import StepTimerCallback

STEPS, BATCH, WIDTH = 20, 64, 128


class Autoencoder(lightning.LightningModule):  # type: ignore[misc]
    """Learns to return its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, WIDTH))

    def training_step(self, batch: Any, index: int) -> Any:
        return (self.layers(batch[0]) - batch[0]).square().mean()

    def validation_step(self, batch: Any, index: int) -> Any:
        return self.training_step(batch, index)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    dataset = torch.utils.data.TensorDataset(torch.randn(STEPS * BATCH, WIDTH))
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH)
    timer = StepTimer("lightning-example", dtype="fp32")
    callback = StepTimerCallback(timer, amounts=lambda batch: {"samples": len(batch[0])})
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            devices=1,
            callbacks=[callback],
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
        )
        trainer.fit(Autoencoder(), loader, loader)
    for name, value in timer.summary().items():
        print(f"{name:<28}{value:.6g}")


if __name__ == "__main__":
    main()
