"""Unit tests of `gpu_exporter/live_page/`."""
