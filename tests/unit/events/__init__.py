"""Unit tests of `gpu_exporter/events/`."""
