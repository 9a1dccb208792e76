"""The rendered rules in real promtools and a real Prometheus."""
