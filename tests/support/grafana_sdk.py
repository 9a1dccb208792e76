"""Grafana's SDK: its types are those of the schema of dashboards."""

from __future__ import annotations

import json
import warnings
from typing import Any


def through_sdk(board: dict[str, Any]) -> dict[str, Any]:
    """Decode and encode a dashboard, which drops unknown keys and adds defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it recommends v2, which provisioning rejects
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard

        register_default_plugins()
        found: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
    return found
