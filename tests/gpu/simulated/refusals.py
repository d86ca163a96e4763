"""What CUDA refuses and the CPU takes, as rows.

A row is an operation that works on the CPU and raises on a real card, in torch's words. `example` shows it: it runs
with a device and raises for "cuda". Where the CPU's kernel below the simulated card would take the arguments,
`operations` and `dtypes` say when to refuse: when each named argument has its dtype. The other rows follow from torch
itself, or from the rules of devices in `cpp/operations.cpp`.

To add a refusal that a real card has reported: write its row, with the card and torch's version in `source`.
`tests/gpu/test_refusals.py` runs each row on the CPU and on the simulated card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Rule = tuple[str, list[tuple[str, str]], str]  # operation, dtypes of arguments by name, torch's words


@dataclass(frozen=True)
class Refusal:
    """A refusal: a name, an example (Python, with `torch`, `F` and `device`), torch's words, where they were read."""

    name: str
    example: str
    words: str
    source: str
    operations: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (0, 0)  # the compute capabilities of the cards that refuse: from this one
    below: tuple[int, int] = (99, 0)  # up to this one, without it

    def holds_for(self, capability: tuple[int, int]) -> bool:
        """Return whether a card of this compute capability refuses."""
        return self.since <= capability < self.below

    def rules(self) -> Iterator[Rule]:
        """Give what the simulated card must be told, for each operation."""
        for operation in self.operations:
            yield f"aten::{operation}", list(self.dtypes.items()), self.words


def _norm(kind: str, example: str, operation: str, source: str) -> Iterator[Refusal]:
    """Give the rows of a norm whose weights must have its input's dtype: a CUDA kernel reads them as `const T*`."""
    names = {"Half": "torch.half", "BFloat16": "torch.bfloat16", "Float": "torch.float32"}
    for input_dtype, weight_dtype in [("Half", "Float"), ("BFloat16", "Float")]:
        yield Refusal(
            name=f"{kind} of {input_dtype} with weights of {weight_dtype}",
            example=example.format(x=names[input_dtype], w=names[weight_dtype]),
            words=f"expected scalar type {input_dtype} but found {weight_dtype}",
            source=source,
            operations=(operation,),
            dtypes={"input": input_dtype, "weight": weight_dtype},
        )


def _no_kernel(
    operation: str, argument: str, dtypes: str, example: str, source: str, kernel: str, words: str = ""
) -> Iterator[Refusal]:
    """Give a row for each dtype that a CUDA kernel is not compiled for; `{t}` in the example is a tensor's dtype."""
    for dtype in dtypes.split():
        name, typed = operation.partition(" ")[0], f"device=device, dtype=torch.{TORCH_NAMES[dtype]}"
        yield Refusal(
            name=f"{name} of {dtype}",
            example=example.replace("{t}", typed),
            words=words or f"\"{kernel}\" not implemented for '{dtype}'",
            source=source,
            operations=tuple(operation.split()),
            dtypes={argument: dtype},
        )


TORCH_NAMES = {
    "Half": "half", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32",
    "Long": "int64",
}  # fmt: skip
INTEGERS = "Byte Char Short Int Long"
SOURCES = "aten/src/ATen/native/cuda"
ON_TWO_DEVICES = "is on cpu, different from other tensors on cuda:0"

