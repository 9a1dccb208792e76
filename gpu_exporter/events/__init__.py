"""What happened to the GPUs: XIDs and SXids, from the kernel log and from the driver, and how often."""
