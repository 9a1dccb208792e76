"""Tests: unit (pure parts), golden (whole outputs), e2e (the real command with real parts)."""
