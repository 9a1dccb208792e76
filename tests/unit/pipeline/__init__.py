"""Unit tests of `gpu_exporter/pipeline/`."""
