"""Tests: unit (one part of the code), golden (whole outputs), e2e (the real command)."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGED_RECORDINGS = ROOT / "gpu_exporter" / "sources" / "recording" / "packaged"
