"""Single instructions of Tensor Cores, and a GPU that executes a given one.

Idea: PTX names an instruction by its shape and types, and from these follow how many words a row of
each matrix has and how many threads execute it. `MmaSpec` says what an instruction computes; this
says how it is called. PTX is also the language that every NVIDIA driver understands, so no compiler
has to be installed, and only the assembler stands between what is written here and the hardware.
The kernel loads each thread's registers, executes the instruction and stores the registers.

Invariant: what an `Instruction` stores was chosen; what follows from it is a property. A kernel
holds one multiply instruction, once.

What is not here: Volta's m8n8k4, whose registers are laid out otherwise; Blackwell's tcgen05, which
needs memory of its own (there mma.sync is asked). FP8 by mma.sync is asked of Ada only, where it is
one instruction: for Hopper the assembler turns it into conversions and two FP16 instructions.

Source: NVIDIA PTX ISA, "Multiply-and-Accumulate Instruction: mma", "Asynchronous
Multiply-and-Accumulate: wgmma", "Matrix descriptor format"; CUDA driver API, cuModuleLoadData and
cuLaunchKernel.
"""

import ctypes
import sys
from dataclasses import dataclass

import torch

from labkit.bench.cases import stored_bytes
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

# The n of every instruction here.
COLUMNS = 8
PTX_NAMES = {FP32: "f32", FP16: "f16", BF16: "bf16", TF32: "tf32", E4M3: "e4m3", E5M2: "e5m2"}


@dataclass(frozen=True)
class Instruction:
    """One instruction D[m,8] = A[m,k] @ B[k,8] + C[m,8] as PTX names it.

    Attributes:
        kind: "mma.sync", which a warp executes with m = 16, or "wgmma.mma_async", which four warps
            execute with m = 64 and B in shared memory.
        operands: The format of A and B.
        result: The format of C and D, FP32 or FP16.
        k: The number of products in each sum.
        first: The lowest compute capability that has it.
        last: The highest at which it is one instruction of the hardware; None for all later ones.

    >>> Instruction("mma.sync", FP16, FP32, 16, (8, 0)).name
    'mma.sync.m16n8k16.f32.f16.f16.f32'
    """

    kind: str
    operands: Format
    result: Format
    k: int
    first: tuple[int, int]
    last: tuple[int, int] | None = None

    @property
    def grouped(self) -> bool:
        """Whether four warps execute it together."""
        return self.kind != "mma.sync"

    @property
    def m(self) -> int:
        """The rows of A."""
        return 64 if self.grouped else 16

    @property
    def threads(self) -> int:
        """The threads that execute it: a warp of 32 for each 16 rows."""
        return 2 * self.m

    @property
    def words(self) -> int:
        """The 32-bit words in a row of A, and in a column of B."""
        return self.k * stored_bytes(self.operands) // 4

    @property
    def result_words(self) -> int:
        """The 32-bit words in a row of C and D."""
        return COLUMNS * stored_bytes(self.result) // 4

    @property
    def name(self) -> str:
        """Its shape and types, as in PTX."""
        operand = PTX_NAMES[self.operands]
        result = PTX_NAMES[self.result]
        types = [result, operand, operand]
        if not self.grouped:
            types.append(result)
        return ".".join([self.kind, f"m{self.m}n{COLUMNS}k{self.k}", *types])

    def runs_on(self, capability: tuple[int, int] | None) -> bool:
        """Return whether a GPU executes it as one instruction of the hardware."""
        return (
            capability is not None
            and self.first <= capability
            and (self.last is None or capability <= self.last)
        )


INSTRUCTIONS = (
    *(Instruction("wgmma.mma_async", FP16, result, 16, (9, 0), (9, 0)) for result in (FP32, FP16)),
    Instruction("wgmma.mma_async", BF16, FP32, 16, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", TF32, FP32, 8, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", E4M3, FP32, 32, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", E5M2, FP32, 32, (9, 0), (9, 0)),
    *(Instruction("mma.sync", FP16, result, 16, (8, 0)) for result in (FP32, FP16)),
    *(Instruction("mma.sync", FP16, result, 8, (7, 5)) for result in (FP32, FP16)),
    Instruction("mma.sync", BF16, FP32, 16, (8, 0)),
    Instruction("mma.sync", TF32, FP32, 8, (8, 0)),
    Instruction("mma.sync", E4M3, FP32, 32, (8, 9), (8, 9)),
    Instruction("mma.sync", E5M2, FP32, 32, (8, 9), (8, 9)),
)


def kernel(instruction: Instruction) -> str:
    """Return the PTX of a kernel `one_mma(a, b, c, d)`.

    It loads registers, executes one instruction, and stores registers.
    """
    a = instruction.words // 2
    d = instruction.result_words // 2
    b = 0 if instruction.grouped else instruction.words // 4
    kind = "f32" if instruction.result is FP32 else "b32"
    # The oldest PTX version that knows the instruction, and the oldest target that has it.
    version = {(7, 5): "6.5", (8, 0): "7.0", (8, 9): "8.4", (9, 0): "8.0"}[instruction.first]
    target = "sm_{}{}".format(*instruction.first)
    if instruction.first == (9, 0):
        # wgmma exists on 9.0 only, which the suffix of the target states.
        target += "a"
    multiply = _wgmma(instruction) if instruction.grouped else _mma_sync(instruction, a, b, d)
    lines = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        ".visible .entry one_mma(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {",
        ".reg .b32 %i, %tile, %lane, %word, %shared, %a<4>, %b<2>;",
        f".reg .{kind} %c<4>, %d<4>;",
        ".reg .b64 %base, %at, %panel;",
        ".reg .pred %add, %mine;",
        "mov.u32 %tile, %ctaid.x;",
        "mov.u32 %lane, %tid.x;",
        f"mad.lo.u32 %i, %tile, {instruction.threads}, %lane;",
        _move("ld", "a", a, "b32"),
        *([] if instruction.grouped else [_move("ld", "b", b, "b32")]),
        _move("ld", "c", d, kind),
        *multiply,
        _move("st", "d", d, kind),
        "ret;",
        "}",
    ]
    return "\n".join(lines)


