"""Tests: unit (pure parts), golden (whole outputs), e2e (the real command with real parts)."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGED_RECORDINGS = ROOT / "gpu_exporter" / "sources" / "recording" / "packaged"
