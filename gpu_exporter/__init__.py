"""GPU telemetry for Prometheus: why GPUs are slow, broken or wasted."""

__version__ = "0.1.0"
