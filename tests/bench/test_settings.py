"""Settings of torch during a case, which are restored after it."""

import pytest
import torch

from labkit.bench import GemmCase, run_case
from labkit.bench.timing import settings
from labkit.formats import FP16, TF32
from tests.bench.test_timing import SMALL


def precision_settings():
    matmul = torch.backends.cuda.matmul
    return {
        "precision": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": torch.backends.cudnn.allow_tf32,
        "reduced precision": matmul.allow_fp16_reduced_precision_reduction,
        "FP16 accumulation": matmul.allow_fp16_accumulation,
    }


def fail_in_tf32():
    with settings(GemmCase(1, 1, 1, TF32)):
        raise KeyError


def test_tf32_is_allowed_for_cases_of_tf32():
    with settings(GemmCase(1, 1, 1, TF32)):
        assert precision_settings() == {
            "precision": "high",
            "TF32 in convolutions": True,
            "reduced precision": False,
            "FP16 accumulation": False,
        }


def test_reduced_accumulation_is_allowed_for_reduced_cases():
    with settings(GemmCase(1, 1, 1, FP16, reduced=True)):
        assert precision_settings() == {
            "precision": "highest",
            "TF32 in convolutions": False,
            "reduced precision": True,
            "FP16 accumulation": True,
        }


def test_settings_are_restored_after_an_error():
    before = precision_settings()
    with pytest.raises(KeyError):
        fail_in_tf32()
    assert precision_settings() == before


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    run_case(SMALL[0], rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before
