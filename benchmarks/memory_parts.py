"""Measures what the memory of `serve` consists of: how much the import of each package adds, and the rest.

    python -m benchmarks.memory_parts serve …

Prints the MiB by part as one line of JSON. What a package imports counts for itself. `benchmarks.cost` runs this in a
process of its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from typing import Any

# All fields are read by then, and the memory that the start needed is freed.
SETTLED_SECONDS = 8.0
START, REST = "Python", "driver's library, threads and data"
OWN = "gpu_exporter"


def resident_mib() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def part(module: str) -> str:
    """Return the package of a module; of this project the subpackage."""
    names = module.lstrip("_").split(".")
    return ".".join(names[:2] if names[0] == OWN else names[:1])


class Imports:
    """Adds up by how much memory grows while modules are executed, without those that they import."""

    def __init__(self) -> None:
        self.mib: defaultdict[str, float] = defaultdict(float)
        self._within: list[float] = []

    def follow(self, loader: type, method: str) -> None:
        """Measure a method of a loader."""
        original: Callable[..., Any] = getattr(loader, method)

        def measured(this: object, module: Any) -> object:
            name, before = getattr(module, "__name__", "") or module.name, resident_mib()
            self._within.append(0.0)
            try:
                return original(this, module)
            finally:
                grown = resident_mib() - before
                self.mib[part(name)] += grown - self._within.pop()
                if self._within:
                    self._within[-1] += grown

        setattr(loader, method, measured)


def watch(imports: Imports, start: float) -> None:
    """Print the parts once everything runs."""
    time.sleep(SETTLED_SECONDS)
    parts = {START: start, **imports.mib}
    print(json.dumps({**parts, REST: resident_mib() - sum(parts.values())}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    followed = Imports()
    threading.Thread(target=watch, args=(followed, resident_mib()), daemon=True).start()
    followed.follow(SourceFileLoader, "exec_module")
    followed.follow(ExtensionFileLoader, "create_module")
    followed.follow(ExtensionFileLoader, "exec_module")
    from gpu_exporter.cli.main import main

    main()
