"""A training loop in plain PyTorch, on one GPU or CPU: `python examples/plain.py`."""

from __future__ import annotations

import torch

from gpu_exporter.training import StepTimer

STEPS, BATCH, WIDTH = 50, 64, 128
device = "cuda" if torch.cuda.is_available() else "cpu"

model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters())
parameters = sum(each.numel() for each in model.parameters())
dataset = torch.utils.data.TensorDataset(torch.randn(STEPS * BATCH, WIDTH))
loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)

with StepTimer("plain-example", dtype="fp32") as timer:
    for (batch,) in timer.data(loader):
        # Forward and backward pass need 6 operations for each parameter and sample.
        with timer.step(samples=len(batch), flops=6 * parameters * len(batch)):
            batch = batch.to(device, non_blocking=True)
            with timer.phase("forward"):
                loss = (model(batch) - batch).square().mean()
            with timer.phase("backward"):
                loss.backward()
            with timer.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    with timer.evaluation(), torch.no_grad():
        print(f"loss {float((model(batch) - batch).square().mean()):.3f}")

for name, value in timer.summary().items():
    print(f"{name:<28}{value:.6g}")
