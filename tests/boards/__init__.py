"""Renders the dashboards with Grafana's own components, on a simulated fleet with six faults: `make boards`."""
