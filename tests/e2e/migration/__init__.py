"""End-to-end tests of `gpu_exporter/migration/`."""
