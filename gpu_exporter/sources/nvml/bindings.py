"""Checks that the Python module pynvml is NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from gpu_exporter.model.finding import Finding, FindingLevel

# The first version with the GPM calls, as in setup.cfg.
OLDEST_BINDINGS = (12, 535)


PACKAGES = ("prometheus-client", "tornado", "click", "pyyaml")


def bindings(
    spec_of: Callable[[str], ModuleSpec | None] = find_spec,
    installed: Callable[[str], Distribution] = distribution,
    providers: Callable[[], Mapping[str, Sequence[str]]] = packages_distributions,
) -> Finding:
    """Return whether `import pynvml` would import nvidia-ml-py; FAIL if not. Imports nothing."""
    spec = spec_of("pynvml")
    if spec is None or spec.origin is None:
        return _wrong("the Python module pynvml is not installed", "`pip install nvidia-ml-py`")
    try:
        project = installed("nvidia-ml-py")
    except PackageNotFoundError:
        project = None
    if project is None or Path(str(project.locate_file("pynvml.py"))).resolve() != Path(spec.origin).resolve():
        return _shadowed(spec.origin, installed, providers)
    if _numbers(project.version) < OLDEST_BINDINGS:
        return _wrong(f"nvidia-ml-py {project.version} is too old", "`pip install --upgrade nvidia-ml-py`")
    others = []
    for name in PACKAGES:
        try:
            others.append(f"{name} {installed(name).version}")
        except PackageNotFoundError:
            continue
    return Finding("bindings", FindingLevel.OK, ", ".join((f"nvidia-ml-py {project.version}", *others)))


def _shadowed(
    origin: str, installed: Callable[[str], Distribution], providers: Callable[[], Mapping[str, Sequence[str]]]
) -> Finding:
    others = [name for name in providers().get("pynvml", ()) if name.lower().replace("_", "-") != "nvidia-ml-py"]
    again = "`pip install --force-reinstall nvidia-ml-py`"
    for name in others:  # the project pynvml shipped this module until its version 12
        if origin.startswith(str(installed(name).locate_file("pynvml"))):
            what = f"the Python module pynvml comes from the project {name} {installed(name).version}, not nvidia-ml-py"
            return _wrong(what, f"`pip uninstall {name}`, then {again}")
    return _wrong(f"the Python module pynvml at {origin} is not nvidia-ml-py's", f"move it away, or {again}")


def _wrong(what: str, cure: str) -> Finding:
    return Finding("bindings", FindingLevel.FAIL, what, cure)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