def _list(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def _move(what: str, name: str, count: int, kind: str) -> str:
    """Return PTX that loads or stores a thread's registers of one operand, adjacent in memory."""
    vector = f".v{count}" if count > 1 else ""
    registers = _list(name, count) if count > 1 else f"%{name}0"
    order = f"{registers}, [%at]" if what == "ld" else f"[%at], {registers}"
    address = f"ld.param.u64 %base, [{name}];\nmad.wide.u32 %at, %i, {4 * count}, %base;\n"
    return f"{address}{what}{vector}.{kind} {order};"


def _mma_sync(instruction: Instruction, a: int, b: int, d: int) -> list[str]:
    kind, shape, *types = instruction.name.replace("mma.sync", "mma").split(".")
    name = ".".join([kind, "sync", "aligned", shape, "row", "col", *types])
    return [f"{name} {_list('d', d)}, {_list('a', a)}, {_list('b', b)}, {_list('c', d)};"]


def _wgmma(instruction: Instruction) -> list[str]:
    """Return the instruction and what it needs: B in shared memory, its descriptor, a wait for D.

    The descriptor holds, in units of 16 bytes, where B begins and how far apart its two pieces are:
    128 bytes. (In which of the two directions that distance is meant does not matter: both fields
    hold it.)
    """
    count = instruction.result_words // 2
    kind, asynchronous, shape, *types = instruction.name.split(".")
    name = ".".join([kind, asynchronous, "sync", "aligned", shape, *types])
    move = "mov.f32" if instruction.result is FP32 else "mov.b32"
    transpose = ", 0" if instruction.operands in (FP16, BF16) else ""
    words = COLUMNS * instruction.words
    return [
        f".shared .align 128 .b32 panel[{words}];",
        f"setp.lt.u32 %mine, %lane, {words};",
        f"mad.lo.u32 %i, %tile, {words}, %lane;",
        "ld.param.u64 %base, [b];",
        "mad.wide.u32 %at, %i, 4, %base;",
        "mov.u32 %shared, panel;",
        "mad.lo.u32 %i, %lane, 4, %shared;",
        "@%mine ld.b32 %word, [%at];",
        "@%mine st.shared.b32 [%i], %word;",
        "fence.proxy.async;",
        "bar.sync 0;",
        "shr.u32 %shared, %shared, 4;",
        "cvt.u64.u32 %panel, %shared;",
        f"or.b64 %panel, %panel, {8 << 16 | 8 << 32};",
        f"mad.lo.u32 %i, %tile, {instruction.threads}, %lane;",
        *(f"{move} %d{i}, %c{i};" for i in range(count)),
        # The predicate is true, which selects D = A @ B + D.
        "setp.eq.u32 %add, %tile, %tile;",
        "wgmma.fence.sync.aligned;",
        f"{name} {_list('d', count)}, {_list('a', 4)}, %panel, %add, 1, 1{transpose};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
    ]


def launch(ptx: str, blocks: int, threads: int, tensors: list[torch.Tensor]) -> None:
    """Hand a kernel to the driver and run it on tensors of the current GPU."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    module = ctypes.c_void_p()
    function = ctypes.c_void_p()
    addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in tensors]
    pointers = (ctypes.c_void_p * len(addresses))(
        *(ctypes.addressof(address) for address in addresses)
    )
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(driver, driver.cuModuleLoadData(ctypes.byref(module), ptx.encode() + b"\0"))
    _check(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, b"one_mma"))
    _check(
        driver,
        driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None),
    )
    torch.cuda.synchronize()
    _check(driver, driver.cuModuleUnload(module))


def _check(driver: ctypes.CDLL, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"unknown").decode()
        raise RuntimeError(f"the GPU's driver refused: {reason} (error {status})")
