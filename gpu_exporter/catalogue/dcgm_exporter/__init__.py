"""What dcgm-exporter exposes and accepts: its fields, names and flags."""
