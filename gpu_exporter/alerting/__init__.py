"""Catalogues -> recording rules, alerts, the Alertmanager example and runbooks: what `bundle` writes."""
