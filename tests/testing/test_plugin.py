"""The plugin of pytest: what it prints about a test that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.test_tolerance_command import ROOT

# A file of tests: the first passes, the second fails by the lab's assertion, the third by another.
TEST = """
import torch
from labkit.testing import assert_explained

a, b = torch.ones(4, 64).half(), torch.full((64, 4), 0.5).half()

def test_right(explained):
    explained((a.float() @ b.float()).half(), a, b)

def test_wrong():
    got = (a[:, 1:].float() @ b[1:].float()).half()
    assert_explained(got, a, b)

def test_other():
    assert 1 == 2
"""


@pytest.fixture(scope="module")
def output_of_the_plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints for the file of tests with the plugin."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_kernel.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plugins = ["-p", "labkit.testing.plugin", "-p", "no:cacheprovider"]
    return run_pytest(folder, *plugins)


def run_pytest(folder: Path, *options: str) -> str:
    """Return what pytest prints for a folder of tests."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout


def test_the_plugin_shows_the_line_and_the_verdict(output_of_the_plugin: str) -> None:
    failure = (
        "test_kernel.py:12: assert_explained(got, a, b)\n\n"
        "cannot be rounding: matmul [4, 64] @ [64, 4]"
    )
    assert failure in output_of_the_plugin


def test_the_plugin_provides_the_fixture(output_of_the_plugin: str) -> None:
    """The test that uses it is the one that passes."""
    assert "2 failed, 1 passed" in output_of_the_plugin


def test_the_plugin_hides_the_frames_of_the_package(output_of_the_plugin: str) -> None:
    assert "def assert_explained" not in output_of_the_plugin


BASE = """
import torch
from labkit.testing import assert_explained

class Kernel:
    def test_product(self):
        ones = torch.ones(2, 2)
        assert_explained(ones, ones, ones)
"""


def test_the_plugin_shows_the_line_of_an_inherited_test(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(BASE, encoding="utf-8")
    test = "from kernel import Kernel\n\n\nclass TestKernel(Kernel):\n    pass\n"
    (tmp_path / "test_kernel.py").write_text(test, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    printed = run_pytest(tmp_path, "-p", "labkit.testing.plugin", "-p", "no:cacheprovider")
    assert "\nkernel.py:8: assert_explained(ones, ones, ones)\n" in printed


LISTED = "\ntest_kernel.py::test_wrong: cannot be rounding; "


def test_the_plugin_lists_unexplained_differences(output_of_the_plugin: str) -> None:
    *_, summary = output_of_the_plugin.partition("differences that rounding does not explain")
    assert LISTED in summary


@pytest.mark.slow
def test_the_plugin_lists_the_failures_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_kernel.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    output = run_pytest(tmp_path, "-p", "labkit.testing.plugin", "-n", "1")
    assert LISTED in output


def test_the_plugin_leaves_other_failures_as_they_are(output_of_the_plugin: str) -> None:
    assert "assert 1 == 2" in output_of_the_plugin
