"""The fault script: `lost node-003/1 at 60s for 30s; reload node-007 at 90s for 10s`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.io.user_text import duration, nearest
from gpu_exporter.model.errors import WrongUsage

LOST, WEDGED, SLOW, RELOAD = KINDS = ("lost", "wedged", "slow", "reload")
ANY = "*"
# An injected fault without values begins after this time, so that the GPU has been scraped while it was healthy.
SEEN_SECONDS = 20.0
EXAMPLE = "lost node-003/1 at 60s for 30s"


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A fault from `begin` to `end`, in seconds since the start. `*` means every node or every GPU."""

    kind: str
    node: str
    gpu: str
    begin: float
    end: float

    def hits(self, node: str, gpu: int) -> bool:
        """Whether it affects this GPU."""
        return self.node in (ANY, node) and self.gpu in (ANY, str(gpu))


def parse(script: str, nodes: Sequence[str], gpus: int) -> tuple[ScriptedFault, ...]:
    """Parse a script for these nodes. Raises GpuExporterError, with the faulty part and the fix."""
    faults = []
    for part in re.split(r"[;\n]", script):
        text = " ".join(part.split())
        if not text:
            continue
        try:
            faults.append(_fault(text, nodes, gpus))
        except ValueError as error:
            raise WrongUsage(f"--faults: {text!r}: {error}") from error
    return tuple(faults)


def _fault(text: str, nodes: Sequence[str], gpus: int) -> ScriptedFault:
    kind = text.split()[0]
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    match = re.fullmatch(r"\w+ ([^\s/]+)(?:/(\S+))? at (\S+) for (\S+)", text)
    if not match:
        raise ValueError(f"write KIND NODE/GPU at TIME for TIME, such as {EXAMPLE!r}")
    node, gpu, at, lasting = match[1], match[2], match[3], match[4]
    if kind == RELOAD and gpu is not None:
        raise ValueError(f"the driver of the whole node is reloaded; write {node} without /{gpu}")
    check(nodes[0] if node == ANY else node, "0" if gpu in (None, ANY) else gpu, nodes, gpus, ", or * for all")
    begin = 0.0 if re.fullmatch(r"0+(ms|s|m|h)?", at) else duration(at)
    if kind == RELOAD and not begin:
        raise ValueError("the exporter cannot start without a driver; begin later, for example at 10s")
    return ScriptedFault(kind, node, ANY if gpu in (None, ANY) else str(int(gpu)), begin, begin + duration(lasting))


def check(node: str, gpu: str, nodes: Sequence[str], gpus: int, alternative: str = "") -> None:
    """Raise ValueError for an unknown node or GPU, with the known ones. The message ends with `alternative`."""
    if node not in nodes:
        raise ValueError(
            f"there is no {node}; use {nodes[0]}" + (f" to {nodes[-1]}{alternative}" if len(nodes) > 1 else "")
        )
    if not (gpu.isdecimal() and int(gpu) < gpus):
        raise ValueError(
            f"{node} has no GPU {gpu}; use 0 to {gpus - 1}{alternative}" if gpus > 1 else f"{node} has only GPU 0"
        )


def last_end(faults: Sequence[ScriptedFault], kind: str, now: float) -> float:
    """Return when the last present fault of this kind ends; `now` if there is none."""
    return max((fault.end for fault in faults if fault.kind == kind and fault.begin <= now < fault.end), default=now)
