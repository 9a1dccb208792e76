"""A training loop without any code of gpu-exporter, for `benchmarks.profile_overhead`.

    python profile_overhead_job.py GO SLOW STEPS

It imports torch, waits for the file GO, and trains until it is killed. While the file SLOW exists, the loader takes
longer. It appends a line to STEPS for each step: monotonic time of its begin, and its seconds. It has many small
kernels, so that the host limits its steps; with GPU_BOUND in the environment, few large ones.
"""

import os
import sys
import time

import torch

GO, SLOW, STEPS = sys.argv[1:]
SLOW_SECONDS = 0.004
WIDTH, LAYERS, BATCH = (8192, 8, 32) if "GPU_BOUND" in os.environ else (512, 16, 32)


def load_batch(device: str) -> torch.Tensor:
    """Return a batch; on request, slowly."""
    if os.path.exists(SLOW):
        time.sleep(SLOW_SECONDS)
    return torch.randn(BATCH, WIDTH).to(device)


def train() -> None:
    """Train until somebody kills the process."""
    while not os.path.exists(GO):
        time.sleep(0.02)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [
        part
        for _ in range(LAYERS)
        for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with open(STEPS, "a", encoding="ascii", buffering=1) as steps:
        while True:
            begin = time.monotonic()
            loss = model(load_batch(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            steps.write(f"{begin:.6f} {time.monotonic() - begin:.6f}\n")


train()
