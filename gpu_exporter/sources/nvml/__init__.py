"""NVML as a source: GPUs read from the driver, without DCGM and without privileges."""
