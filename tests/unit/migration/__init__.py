"""Unit tests of `gpu_exporter/migration/`."""
