"""Unit tests of `gpu_exporter/owners/`."""
