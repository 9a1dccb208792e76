"""Looks at what the exporter runs on: platform, Python packages, container. None blocks or needs root."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from gpu_exporter.model.finding import Finding, Level
from gpu_exporter.version import __version__

ROOT = Path("/")

# The first with the GPM calls; what setup.cfg asks for.
OLDEST_BINDINGS = (12, 535)
PACKAGES = ("prometheus-client", "tornado", "click", "pyyaml")


def read(path: Path) -> str:
    """A small file of the system; empty if it can't be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def software(root: Path = ROOT, system: str = "", processor: str = "") -> list[Finding]:
    """Versions, user and platform; a second finding where nobody has tried the exporter yet."""
    system, processor = system or platform.system(), processor or platform.machine()
    user = f", uid {os.geteuid()}" if hasattr(os, "geteuid") else ""
    what = f"gpu-exporter {__version__}, Python {platform.python_version()}, {system} {processor}{user}"
    untried = _untried(root, system, processor)
    return [Finding("platform", Level.OK, what), *([Finding("platform", Level.NOTE, untried)] if untried else [])]


def _untried(root: Path, system: str, processor: str) -> str:
    """What is not proven on this platform; docs/platforms.md has the reasons."""
    if system == "Windows":
        return "Windows: not tried; NVML is the same, kernel log, PCI bus and pods can't be looked at"
    if system != "Linux":
        return f"{system}: NVIDIA has no driver for it; `--source replay` works"
    if "microsoft" in read(root / "proc/sys/kernel/osrelease").lower():
        return "WSL: not tried; its NVML answers a part of what Linux has, and its kernel logs no GPU faults"
    if (root / "etc/nv_tegra_release").exists() or "nvidia,tegra" in read(root / "proc/device-tree/compatible"):
        return "Jetson: not tried; its GPU is no PCIe board, and NVML answers little or nothing: use tegrastats"
    if processor not in ("x86_64", "AMD64"):
        return f"Linux {processor}: not tried; nothing is known to differ from x86_64"
    return ""


def bindings(
    spec_of: Callable[[str], ModuleSpec | None] = find_spec,
    installed: Callable[[str], Distribution] = distribution,
    providers: Callable[[], Mapping[str, Sequence[str]]] = packages_distributions,
) -> Finding:
    """Whether `import pynvml` would give nvidia-ml-py; FAIL if not. Looks without importing."""
    spec = spec_of("pynvml")
    if spec is None or spec.origin is None:
        return _wrong("the Python module pynvml is not installed", "`pip install nvidia-ml-py`")
    try:
        ours = installed("nvidia-ml-py")
    except PackageNotFoundError:
        ours = None
    if ours is None or Path(str(ours.locate_file("pynvml.py"))).resolve() != Path(spec.origin).resolve():
        return _shadowed(spec.origin, installed, providers)
    if _numbers(ours.version) < OLDEST_BINDINGS:
        return _wrong(f"nvidia-ml-py {ours.version} is too old", "`pip install --upgrade nvidia-ml-py`")
    others = []
    for name in PACKAGES:
        try:
            others.append(f"{name} {installed(name).version}")
        except PackageNotFoundError:
            continue
    return Finding("bindings", Level.OK, ", ".join((f"nvidia-ml-py {ours.version}", *others)))


def _shadowed(
    origin: str, installed: Callable[[str], Distribution], providers: Callable[[], Mapping[str, Sequence[str]]]
) -> Finding:
    others = [name for name in providers().get("pynvml", ()) if name.lower().replace("_", "-") != "nvidia-ml-py"]
    again = "`pip install --force-reinstall nvidia-ml-py`"
    for name in others:  # a project of the same name came with the module until its version 12
        if origin.startswith(str(installed(name).locate_file("pynvml"))):
            what = f"the Python module pynvml comes from the project {name} {installed(name).version}, not nvidia-ml-py"
            return _wrong(what, f"`pip uninstall {name}`, then {again}")
    return _wrong(f"the Python module pynvml at {origin} is not nvidia-ml-py's", f"move it away, or {again}")


def _wrong(what: str, cure: str) -> Finding:
    return Finding("bindings", Level.FAIL, what, cure)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def container(environ: Mapping[str, str] = os.environ, *, mig: bool = False) -> list[Finding]:
    """What the variables of NVIDIA's container runtime let this process see. `mig`: a GPU is in MIG mode."""
    findings = []
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    # `void` is what the runtime leaves when something else hands out the GPUs
    if visible == "none":
        what, cure = "NVIDIA_VISIBLE_DEVICES=none: this container gets no GPU", "set it to all"
        findings.append(Finding("container", Level.WARN, what, cure))
    elif visible not in (None, "", "all", "void"):
        what = f"NVIDIA_VISIBLE_DEVICES={visible}: the node's other GPUs are not seen, and not missed"
        findings.append(Finding("container", Level.NOTE, what))
    granted = environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if granted and not {"utility", "all"} & {each.strip() for each in granted.split(",")}:
        what, cure = f"NVIDIA_DRIVER_CAPABILITIES={granted} lacks utility, which brings NVML", "add utility"
        findings.append(Finding("container", Level.WARN, what, cure))
    if mig and visible is not None and environ.get("NVIDIA_MIG_MONITOR_DEVICES") != "all":
        what = "a GPU is in MIG mode, and this container may not see all instances"
        cure = "set NVIDIA_MIG_MONITOR_DEVICES=all and add CAP_SYS_ADMIN"
        findings.append(Finding("container", Level.NOTE, what, cure))
    return findings
