"""Finds what keeps gpu-exporter from reading the GPUs of this machine."""
