"""Kernels that are forked from one process, in `tests.kernels`."""

import sys

import pytest
from jupyter_client.manager import run_kernel

from tests.slowness import slowness

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")


@pytest.mark.usefixtures("preloaded_kernels")
def test_a_kernel_has_a_large_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARGE", 100_000 * "x")
    limit = 60 * slowness()
    with run_kernel(kernel_name="python3", startup_timeout=limit) as client:
        question = {"length": "len(__import__('os').environ['LARGE'])"}
        reply = client.execute_interactive("", user_expressions=question, timeout=limit)
    answer = reply["content"]["user_expressions"]["length"]
    assert answer["data"]["text/plain"] == "100000"
