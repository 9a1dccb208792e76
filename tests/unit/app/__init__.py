"""Unit tests of `gpu_exporter/app/`."""
