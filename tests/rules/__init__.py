"""The rendered rules in promtool and in a real Prometheus."""
