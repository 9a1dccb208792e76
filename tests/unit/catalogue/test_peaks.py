"""Peaks by data type are those of the data sheets, from the table of boards and computed from the chip."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import peaks
from gpu_exporter.catalogue.gpu_models import BY_NAME, DTYPES, MODELS, model_of, peak, peak_of
from gpu_exporter.model.gpu import Chip, Gpu
from tests.support.models import ANSWERS


@pytest.mark.parametrize(
    ("model", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "torch.float16", 989.4),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 80GB HBM3", "FP8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "float32", 66.9),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA L40S", "tf32", 183),
        ("NVIDIA L40S", "fp8", 733),
        ("NVIDIA B200", "nvfp4", 9000),
        ("NVIDIA B200", "fp32", 75),
        ("NVIDIA GB200", "fp32", 80),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA GH200 480GB", "fp8", 1979),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp32", 120),
    ],
)
def test_the_peak_is_that_of_the_data_sheet(model: str, dtype: str, teraflops: float) -> None:
    """NVIDIA's data sheets, dense; some print the digits that others round."""
    assert peak(BY_NAME[model], dtype) == pytest.approx(teraflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp8"),
        ("NVIDIA H200", "fp4"),
        ("NVIDIA H200", "int7"),
        ("NVIDIA H200", ""),
        ("Quadro", "bf16"),
    ],
)
def test_an_unknown_peak_is_not_guessed(model: str, dtype: str) -> None:
    assert peak(BY_NAME.get(model), dtype) is None


def test_every_model_has_a_peak_of_every_type_that_its_architecture_has() -> None:
    for model in MODELS:
        known = [dtype for dtype in DTYPES if peak_of(model, dtype)]
        assert known[:4] == ["fp32", "tf32", "bf16", "fp16"]


# The compute capability, and cores and bus width (bits) as CUDA deviceQuery shows them; then what data sheets of NVIDIA
# say: FP32 and FP16 tensor rate (dense, FP32 accumulation) in TFLOP/s, and memory bandwidth in GB/s. None: it is not
# computed.
CHIPS: Mapping[str, tuple[tuple[int, int], int, int, float | None, float | None, float]] = {
    "Tesla P100-PCIE-16GB": ((6, 0), 3584, 4096, 9.3, None, 732),
    "Tesla T4": ((7, 5), 2560, 256, 8.1, 65, 320),
    "NVIDIA GeForce RTX 2080 SUPER": ((7, 5), 3072, 256, 11.2, 44.6, 496),
    "NVIDIA GeForce RTX 3060": ((8, 6), 3584, 192, 12.7, 25.5, 360),
    "NVIDIA GeForce RTX 3070": ((8, 6), 5888, 256, 20.3, 40.6, 448),
    "NVIDIA GeForce RTX 3080": ((8, 6), 8704, 320, 29.8, 59.5, 760),
    "NVIDIA GeForce RTX 3090": ((8, 6), 10496, 384, 35.6, 71.2, 936),
    "NVIDIA GeForce RTX 4060 Ti": ((8, 9), 4352, 128, 22.1, 44.1, 288),
    "NVIDIA GeForce RTX 4080 SUPER": ((8, 9), 10240, 256, 52.2, 104.4, 736),
    "NVIDIA GeForce RTX 4090": ((8, 9), 16384, 384, 82.6, 165.2, 1008),
    "NVIDIA RTX A6000": ((8, 6), 10752, 384, 38.7, 154.8, 768),
    "NVIDIA RTX 6000 Ada Generation": ((8, 9), 18176, 384, 91.1, 364.2, 960),
    "NVIDIA RTX 2000 Ada Generation": ((8, 9), 2816, 128, 12.0, 48.0, 224),
    "NVIDIA RTX 4000 SFF Ada Generation": ((8, 9), 6144, 160, 19.2, 76.7, 280),
    "NVIDIA RTX 4000 Ada Generation": ((8, 9), 6144, 160, None, None, 360),
    "NVIDIA A10": ((8, 6), 9216, 384, 31.2, 125, 600),
    "NVIDIA A40": ((8, 6), 10752, 384, 37.4, 149.7, 696),
    "NVIDIA A100-SXM4-40GB": ((8, 0), 6912, 5120, 19.5, 312, 1555),
    "NVIDIA A100-SXM4-80GB": ((8, 0), 6912, 5120, 19.5, 312, 2039),
    "NVIDIA L4": ((8, 9), 7424, 192, 30.3, 121, 300),
    "NVIDIA L40S": ((8, 9), 18176, 384, 91.6, 362, 864),
    "NVIDIA H100 80GB HBM3": ((9, 0), 16896, 5120, 67, 989.4, 3350),
    "NVIDIA H200": ((9, 0), 16896, 6144, 67, 989.4, 4800),
    "NVIDIA GH200 480GB": ((9, 0), 16896, 6144, 67, 990, 4000),
    "NVIDIA B200": ((10, 0), 18944, 8192, 75, None, 8000),
    "NVIDIA GB200": ((10, 0), 19456, 8192, 80, None, 8000),
    "NVIDIA GB10": ((12, 1), 6144, 0, None, None, 0),
}


