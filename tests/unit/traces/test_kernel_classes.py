"""Classes of kernels by their names and operators, scored on names of public libraries."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.traces.kernel_classes import (
    CLASS_NAMES,
    avoids_tensor_cores,
    is_communication,
    kernel_class,
    multiplies_vectors,
    short_name,
)
from gpu_exporter.traces.kernel_names import KernelName, parsed, words

with (Path(__file__).parents[2] / "data" / "kernel_names.tsv").open(encoding="utf-8", newline="") as _file:
    NAMES = list(csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE))
PRODUCTS = {"gemm", "convolution"}


def test_names_of_public_libraries_have_their_class() -> None:
    total, right = Counter[str](), Counter[str]()
    for row in NAMES:
        classes = row["class"].split("|")
        total[classes[0]] += 1
        right[classes[0]] += kernel_class(row["name"]) in classes
    assert right.total() >= 0.97 * total.total()
    assert {name: right[name] for name in total if total[name] >= 10 and right[name] < 0.9 * total[name]} == {}


def test_products_without_tensor_cores_are_found() -> None:
    chosen = [row for row in NAMES if row["tensor_cores"] in ("yes", "no") and PRODUCTS & {*row["class"].split("|")}]
    right = sum(avoids_tensor_cores(row["name"]) is (row["tensor_cores"] == "no") for row in chosen)
    assert right >= 0.98 * len(chosen)


def test_the_table_has_every_class() -> None:
    assert {name for row in NAMES for name in row["class"].split("|")} == CLASS_NAMES


ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Words inside of other words, and in parts of a name that say nothing.
        (ELEMENTWISE.format("neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}"), "elementwise"),
        ("void fbgemm_gpu::_offsets_range_cuda_kernel<int>(long)", "embedding"),
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(float)", "normalization"),
        ("void vllm::_typeConvert<c10::BFloat16>::act_and_mul_kernel<float>(float)", "elementwise"),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int, int)", "communication"),
        ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*)", "communication"),
        ("void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)", "moe-routing"),
        ("void fused_router::fused_topk_with_score_function_forward_kernel<float, float>(float*)", "moe-routing"),
        ("_row_id_map_pass_1_kernel", "moe-routing"),
        ("void wvSplitKQ_hf_<__hip_bfloat16, c10::Float8_e4m3fnuz, 64, 2>(int)", "gemm"),
        ("void grouped_gemm::cutlass_kernel<cutlass::gemm::kernel::GemmGrouped<X>>(int)", "gemm"),
        # What is done beside other work.
        ("allreduce_fusion_kernel_rmsnorm_quant", "communication"),
        ("void fused_softmax_attention(float)", "attention"),
        ("fused_add_rms_norm_static_fp8_quant_kernel", "normalization"),
        ("topk_softmax_kernel", "softmax"),
        ("marlin_moe_wna16", "gemm"),
        # Functions that a template is given.
        (ELEMENTWISE.format("direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"), "copy"),
        (ELEMENTWISE.format("float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}"), "cast"),
        (ELEMENTWISE.format("AddFunctor<float>, at::native::memory::LoadWithCast<2>"), "elementwise"),
        ("void at::native::max_elementwise_kernel<float>(int)", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, L2NormFunctor<float>>(int)", "reduction"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, Anything<float>>(int)", "optimizer"),
        ("void cutlass::Kernel2<Anything>(int)", "other"),
        ("void scale_kernel<nccl::Gemm>(int)", "elementwise"),
        ("split_with_sizes_copy_out_no_cast_kernel", "copy"),
        # TorchInductor names kernels after everything that they are a part of.
        ("triton_poi_fused_addmm_gelu_3", "elementwise"),
        ("triton_red_fused_addmm_convolution_sum_1", "reduction"),
        ("triton_per_fused_mean_mul_pow_rsqrt_1", "normalization"),
        ("triton_tem_fused_mm_relu_1", "gemm"),
        ("triton_tem_fused_convolution_0", "convolution"),
        # What prepares the arguments of other kernels.
        ("set_grouped_gemm_args_kernel", "other"),
        ("void dpsk::grouped_gemm::fill_tensormaps_kernel(CUtensorMap_st*)", "other"),
        ("triton__0d1d2d", "other"),
        ("", "other"),
        ("::<>()", "other"),
    ],
)
def test_classes(name: str, expected: str) -> None:
    assert kernel_class(name) == expected
    assert is_communication(name) is (expected == "communication")


@pytest.mark.parametrize(
    ("name", "operator", "expected"),
    [
        # The name says nothing, or only that it is for each element.
        ("_fwd_kernel", "aten::_scaled_dot_product_attention", "attention"),
        ("void cutlass::Kernel2<Anything>(int)", "aten::mm", "gemm"),
        ("triton__0d1d2d", "aten::native_layer_norm", "normalization"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "aten::native_dropout", "random"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "aten::copy_", "copy"),
        # A product launches kernels for each element, too.
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "aten::addmm", "elementwise"),
        ("_fwd_kernel", "my_library::forward", "other"),
        # The name says it.
        ("ncclDevKernel_AllReduce", "aten::mm", "communication"),
        ("Memcpy DtoD (Device -> Device)", "aten::mm", "copy"),
        ("flash_fwd_kernel", "aten::mm", "attention"),
        ("DeviceRadixSortKernel", "aten::index_put_", "sort"),
        (ELEMENTWISE.format("silu_kernel(at::TensorIteratorBase&)"), "aten::native_dropout", "elementwise"),
    ],
)
def test_the_operator_decides_where_a_name_says_nothing(name: str, operator: str, expected: str) -> None:
    assert kernel_class(name, operator) == expected


PLAIN = [
    name for row in NAMES if (name := row["name"]).isidentifier() and kernel_class(name) != "other" and "_Z" not in name
]
TYPES = st.sampled_from(
    ("gemm_params", "ncclComm*", "flash::Params const&", "at::native::Conv<int>", "unsigned int", "T (*)(softmax)")
)
SPACES = st.sampled_from(
    ("flashinfer", "fbgemm_gpu", "lambda_conv", "softmax", "(anonymous namespace)", "nccl", "gemm")
)


@given(st.sampled_from(PLAIN), st.lists(TYPES), st.lists(SPACES))
def test_parameters_and_namespaces_never_change_the_class(name: str, types: list[str], spaces: list[str]) -> None:
    changed = f"void {''.join(f'{space}::' for space in spaces)}{name}({', '.join(types)})"
    assert kernel_class(changed) == kernel_class(name)


@given(st.sampled_from(("AddFunctor", "FillFunctor", "direct_copy_kernel_cuda", "gelu_kernel")), st.lists(TYPES))
def test_lambdas_never_change_the_class(function: str, types: list[str]) -> None:
    plain = f"void at::native::vectorized_elementwise_kernel<4, at::native::{function}>(int)"
    parameters = ", ".join(types)
    changed = f"at::native::{function}({parameters})::{{lambda({parameters})#1}}::operator()({parameters}) const"
    assert kernel_class(plain.replace(f"at::native::{function}", changed)) == kernel_class(plain)


@given(st.text(alphabet="<>(){}[]:,_ &*abcZN1I4L0E$'", max_size=80))
def test_any_text_is_a_name(text: str) -> None:
    for name in (text, f"_ZN{text}", text * 300):
        assert kernel_class(name, text) in CLASS_NAMES
        assert isinstance(avoids_tensor_cores(name), bool)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemm", KernelName("gemm")),
        ("void a::b<c::d<e>, 4>::f<g>(h)", KernelName("f", ("d", "e", "4", "g"), ("c", "b", "a"))),
        (
            "std::enable_if<!(false), void>::type internal::kernel<int>(x)",
            KernelName("kernel", ("int",), ("internal",)),
        ),
        ("f<&(void g<int>(float))>(int) [clone .kd]", KernelName("f", ("g", "int"))),
        ("f<a::b(int)::{lambda(c)#1}::operator()(c) const::{lambda()#2}>(d)", KernelName("f", ("b",), ("a",))),
        ("f(a const*, b) const", KernelName("f")),
        ("_ZN2ck6kernelINS_4gemm3FooELi128EEEvPf", KernelName("kernel", ("gemm", "Foo"), ("ck",))),
        ("_Z9transposePfS_ii", KernelName("transpose")),
        ("_ZN12_GLOBAL__N_14normE", KernelName("norm")),
        ("_Z", KernelName("_Z")),
        ("kernel_cutlass_rmsnorm_object_at__tensorptr_gemm", KernelName("kernel_cutlass_rmsnorm")),
        ("fast$241", KernelName("fast")),
        ("", KernelName("")),
    ],
)
def test_parts_of_names(name: str, expected: KernelName) -> None:
    assert parsed(name) == expected


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("LayerNorm", ("layer", "norm", "layernorm")),
        ("layer_norm", ("layer", "norm", "layernorm")),
        ("RMSNorm2d", ("rms", "norm", "2d", "rmsnorm", "norm2d", "rmsnorm2d")),
        ("copy_no_cast", ("copy",)),
        ("w8a8", ("w8a8",)),
        ("", ()),
    ],
)
def test_words_of_identifiers(identifier: str, expected: tuple[str, ...]) -> None:
    assert words(identifier) == expected


@pytest.mark.parametrize(
    ("name", "avoids", "is_vector"),
    [
        ("volta_sgemm_128x64_tn", True, False),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6>(int)", True, False),
        ("void cudnn::cnn::wgrad_alg0_engine<__half, 128, 6>(int)", False, False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", False, False),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>(int)", True, True),
        ("std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>(int)", True, True),
        ("void at::native::vectorized_elementwise_kernel<4>", False, False),
    ],
)
def test_matrix_products_without_tensor_cores(name: str, avoids: bool, is_vector: bool) -> None:
    assert avoids_tensor_cores(name) is avoids
    assert multiplies_vectors(name) is is_vector


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
        # What runs any function is named after the one that it runs.
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X>>>(P)",
            "cutlass::device_kernel<FlashAttnFwdSm90>",
        ),
        ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<X>>(K)", "ck_tile::kentry<FmhaFwdKernel>"),
        ("void cutlass::Kernel2<Anything>(P)", "cutlass::Kernel2"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("Mem" + "x" * 100, "Mem" + "x" * 77),
    ],
)
def test_short_names_have_no_other_arguments(name: str, short: str) -> None:
    assert short_name(name) == short
