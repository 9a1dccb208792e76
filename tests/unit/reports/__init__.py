"""Unit tests of `gpu_exporter/reports/`."""
