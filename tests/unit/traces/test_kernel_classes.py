"""Classes of kernels by their names, taken from public traces."""

from __future__ import annotations

import pytest

from gpu_exporter.traces.kernel_classes import avoids_tensor_cores, is_communication, kernel_class, short_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>", "communication"),
        ("void deep_ep::internode::dispatch<false, 4>", "communication"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64", "gemm"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>", "gemm"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("void cudnn::ops::nchwToNhwcKernel<float>", "other"),
        ("void implicit_convolve_sgemm<float, float, 1024>", "convolution"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "elementwise"),
        ("triton_poi_fused_add_mul_0", "elementwise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "normalization"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
    ],
)
def test_classes(name: str, expected: str) -> None:
    assert kernel_class(name) == expected
    assert is_communication(name) is (expected == "communication")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_tn", True),
        ("ampere_sgemm_64x32_sliced1x4_nn", True),
        ("void implicit_convolve_sgemm<float, float, 1024>", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", False),
        ("nvjet_sm90_tst_128x256", False),
        ("void at::native::vectorized_elementwise_kernel<4>", False),
    ],
)
def test_matrix_products_without_tensor_cores(name: str, expected: bool) -> None:
    assert avoids_tensor_cores(name) is expected


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<8, at::f<int>(x)>(int, y)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("void at::native::(anonymous namespace)::norm<float>(int)", "at::native::norm"),
        ("void f<int>::g<float>(int)", "f::g"),
        ("a > b(c)", "a  b"),  # a bracket that nothing opened
        ("f(int) [clone]", "f"),
        ("(int)", "(int)"),
        ("<int>", "<int>"),
        ("gemm", "gemm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("Mem" + "x" * 100, "Mem" + "x" * 77),
    ],
)
def test_short_names_have_no_arguments(name: str, short: str) -> None:
    assert short_name(name) == short
