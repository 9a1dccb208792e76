"""Unit tests of `gpu_exporter/doctor/`."""
