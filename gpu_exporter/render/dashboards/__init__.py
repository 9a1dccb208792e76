"""The Grafana dashboards."""
