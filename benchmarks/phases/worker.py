"""A process that runs workloads on one GPU when asked to, one JSON line for each request and answer.

    python -m benchmarks.phases.worker GPU [RANK RANKS PORT]

`{"prepare": NAME, "seconds": S}` is answered when the workload is ready, `{"go": UNIX_TIME}` when it has run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.phases import jobs, single
from benchmarks.phases.single import Once, Step


class Worker:
    """The GPU of this process, and its rank if it is one of several."""

    def __init__(self, gpu: int, rank: int = 0, ranks: int = 1, port: int = 0) -> None:
        self._gpu, self._rank, self._ranks, self._port = gpu, rank, ranks, port
        self._step: Step | None = None
        self._steps, self._seconds = 0, 0.0
        self._is_started = False

    def prepare(self, prepare: str, seconds: float) -> dict[str, Any]:
        """Prepare a workload and run it for a moment; of a job, agree on the number of steps."""
        import torch

        name, self._step = prepare, None
        gc.collect()
        if self._is_started:
            torch.cuda.empty_cache()
        torch.cuda.set_device(self._gpu)
        self._seconds = seconds
        if not hasattr(jobs, name):
            self._step = getattr(single, name)()
            self._step()
            torch.cuda.synchronize()
            self._is_started = True
            return {"ready": name}
        if not self._is_started and self._ranks > 1:
            url = f"tcp://127.0.0.1:{self._port}"
            torch.distributed.init_process_group(
                "nccl", init_method=url, rank=self._rank, world_size=self._ranks, device_id=torch.device(self._gpu)
            )
        self._is_started = True
        self._step = getattr(jobs, name)(jobs.Rank(self._rank, self._ranks, seconds))
        self._steps = 1 if isinstance(self._step, Once) else self._agreed(self._step, seconds)
        return {"ready": name, "steps": self._steps}

    def _agreed(self, step: Step, seconds: float) -> int:
        """Return how many steps take so long, the same on all ranks."""
        import torch

        for _ in range(3):
            step()
        begin = time.perf_counter()
        for _ in range(5):
            step()
        took = torch.tensor([(time.perf_counter() - begin) / 5], device="cuda")
        if self._ranks > 1:
            torch.distributed.all_reduce(took, torch.distributed.ReduceOp.MAX)
        return max(1, round(seconds / float(took)))

    def go(self, go: float) -> dict[str, Any]:
        """Run the workload from unix time `at`; return when it ran, and the share of time injected by cause."""
        assert self._step is not None
        at = go
        time.sleep(max(0.0, at - time.time()))
        begin, injected, count = time.time(), Counter[str](), 0
        while count < self._steps if self._steps else time.time() < at + self._seconds:
            injected.update(self._step())
            count += 1
        end, self._steps = time.time(), 0
        shares = {cause: round(seconds / (end - begin), 4) for cause, seconds in injected.items()}
        return {"begin": begin, "end": end, "steps": count, "injected": shares}


def main() -> None:
    """Answer requests until the input ends."""
    worker = Worker(*map(int, sys.argv[1:]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to standard output
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = worker.prepare(**request) if "prepare" in request else worker.go(**request)
        except Exception as error:  # noqa: BLE001 - the phase is left out, the others go on
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
