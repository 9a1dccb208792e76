"""Recording rules, alerts, and the Alertmanager example."""
