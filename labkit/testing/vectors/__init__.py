"""Conformance vectors: inputs that tell correct kernels from those with known mistakes.

They cover rounding, block formats and Tensor Cores.

Idea: a file has inputs, the right answers, and the rule that each row tests. Someone who writes a
kernel stores answers of their own under the same names; `check` names the rules that are broken,
and the known mistake that gives exactly these answers, if there is one.

Rows of a format hold x and codes. Those of a block format hold x, scales and elements, and for
decoding given_scales, given_elements and values. Those of a GPU hold a, b, c and d, of its FP16
instruction with FP32 results. Any NaN counts as NaN.

Where standards leave a choice, every choice is right: `conventions` names the one that answers
made, and its source. The scale of a block of zeros is such a choice.

Invariant: answers are those of `labkit.formats` and `labkit.gemm`. Each known mistake breaks a rule
at least, and no other known mistake gives the same answers.

Source: IEEE 754-2019 4.3; OCP OFP8 1.0 5.2; OCP Microscaling (MX) 1.0 5.3, 6.3; NVIDIA, Introducing
NVFP4; arXiv:2511.10909.
"""

from labkit.testing.vectors.checking import (
    NAMES,
    check,
    check_file,
    conventions,
    known_mistakes,
    listed_name,
    read,
    save,
    vectors,
)

__all__ = [
    "NAMES",
    "check",
    "check_file",
    "conventions",
    "known_mistakes",
    "listed_name",
    "read",
    "save",
    "vectors",
]
