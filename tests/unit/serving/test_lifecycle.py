"""Who has the token, and where it is kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpu_exporter.inputs import hand_over
from gpu_exporter.serving.lifecycle import Token, is_loopback


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_loopback(address: str, wanted: bool) -> None:
    """Only a peer's address counts, and only one that never leaves the machine."""
    assert is_loopback(address) is wanted


def test_token(tmp_path: Path) -> None:
    """Both the token and the address must be right."""
    token = Token(tmp_path / "token")
    token.__enter__()
    text = (tmp_path / "token").read_text().strip()
    assert len(text) >= 40
    assert token.allows(f"Bearer {text}", "127.0.0.1")
    assert token.allows(f"bearer  {text} ", "::1")
    for given, address in (
        (f"Bearer {text}", "192.0.2.1"),
        (f"Basic {text}", "127.0.0.1"),
        (text, "127.0.0.1"),
        (f"Bearer {text[:-1]}", "127.0.0.1"),
        ("Bearer", "127.0.0.1"),
        ("Bearer \udcff", "127.0.0.1"),
        ("", "127.0.0.1"),
    ):
        assert not token.allows(given, address)


def test_token_file(tmp_path: Path) -> None:
    """Readable by its user only, whatever was there; what another process wrote since is left alone."""
    path, other = tmp_path / "token", tmp_path / "other"
    other.write_text("precious")
    path.symlink_to(other)
    first, second = Token(path), Token(path)
    first.__enter__()
    assert other.read_text() == "precious"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second.__enter__()
    first.__exit__()
    assert second.allows(f"Bearer {path.read_text().strip()}", "::1")
    second.__exit__()
    assert [each.name for each in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("24h", 86400), ("90", 90)])
def test_hand_over_time(text: str, seconds: float) -> None:
    """Up to a day."""
    assert hand_over(text) == seconds


@pytest.mark.parametrize("text", ["25h", "86401", "0", "-1", "forever", ""])
def test_wrong_hand_over_time(text: str) -> None:
    """A node must not stay blind for good."""
    with pytest.raises(ValueError, match=r"too long|not a duration"):
        hand_over(text)
