"""How fast operators run against the peak of the GPU: their work by shapes, and their time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue.gpu_models import H200
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import OperatorRate
from gpu_exporter.traces.text_report import lines, rate_words
from gpu_exporter.traces.work import Inputs, OperatorWork, has_work, parsed, work_of
from tests.support.traces import SyntheticTrace

BF16, FLOAT = "c10::BFloat16", "float"
QKV = ((2, 4, 8, 16), (2, 4, 32, 16), (2, 4, 32, 16))
ATTENTION = 4 * (2 * 4 * 8 * 32) * 16.0
# The query and the output, the key and the value.
QKV_BYTES = 2 * 2 * 1024.0 + 2 * 2 * 4096
STRIDES = ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]")


def _inputs(*shapes: tuple[int, ...], dtype: str = BF16, values: tuple[str, ...] = ()) -> Inputs:
    return Inputs(shapes, tuple(dtype if shape else "Scalar" for shape in shapes), values)


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("aten::mm", _inputs((4, 8), (8, 16)), OperatorWork(2 * 4 * 8 * 16, 2 * (32 + 128 + 64))),
        ("aten::mm", _inputs((4, 8), (8, 16), dtype=FLOAT), OperatorWork(2 * 4 * 8 * 16, 4 * (32 + 128 + 64))),
        ("aten::addmm", _inputs((16,), (4, 8), (8, 16)), OperatorWork(2 * 4 * 8 * 16, 2 * (32 + 128 + 64))),
        ("aten::bmm", _inputs((3, 4, 8), (3, 8, 16)), OperatorWork(3 * 2 * 4 * 8 * 16, 3 * 2 * (32 + 128 + 64))),
        # 10 x 10 images of 3 channels to 8 channels of 5 x 5, by kernels of 3 x 3.
        (
            "aten::convolution",
            _inputs((2, 3, 10, 10), (8, 3, 3, 3), (), values=(*STRIDES, "False")),
            OperatorWork(2.0 * (2 * 8 * 25) * 27, 2 * (600 + 216 + 400)),
        ),
        (
            "aten::convolution",
            _inputs((2, 3, 10, 10), (3, 8, 3, 3), (), values=(*STRIDES, "True")),
            OperatorWork(2.0 * 600 * 72, 2 * (600 + 216)),
        ),
        (
            "aten::convolution_backward",
            _inputs((2, 8, 5, 5), (2, 3, 10, 10), (8, 3, 3, 3)),
            OperatorWork(4.0 * 400 * 27, 2 * (400 + 1200 + 432)),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            _inputs(*QKV, values=("", "", "", "0.", "False")),
            OperatorWork(ATTENTION, QKV_BYTES),
        ),
        (
            "aten::_scaled_dot_product_efficient_attention",
            _inputs(*QKV, values=("", "", "", "", "True", "0.", "True")),
            OperatorWork(ATTENTION / 2, QKV_BYTES),
        ),
        ("aten::add", _inputs((4, 8), (8,)), OperatorWork(0.0, 2 * (32 + 8 + 32))),
        ("aten::add", _inputs((4, 1), (1, 8)), OperatorWork(0.0, 2 * (4 + 8 + 32))),
        ("aten::mul", Inputs(((4, 8), (4, 1)), (BF16, FLOAT), ("", "")), OperatorWork(0.0, 2 * 32 + 4 * 4 + 4 * 32)),
        ("aten::clamp_min", _inputs((4, 8), ()), OperatorWork(0.0, 2 * 64)),
        ("aten::copy_", _inputs((4, 8), (4, 8)), OperatorWork(0.0, 2 * 64)),
        ("aten::sum", _inputs((4, 8)), OperatorWork(0.0, 2 * 32)),
    ],
)
def test_what_an_operator_must_do(name: str, inputs: Inputs, expected: OperatorWork) -> None:
    assert has_work(name)
    assert work_of(name, inputs) == expected


@pytest.mark.parametrize(
    "name", ["aten::linear", "aten::view", "my::op", "aten::embedding", "aten::cat", "aten::upsample_nearest2d"]
)
def test_operators_whose_shapes_do_not_say_their_work(name: str) -> None:
    assert not has_work(name)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("aten::mm", _inputs((4, 8))),
        ("aten::mm", _inputs((4,), (8,))),
        ("aten::convolution", _inputs((2, 3, 10, 10), (8, 3, 3, 3))),
        ("aten::convolution", _inputs((2, 3, 9, 9), (8, 3, 3, 3), values=("", "", "", "[0, 0]", "[1]", "x", "False"))),
        ("aten::add", _inputs((4, 8), dtype="Unknown")),
    ],
)
def test_inputs_of_another_form(name: str, inputs: Inputs) -> None:
    assert work_of(name, inputs) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[[2, 3], []], ["float", "Scalar"], ["", "1"]]', Inputs(((2, 3), ()), ("float", "Scalar"), ("", "1"))),
        ('[[[[2], [3]]], ["TensorList"], []]', Inputs(((),), ("TensorList",), ())),
        (f'[[[{1 << 50}]], ["float"], []]', Inputs(((),), ("float",), ())),
        ("[[[2]], [], []]", None),
        ("[[2], [], []]", None),
        ("[[], [], []]", None),
        ("[,]", None),
        ("7", None),
    ],
)
def test_inputs_as_text(text: str, expected: Inputs | None) -> None:
    assert parsed(text) == expected


@given(
    st.sampled_from(("aten::mm", "aten::convolution", "aten::add", "aten::_scaled_dot_product_flash_attention")),
    st.lists(st.lists(st.integers(0, 1 << 45), max_size=6).map(tuple), max_size=4),
)
def test_any_shapes_are_no_error(name: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = Inputs(tuple(shapes), (BF16,) * len(shapes), ("[0]",) * 8)
    work = work_of(name, inputs)
    assert work is None or work.flops > 0 or work.bytes > 0


def _operator(
    trace: SyntheticTrace, name: str, start: float, duration: float, *shapes: list[int], dtype: str = BF16
) -> None:
    """Add an operator that launches a kernel of this duration."""
    args: dict[str, Any] = {
        "Input Dims": list(shapes), "Input type": [dtype] * len(shapes), "Concrete Inputs": [""] * len(shapes)
    }  # fmt: skip
    trace.host(name, start, 10, "cpu_op", **args)
    trace.device(start + 20, duration, "nvjet_x", launched=start + 5)


def _rates(folder: Path, trace: SyntheticTrace) -> tuple[OperatorRate, ...]:
    return analyze([read(trace.write(folder / "t.json"))]).ranks[0].operators


def test_time_against_the_peak(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for number in range(2):
        _operator(trace, "aten::mm", 1000 * number, 500, [4096, 4096], [4096, 4096])
    _operator(trace, "aten::add", 2000, 100, [1 << 26])
    product, addition = _rates(tmp_path, trace)
    flops = 2 * 4096**3
    assert (product.operator, product.shapes, product.dtype) == ("aten::mm", ((4096, 4096), (4096, 4096)), BF16)
    assert (product.count, product.bound) == (2, "compute")
    assert product.seconds == pytest.approx(1000e-6)
    assert product.flops_per_second == pytest.approx(flops / 500e-6)
    assert product.bytes_per_second == pytest.approx(3 * 2 * 4096**2 / 500e-6)
    assert product.peak_ratio == pytest.approx(flops / H200.bf16 / 500e-6)
    assert product.lost_seconds == pytest.approx(1000e-6 - 2 * flops / H200.bf16)
    assert (addition.bound, addition.flops_per_second) == ("memory", 0)
    assert addition.peak_ratio == pytest.approx(2 * 2 * (1 << 26) / H200.memory_bandwidth / 100e-6)


def test_the_innermost_operator_counts(tmp_path: Path) -> None:
    """Of operators that follow and contain each other; other threads and launches outside of operators do not."""
    trace = SyntheticTrace()
    args: dict[str, Any] = {"Input Dims": [[8, 8]], "Input type": [FLOAT], "Concrete Inputs": [""]}
    trace.host("aten::mul", 0, 100, "cpu_op", **args)
    _operator(trace, "aten::add", 10, 5, [8])
    trace.device(60, 7, launched=50)
    trace.host("aten::neg", 200, 100, "cpu_op", thread=300, **args)
    trace.device(260, 9, launched=250)
    found = {rate.operator: round(rate.seconds * 1e6) for rate in _rates(tmp_path, trace)}
    assert found == {"aten::add": 5, "aten::mul": 7}


def test_gpus_without_a_known_peak(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.header["deviceProperties"][0]["name"] = "Another GPU"
    _operator(trace, "aten::mm", 0, 50, [8, 8], [8, 8])
    _operator(trace, "aten::mm", 100, 70, [16, 16], [16, 16])
    rates = _rates(tmp_path, trace)
    assert [rate.seconds for rate in rates] == pytest.approx([70e-6, 50e-6])
    assert {(rate.peak_ratio, rate.lost_seconds, rate.bound) for rate in rates} == {(None, None, "")}
    assert rate_words(rates[1]) == "aten::mm [8, 8] x [8, 8] c10::BFloat16: 20.5 MFLOP/s, 7.68 MB/s"


def test_double_precision_has_no_peak_for_products(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    _operator(trace, "aten::mm", 0, 50, [8, 8], [8, 8], dtype="double")
    (rate,) = _rates(tmp_path, trace)
    assert rate.peak_ratio is None


def test_without_shapes_there_are_no_rates(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.host("aten::mm", 0, 10, "cpu_op")
    trace.device(20, 5, launched=5)
    assert _rates(tmp_path, trace) == ()


def test_the_report_has_the_operators_that_lost_most(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    _operator(trace, "aten::mm", 0, 500, [4096, 4096], [4096, 4096])
    text = list(lines(analyze([read(trace.write(tmp_path / "t.json"))])))
    at = text.index("Operators of rank 0 that lost most time against the peak of the GPU")
    assert " ".join(text[at + 1].split()) == (
        "28 % of the peak 500 us 1 x aten::mm [4096, 4096] x [4096, 4096] c10::BFloat16: 275 TFLOP/s, 201 GB/s,"
        " compute-bound"
    )
