"""What keeps the exporter from reading GPUs on this machine."""
