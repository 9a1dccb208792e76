"""Prometheus exporter for NVIDIA GPUs, and a library: `gpu_exporter.read()` gives the GPUs as plain Python values.

Names are imported when they are first used (PEP 562), so that `import gpu_exporter` costs a program next to nothing.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` for it would take longer than all the rest
if TYPE_CHECKING:
    from gpu_exporter.library import GpuReading, read
    from gpu_exporter.model.errors import GpuExporterError
    from gpu_exporter.version import __version__

__all__ = ["GpuExporterError", "GpuReading", "__version__", "read"]

_MODULES = {
    "GpuExporterError": "gpu_exporter.model.errors",
    "GpuReading": "gpu_exporter.library",
    "__version__": "gpu_exporter.version",
    "read": "gpu_exporter.library",
}

if not TYPE_CHECKING:  # for type checkers, a module with `__getattr__` has every name

    def __getattr__(name: str) -> object:
        """Import a name from its module, when it is used for the first time."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        """List the names that can be used, imported yet or not."""
        return sorted({*globals(), *__all__})
