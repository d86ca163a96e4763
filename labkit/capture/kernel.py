"""How is a GPU made to execute one given instruction? By a kernel written in PTX, and the driver that translates it.

Idea: PTX is the language that every NVIDIA driver understands, so no compiler has to be installed, and nothing stands
between what is written here and what the hardware is told but the assembler. The kernel loads each thread's registers,
executes the instruction and stores the registers.

Invariant: a kernel holds one multiply instruction, once.

Source: NVIDIA PTX ISA, "mma", "wgmma.mma_async", "Matrix descriptor format"; CUDA driver API, cuModuleLoadData and
cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
import sys

import torch

from labkit.capture.instructions import COLUMNS, Instruction
from labkit.formats import BF16, FP16, FP32


def kernel(instruction: Instruction) -> str:
    """Return the PTX of a kernel `one_mma(a, b, c, d)`: load registers, one instruction, store registers."""
    a, d = instruction.words // 2, instruction.result_words // 2
    b = 0 if instruction.grouped else instruction.words // 4
    kind = "f32" if instruction.result is FP32 else "b32"
    multiply = _wgmma(instruction) if instruction.grouped else _mma_sync(instruction, a, b, d)
    return "\n".join(
        [
            *_header(instruction.first),
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
    )


def _header(first: tuple[int, int]) -> list[str]:
    """Return the oldest PTX version that knows the instruction, and the oldest target that has it."""
    version = {(7, 5): "6.5", (8, 0): "7.0", (8, 9): "8.4", (9, 0): "8.0"}[first]
    suffix = "a" if first == (9, 0) else ""  # wgmma is a feature of 9.0 alone
    return [f".version {version}", f".target sm_{first[0]}{first[1]}{suffix}", ".address_size 64"]


def _list(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def _move(what: str, name: str, count: int, kind: str) -> str:
    """Return PTX that loads (or stores) a thread's registers of one operand, which lie side by side in memory."""
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
    """Return the instruction and its surroundings: B into shared memory, its descriptor, and waiting for D.

    The descriptor holds, in units of 16 bytes, where B begins and how far apart its two pieces are: 128 bytes. (In
    which of the two directions that distance is meant does not matter: both fields hold it.)
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
        "setp.eq.u32 %add, %tile, %tile;",  # true: D = A @ B + D
        "wgmma.fence.sync.aligned;",
        f"{name} {_list('d', count)}, {_list('a', 4)}, %panel, %add, 1, 1{transpose};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
    ]


def launch(ptx: str, blocks: int, threads: int, tensors: list[torch.Tensor]) -> None:
    """Hand a kernel to the driver and run it on tensors of the current GPU."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in tensors]
    pointers = (ctypes.c_void_p * len(addresses))(*(ctypes.addressof(address) for address in addresses))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(driver, driver.cuModuleLoadData(ctypes.byref(module), ptx.encode() + b"\0"))
    _check(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, b"one_mma"))
    _check(driver, driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None))
    torch.cuda.synchronize()
    _check(driver, driver.cuModuleUnload(module))


def _check(driver: ctypes.CDLL, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        said = (text.value or b"unknown").decode()
        raise RuntimeError(f"the GPU's driver refused: {said} (error {status})")
