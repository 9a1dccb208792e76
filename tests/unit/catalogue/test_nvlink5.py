"""The details of XIDs of NVLink 5, by NVIDIA's table."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.nvlink5 import CODES, LINK_FATAL, decode, rules_by_key
from gpu_exporter.model.verdict import Action

RULES = rules_by_key()
FIX = "fix: correct the row in gpu_exporter/catalogue/nvlink5.csv"


@pytest.mark.parametrize(
    ("code", "message", "words", "action"),
    [
        (
            144,
            "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000)",
            "link 0, unit SAW_MVB, fatal; contact NVIDIA",
            Action.GPU_RESET,
        ),
        (
            145,
            "RLW_REMAP  Nonfatal XC1 i0 Link -1 (0x00000004 0x00000004 0x0)",
            "no single link, unit RLW_REMAP, not fatal; follow NVIDIA's NVLink failure flow",
            None,
        ),
        (146, "TLW_RX_PIPE0 Nonfatal XC0 i0 Link 17 (0xa 0x1)", "link 17, unit TLW_RX_PIPE0, not fatal", Action.NONE),
        (
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x02500011 0x00000000 0x0)",
            "link 8, unit NETIR_LINK_EVT, fatal for the link; investigate the peer device",
            Action.GPU_RESET,
        ),
        (
            150,
            "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x0 0x0)",
            "no single link, unit MSE_WATCHDOG, fatal; contact NVIDIA",
            Action.GPU_RESET,
        ),
        # NVIDIA's table says "Link Fatal?".
        (
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 2 (0x02a00011 0x0)",
            "link 2, unit NETIR_LINK_EVT, fatal; investigate the signal integrity and the cables of the link",
            Action.GPU_RESET,
        ),
        # Two bits of the status at once, and a unit of a later driver, are not in the table.
        (144, "SAW_MVB Fatal XC0 i0 Link 03 (0x1 0x3)", "link 3, unit SAW_MVB, fatal", None),
        (147, "NEW_UNIT Fatal XC0 i0 Link 03 (0x1 0x3)", "link 3, unit NEW_UNIT, fatal", None),
    ],
)
def test_messages(code: int, message: str, words: str, action: Action | None) -> None:
    """The driver names unit, severity and link; the table adds the action and what to look at."""
    found = decode(code, message)
    assert found
    assert found.words == words
    assert (found.rule and found.rule.action) == action


@pytest.mark.parametrize(("code", "message"), [(149, ""), (149, "other text"), (74, "NETIR Fatal XC0 i0 Link 1 (0x0)")])
def test_other_messages(code: int, message: str) -> None:
    assert decode(code, message) is None


@pytest.mark.drift
def test_the_table() -> None:
    """It has rows of all codes, and the severity and the action of each agree."""
    assert {code for code, *_ in RULES} == set(CODES), FIX
    assert {rule.severity for rule in RULES.values()} == {"fatal", "non-fatal", LINK_FATAL, ""}, FIX
    resets = {rule.severity for rule in RULES.values() if rule.action is Action.GPU_RESET}
    assert "non-fatal" not in resets, FIX
