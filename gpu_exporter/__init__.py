"""Prometheus exporter for NVIDIA GPUs, and a library.

    gpu_exporter.read()               the metrics of this machine's GPUs, as plain Python values
    gpu_exporter.diagnose()           what limits each GPU, and what is wrong with it
    gpu_exporter.training.StepTimer   measures a training loop from inside

Everything else in this package is internal, and may change.

Names are imported when they are first used (PEP 562), so that `import gpu_exporter` costs a program next to nothing.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` for it would take longer than all the rest
if TYPE_CHECKING:
    from gpu_exporter import training
    from gpu_exporter.app.library import GpuDiagnosis, GpuReading, NodeDiagnosis, diagnose, read
    from gpu_exporter.model.errors import GpuExporterError
    from gpu_exporter.version import __version__

__all__ = [
    "GpuDiagnosis",
    "GpuExporterError",
    "GpuReading",
    "NodeDiagnosis",
    "__version__",
    "diagnose",
    "read",
    "training",
]

_MODULES = {
    "GpuDiagnosis": "gpu_exporter.app.library",
    "GpuExporterError": "gpu_exporter.model.errors",
    "GpuReading": "gpu_exporter.app.library",
    "NodeDiagnosis": "gpu_exporter.app.library",
    "__version__": "gpu_exporter.version",
    "diagnose": "gpu_exporter.app.library",
    "read": "gpu_exporter.app.library",
    "training": "gpu_exporter.training",
}

if not TYPE_CHECKING:  # for type checkers, a module with `__getattr__` has every name

    def __getattr__(name: str) -> object:
        """Import a name from its module, when it is used for the first time."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(_MODULES[name])
        value = globals()[name] = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
        return value

    def __dir__() -> list[str]:
        """List the names that can be used, imported yet or not."""
        return sorted({*globals(), *__all__})
