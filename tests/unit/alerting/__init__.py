"""Unit tests of `gpu_exporter/alerting/`."""