REFUSALS: tuple[Refusal, ...] = (
    *_norm(
        "layer_norm",
        "F.layer_norm(torch.ones(2, 4, device=device, dtype={x}), (4,), torch.ones(4, device=device, dtype={w}))",
        "native_layer_norm",
        "aten/src/ATen/native/cuda/layer_norm_kernel.cu, LayerNormKernelImpl; pytorch#135969, apex#1635",
    ),
    *_norm(
        "group_norm",
        "F.group_norm(torch.ones(2, 4, device=device, dtype={x}), 2, torch.ones(4, device=device, dtype={w}))",
        "native_group_norm",
        "aten/src/ATen/native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal; pytorch#135969",
    ),
    # ---- dtypes for which there is no kernel; torch.testing's OpInfo (dtypes, dtypesIfCUDA) lists the same ones
    *_no_kernel(
        "igamma",
        "self",
        "Half BFloat16",
        "torch.igamma(torch.ones(2, {t}), torch.ones(2, {t}))",
        f"{SOURCES}/IGammaKernel.cu, igamma_kernel_cuda",
        "igamma_cuda",
    ),
    *_no_kernel(
        "igammac",
        "self",
        "Half BFloat16",
        "torch.igammac(torch.ones(2, {t}), torch.ones(2, {t}))",
        f"{SOURCES}/IGammaKernel.cu, igammac_kernel_cuda",
        "igammac_cuda",
    ),
    *_no_kernel(
        "angle",
        "self",
        "Half BFloat16",
        "torch.angle(torch.ones(2, {t}))",
        f"{SOURCES}/UnaryComplexKernels.cu, angle_kernel_cuda",
        "angle_cuda",
    ),
    *_no_kernel(
        "histc",
        "self",
        "Half",
        "torch.histc(torch.ones(2, {t}), 2)",
        f"{SOURCES}/SummaryOps.cu, _histc_cuda",
        "histc",
        words="HalfTensor is not supported",
    ),
    *_no_kernel(
        "histc",
        "self",
        "BFloat16",
        "torch.histc(torch.ones(2, {t}), 2)",
        f"{SOURCES}/SummaryOps.cu, _histc_cuda",
        "histc",
    ),
    *_no_kernel(
        "mm",
        "self",
        INTEGERS,
        "torch.mm(torch.ones(2, 2, {t}), torch.ones(2, 2, {t}))",
        f"{SOURCES}/Blas.cpp, addmm_out_cuda_impl",
        "addmm_cuda",
    ),
    *_no_kernel(
        "addmm addmm_",
        "mat1",
        INTEGERS,
        "torch.addmm(torch.ones(2, {t}), torch.ones(2, 2, {t}), torch.ones(2, 2, {t}))",
        f"{SOURCES}/Blas.cpp, addmm_out_cuda_impl",
        "addmm_cuda",
    ),
    *_no_kernel(
        "bmm",
        "self",
        INTEGERS,
        "torch.bmm(torch.ones(1, 2, 2, {t}), torch.ones(1, 2, 2, {t}))",
        f"{SOURCES}/Blas.cpp, baddbmm_out_cuda_impl",
        "baddbmm_cuda",
    ),
    *_no_kernel(
        "baddbmm baddbmm_ addbmm addbmm_",
        "batch1",
        INTEGERS,
        "torch.baddbmm(torch.ones(1, 2, 2, {t}), torch.ones(1, 2, 2, {t}), torch.ones(1, 2, 2, {t}))",
        f"{SOURCES}/Blas.cpp, baddbmm_out_cuda_impl",
        "baddbmm_cuda",
    ),
    *_no_kernel(
        "addmv addmv_",
        "mat",
        INTEGERS,
        "torch.mv(torch.ones(2, 2, {t}), torch.ones(2, {t}))",
        f"{SOURCES}/Blas.cpp, addmv_out_cuda",
        "addmv_impl_cuda",
    ),
    *_no_kernel(
        "dot",
        "self",
        INTEGERS,
        "torch.dot(torch.ones(2, {t}), torch.ones(2, {t}))",
        f"{SOURCES}/Blas.cpp, dot_cuda",
        "dot",
    ),
    *_no_kernel(
        "vdot",
        "self",
        INTEGERS,
        "torch.vdot(torch.ones(2, {t}), torch.ones(2, {t}))",
        f"{SOURCES}/Blas.cpp, vdot_cuda",
        "dot",
    ),
    Refusal(
        name="histogram",
        example="torch.histogram(torch.ones(2, device=device), 2)",
        words="Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend. It is not implemented.",
        source="aten/src/ATen/native/native_functions.yaml: histogram has a kernel for the CPU alone",
        operations=(
            "histogram",
            "_histogramdd_bin_edges",
            "_histogramdd_from_bin_cts",
            "_histogramdd_from_bin_tensors",
        ),
    ),
    Refusal(
        name="FP8 product on a card without FP8",
        example="x, one = torch.ones(16, 16, device=device), torch.ones((), device=device); torch._scaled_mm("
        "x.to(torch.float8_e4m3fn), x.to(torch.float8_e4m3fn).t(), scale_a=one, scale_b=one, out_dtype=torch.float32)",
        words="torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9",
        source=f"{SOURCES}/ScaledBlas.cpp, _scaled_mm_out_cuda",
        operations=("_scaled_mm",),
        below=(8, 9),
    ),
    Refusal(
        name="FP8 product of two E5M2",
        example="x, one = torch.ones(16, 16, device=device), torch.ones((), device=device); torch._scaled_mm("
        "x.to(torch.float8_e5m2), x.to(torch.float8_e5m2).t(), scale_a=one, scale_b=one, out_dtype=torch.float32)",
        words="Multiplication of two Float8_e5m2 matrices is not supported",
        source=f"{SOURCES}/ScaledBlas.cpp, _scaled_mm_out_cuda",
        operations=("_scaled_mm",),
        dtypes={"self": "Float8_e5m2", "mat2": "Float8_e5m2"},
        since=(8, 9),
    ),
    # ---- devices
    Refusal(
        name="numpy() of a tensor on the card",
        example="torch.ones(2, device=device).numpy()",
        words="can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory",
        source="torch/csrc/utils/tensor_numpy.cpp, tensor_to_numpy",
    ),
    Refusal(
        name="addition across devices",
        example="torch.ones(2, device=device) + torch.ones(2)",
        words="Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        source="aten/src/ATen/TensorIterator.cpp, compute_types",
    ),
    Refusal(
        name="a number on the CPU, changed by a tensor on the card",
        example="torch.ones(()).add_(torch.ones((), device=device))",
        words="Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        source="aten/src/ATen/TensorIterator.cpp, compute_types",
    ),
    Refusal(
        name="product across devices",
        example="torch.ones(2, 2, device=device) @ torch.ones(2, 2)",
        words=ON_TWO_DEVICES,
        source="aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure",
    ),
    Refusal(
        name="linear layer on the CPU, batch on the card",
        example="torch.nn.Linear(2, 2)(torch.ones(1, 2, device=device))",
        words=ON_TWO_DEVICES,
        source="aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure",
    ),
    Refusal(
        name="embedding of indices on the CPU",
        example="F.embedding(torch.zeros(2, dtype=torch.long), torch.ones(3, 2, device=device))",
        words=ON_TWO_DEVICES,
        source="aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure",
    ),
    Refusal(
        name="cross_entropy of targets on the CPU",
        example="F.cross_entropy(torch.ones(2, 3, device=device), torch.zeros(2, dtype=torch.long))",
        words=ON_TWO_DEVICES,
        source="aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure",
    ),
    Refusal(
        name="concatenation across devices",
        example="torch.cat([torch.ones(2, device=device), torch.ones(2)])",
        words=ON_TWO_DEVICES,
        source="aten/src/ATen/core/op_registration/adaption.cpp, common_device_check_failure",
    ),
    Refusal(
        name="tensor on the CPU, indexed by one on the card",
        example="torch.ones(2)[torch.zeros(1, dtype=torch.long, device=device)]",
        words="indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        source="aten/src/ATen/native/IndexingUtils.h",
    ),
    # ---- random numbers
    Refusal(
        name="a CPU's generator for a tensor on the card",
        example="torch.rand(2, device=device, generator=torch.Generator())",
        words="Expected a 'cuda' device type for generator but found 'cpu'",
        source="aten/src/ATen/core/Generator.h, check_generator",
    ),
    Refusal(
        name="a card's generator for a tensor on the CPU",
        example="torch.rand(2, generator=torch.Generator(device))",
        words="Expected a 'cpu' device type for generator but found 'cuda'",
        source="aten/src/ATen/core/Generator.h, check_generator",
    ),
    Refusal(
        name="a CPU's random state for the card's generator",
        example="torch.Generator(device).set_state(torch.Generator().get_state())",
        words="RNG state is wrong size",
        source="aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, set_state",
    ),
)