def chip_of(name: str) -> Gpu:
    """Return a GPU with the clocks that its driver answers."""
    (answers, *_) = (model for model in ANSWERS if model.name == name)
    capability, cores, bus, *_ = CHIPS[name]
    clocks = answers.values.get(m.MAX_SM_CLOCK, 0.0), answers.values.get(m.MAX_MEM_CLOCK, 0.0)
    info = (("brand", answers.brand), ("architecture", answers.architecture.split(" ")[0]))
    return Gpu(0, "GPU-0", model=name, info=info, chip=Chip(capability, cores, *clocks, bus))


@pytest.mark.parametrize("name", CHIPS)
def test_computed_peaks_are_those_of_the_data_sheets(name: str) -> None:
    """FP32 within 0.8 %, tensor cores within 1.3 %, memory within 2.5 %; what has no factor has no peak."""
    gpu, (*_, fp32, tensor, memory) = chip_of(name), CHIPS[name]
    assert peaks.fp32(gpu) == (fp32 and pytest.approx(fp32 * 1e12, rel=0.008))
    assert peaks.tensor(gpu) == (tensor and pytest.approx(tensor * 1e12, rel=0.013))
    assert peaks.memory_bandwidth(gpu) == (pytest.approx(memory * 1e9, rel=0.025) if memory else None)


@pytest.mark.parametrize("name", [name for name in CHIPS if name in BY_NAME])
def test_the_table_of_boards_agrees_with_the_computation(name: str) -> None:
    """The table is what is used; a wrong number in it would differ from the chip's."""
    board, gpu = BY_NAME[name], chip_of(name)
    assert model_of(gpu) is board
    assert board.sms == peaks.sm_count(gpu)
    assert board.fp32 == pytest.approx(peaks.fp32(gpu), rel=0.008)
    assert peaks.tensor(gpu) in (None, pytest.approx(board.bf16, rel=0.013))
    assert board.memory_bandwidth == pytest.approx(peaks.memory_bandwidth(gpu), rel=0.025)


def test_models_without_a_row_have_peaks() -> None:
    """Of the types that their tensor cores have; a slice of an unknown model has none."""
    t4, rtx4090, unknown = (model_of(chip_of(name)) for name in ("Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA GB10"))
    assert unknown is None
    assert peak(t4, "fp16") == pytest.approx(65e12, rel=0.02)
    assert peak(t4, "bf16") is None
    assert peak(rtx4090, "fp8") == pytest.approx(330.3e12, rel=0.01)
    assert peak(rtx4090, "tf32") == pytest.approx(82.6e12, rel=0.01)


@pytest.mark.parametrize(
    ("name", "capability", "brand"),
    [
        ("NVIDIA H100 NVL", (9, 0), "NVIDIA"),
        ("NVIDIA A2", (8, 6), "NVIDIA"),
        ("NVIDIA GeForce RTX 5090", (12, 0), "GeForce"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", (8, 6), "GeForce"),
        ("NVIDIA B300", (10, 3), "NVIDIA"),
    ],
)
def test_tensor_cores_without_a_known_rate_have_no_peak(name: str, capability: tuple[int, int], brand: str) -> None:
    """Their data sheets are not what the table of their compute capability says, or their clock is not known."""
    gpu = Gpu(0, "GPU-0", model=name, info=(("brand", brand),), chip=Chip(capability, 10240, 1980.0, 2619.0, 5120))
    row = model_of(gpu)
    assert peaks.tensor(gpu) is None
    assert row
    assert row.memory_bandwidth == pytest.approx(3.352e12, rel=0.001)
    assert peak_of(row, "bf16") is None
    assert (peak_of(row, "fp32") is None) is (brand == "GeForce")


def test_boards_with_half_of_the_rate() -> None:
    """An L40 has half of the tensor rate of an L40S: 181 TFLOP/s."""
    gpu = Gpu(
        0, "GPU-0", model="NVIDIA L40", info=(("brand", "NVIDIA"),), chip=Chip((8, 9), 18176, 2490.0, 9001.0, 384)
    )
    assert peaks.tensor(gpu) == pytest.approx(181.05e12, rel=0.002)
