"""The comparisons of `fastcore.test` in `labkit.frameworks.fastai`."""

import numpy as np
import pytest

from labkit.frameworks.fastai import test_utils as checks
from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import torch

pytestmark = pytest.mark.usefixtures("same_numbers")


@pytest.mark.parametrize("other", [None, "1.0", {"a": 1}], ids=["None", "text", "dict"])
def test_a_tensor_differs_from_what_is_no_number(other):
    checks.test_ne(torch.ones(1), other)
    with pytest.raises(AssertionError):
        checks.test_eq(torch.ones(1), other)


@pytest.mark.parametrize(
    ("one", "other", "eps"), [(2.0**24, 2.0**24 + 1, 1e-5), (1.0, 1 + 5e-9, 1e-9)]
)
def test_numbers_that_fp32_makes_equal_are_not_close(one, other, eps):
    with pytest.raises(AssertionError):
        checks.test_close(one, other, eps=eps)


def test_arrays_without_dimensions_are_compared():
    checks.test_eq(np.array(1.0), np.array(1.0))
    checks.test_close(np.array(1.0), np.array(1.0 + 1e-7))
    checks.test_ne(np.array(1.0), np.array(2.0))
