"""Unit tests of `gpu_exporter/active_checks/`."""
