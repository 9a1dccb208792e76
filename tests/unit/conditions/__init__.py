"""Unit tests of `gpu_exporter/conditions/`."""
