"""Unit tests of `gpu_exporter/io/`."""
