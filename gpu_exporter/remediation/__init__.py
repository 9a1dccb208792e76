"""Remediation: cordons nodes with unfit GPUs within strict bounds, and returns them to service."""
