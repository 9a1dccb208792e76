"""What CUDA shows for a value of CUDA_VISIBLE_DEVICES. The first table is what driver 580 does on two H100s."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.model.gpu import Gpu
from gpu_exporter.owners.devices import DeviceRef, NodeDevices
from gpu_exporter.owners.visible import Repeated, entries, shown

A, B = "GPU-b6684895-163a-4c1e-9813-a6241d8be242", "GPU-70093594-0871-0e90-31c8-6781c18945af"
MIGS = {
    "MIG-7bba9b13-3f3a-5a4e-8c1b-1f4a3f0c5d11": DeviceRef(B, "9"),
    "MIG-7c0e9b13-3f3a-5a4e-8c1b-1f4a3f0c5d12": DeviceRef(B, "5"),
}
M, N = MIGS
HERE = NodeDevices({A: Gpu(0, A), B: Gpu(1, B)}, MIGS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        (" ", ()),
        ("0,1", (0, 1)),
        ("1,0", (1, 0)),
        ("0, 1", (0, 1)),
        (" 1", (1,)),
        ("1 ", (1,)),
        ("-1", ()),
        ("0,-1,1", (0,)),
        ("1gpu", (1,)),
        ("+1", (1,)),
        ("abc", ()),
        ("00,01", (0, 1)),
        ("0 1", (0,)),
        ("0;1", (0,)),
        ("0x1", (0,)),
        ("0.5", (0,)),
        ("0,1,", (0, 1)),
        ("0,,1", (0,)),
        (",0", ()),
        ("NoDevFiles", ()),
        ("all", ()),
        (f"0,{B}", (0,)),
        (f"{B},0", (B,)),
        (f"{B},MIG-dead,{A}", (B,)),
        (f"{B},{A}", (B, A)),
        (f"{A} ", (A,)),
        (f" {A}", ()),
        (f"{B}, {A}", (B,)),
        (A.lower(), ()),
        (A[4:], ()),
        (f"{M},{N}", (M, N)),
        (f"{M},{A}", (M,)),
        ("\u0661", ()),
    ],
)
def test_entries(text: str, expected: tuple[int | str, ...]) -> None:
    assert entries(text) == expected


@pytest.mark.parametrize(
    ("names", "expected", "rejected"),
    [
        ([A], [DeviceRef(A)], ""),
        ([A.replace("b668", "B668")], [DeviceRef(A)], ""),
        ([A[:8]], [DeviceRef(A)], ""),
        ([B[:9], A], [DeviceRef(B), DeviceRef(A)], ""),
        (["GPU-"], [], "GPU-"),  # the beginning of two
        ([A[:-1] + "x"], [], A[:-1] + "x"),
        ([A, "GPU-dead", B], [DeviceRef(A)], "GPU-dead"),
        (["GPU-dead", A], [], "GPU-dead"),
        ([M], [DeviceRef(B, "9")], ""),
        ([N, M], [DeviceRef(B, "5"), DeviceRef(B, "9")], ""),
        (["MIG-7c"], [DeviceRef(B, "5")], ""),
        (["MIG-7"], [], "MIG-7"),
        (["MIG-dead"], [], "MIG-dead"),
        ([f"MIG-{B}/9/0"], [DeviceRef(B, "9")], ""),
        ([f"MIG-{B}/1/0"], [], f"MIG-{B}/1/0"),
        ([f"MIG-{A}/9/0"], [], f"MIG-{A}/9/0"),
        ([M, f"MIG-{A}/9/0"], [DeviceRef(B, "9")], f"MIG-{A}/9/0"),
    ],
)
def test_shown(names: list[str], expected: list[DeviceRef], rejected: str) -> None:
    """The first name that is not of exactly one device hides itself and all that follow."""
    assert shown(names, HERE) == (tuple(expected), rejected)


@given(
    st.lists(st.sampled_from([A, B, M, N, A[:9], f"MIG-{B}/9/0", "0", "-1", "", " ", "GPU-", "MIG-", "\n"]) | st.text())
)
def test_any_value(parts: list[str]) -> None:
    """It names devices of this machine, each once, or is rejected."""
    named = entries(",".join(parts))
    uuids = [name for name in named if isinstance(name, str)]
    assert uuids in ([], list(named))
    with suppress(Repeated):
        assert set(shown(uuids, HERE)[0]) <= {DeviceRef(A), DeviceRef(B), *MIGS.values()}


@pytest.mark.parametrize("names", [[A, A], [A, A[:12]], [B, A, B], [M, M], [M, f"MIG-{B}/9/0"]])
def test_a_repeated_device_hides_all(names: list[str]) -> None:
    """CUDA reports an error then."""
    with pytest.raises(Repeated):
        shown(names, HERE)
