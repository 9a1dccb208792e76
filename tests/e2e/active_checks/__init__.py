"""End-to-end tests of `gpu_exporter/active_checks/`."""
