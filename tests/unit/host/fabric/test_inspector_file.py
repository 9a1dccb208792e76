"""Files of NCCL Inspector: the formats of NCCL 2.30 and 2.29, wrong lines, and a bounded number of series."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.fabric.inspector import bandwidths
from tests import ROOT
from tests.support.fakes.nccl_inspector import coll, old_coll, p2p


def found(*lines: str) -> dict[tuple[str, ...], float]:
    """Return the bus bandwidths in GB/s by operation, message size and scope."""
    values, wrong = bandwidths("".join(lines).encode())
    assert not wrong
    return {
        tuple(text for _, text in labels): round(value / 1e9, 6)
        for (metric, labels), value in values.items()
        if metric is m.NCCL_BUS
    }


def test_nccl_2_30() -> None:
    """Communicators and algorithms are averaged; nodes, sizes and operations are not."""
    assert found(
        coll(400, comm_name="a", algo_proto="Ring_ll"),
        coll(100, comm_name="b"),
        coll(40, n_nodes="2"),
        coll(30, message_size="8-9KB"),
        coll(20, collective="ReduceScatter"),
        p2p(10, "Send"),
        coll(0, collective="AlltoAll"),
    ) == {
        ("AllReduce", "256MiB+", "intra_node"): 200,
        ("AllReduce", "256MiB+", "inter_node"): 40,
        ("AllReduce", "0-1MiB", "intra_node"): 30,
        ("ReduceScatter", "256MiB+", "intra_node"): 20,
        ("Send", "256MiB+", "intra_node"): 10,
    }


def test_a_file_of_a_real_job() -> None:
    """Two H100s with NCCL 2.28.9 and the plugin of 2.30.7, all-reduces of 256 MiB and 1 MiB, all-gathers of 256 MiB."""
    assert found((ROOT / "tests/data/nccl_inspector_2_30.prom").read_text()) == {
        ("AllGather", "256MiB+", "intra_node"): 256.05,
        ("AllReduce", "1-16MiB", "intra_node"): 78.1597,
        ("AllReduce", "256MiB+", "intra_node"): 299.856,
    }


def test_nccl_2_29() -> None:
    """It has the algorithm bandwidth, too, and labels that identify one collective, which are not copied."""
    values, wrong = bandwidths((old_coll(300, 200, sn=7) + old_coll(300, 200, sn=8)).encode())
    labels = (("operation", "AllReduce"), ("message_size", "16-256MiB"), ("scope", "intra_node"))
    assert not wrong
    assert values == pytest.approx({(m.NCCL_BUS, labels): 300e9, (m.NCCL_ALGORITHM, labels): 200e9})


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("0B", "0-1MiB"),
        ("1023-1024KB", "0-1MiB"),
        ("1-2MB", "1-16MiB"),
        ("15-16MB", "1-16MiB"),
        ("16.00MB", "16-256MiB"),
        ("255-256MB", "16-256MiB"),
        ("256-257MB", "256MiB+"),
        ("1-2TB", "256MiB+"),
    ],
)
def test_size_classes(size: str, expected: str) -> None:
    assert list(found(coll(1, message_size=size))) == [("AllReduce", expected, "intra_node")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (coll(1, comm_name='a "b"'), "label"),
        (coll(1, message_size="4"), "message_size '4' is not a size such as 4-5GB"),
        (coll(1, n_nodes="x"), "no number of nodes"),
        (coll(1, comm_name="a" * 3000), "longer than 2048 characters"),
        (coll(float("nan")), "nan GB/s is no bandwidth"),
        (coll(-1), "-1 GB/s is no bandwidth"),
        (coll(1e9), "1e+09 GB/s is no bandwidth"),
        ("nccl_bus_bandwidth_gbs\n", "Invalid value"),
        ("nccl_bus_bandwidth_gbs{} " + "9" * 1900 + "\n", "too large"),
    ],
)
def test_wrong_lines_are_left_out(line: str, why: str) -> None:
    """The message has the first one; all other lines count."""
    values, wrong = bandwidths(("# TYPE x gauge\n" + line + line + coll(5)).encode())
    assert list(values.values()) == pytest.approx([5e9])
    assert wrong.startswith("line 2 is left out: ")
    assert why in wrong


def test_a_line_that_is_being_written() -> None:
    assert bandwidths((coll(5) + coll(6)[:-40]).encode())[1] == ""


def test_a_hostile_file_has_few_series() -> None:
    """Whatever a job writes, the labels have few values."""
    lines = [
        coll(1, collective=f"x{n}", n_nodes=str(n), message_size=f"{n}-{n + 1}{unit}B", comm_name=f"x{n}")
        for n in range(50)
        for unit in ("", "K", "M", "G", "T")
    ]
    values = found(*lines)
    assert {operation for operation, _, _ in values} == {"other"}
    assert len(values) <= 8
