"""Prometheus exporter for NVIDIA GPUs, and a library: `gpu_exporter.read()` gives the GPUs as plain Python values."""

from gpu_exporter.library import GpuReading, read
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.version import __version__

__all__ = ["GpuExporterError", "GpuReading", "__version__", "read"]
