"""Queries for other exporters, rewritten for the metrics of gpu-exporter."""
