"""Unit tests of `gpu_exporter/http/`."""
