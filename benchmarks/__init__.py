"""Benchmarks. Each compares with another exporter or with known values in the same run."""
