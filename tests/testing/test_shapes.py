"""Shapes and dimensions of compared results, which are torch's."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import testing
from labkit.testing import VerdictKind, compare, matmul, softmax, sum_over
from tests.testing.test_compare import normal

SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((7, 1, 4, 5), (2, 5, 3)),
    ((2, 0, 5), (5, 3)),
    ((2, 3, 0), (0, 4)),
]
each_pair_of_shapes = pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
Shape = tuple[int, ...]


@each_pair_of_shapes
def test_shapes_are_those_of_torch(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    product = torch.matmul(a, b)
    operation = matmul(a, b)
    assert operation.value.shape == product.shape
    assert compare(product, operation)


@each_pair_of_shapes
def test_arrays_of_numpy_are_compared_like_tensors(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    assert compare(torch.matmul(a, b).numpy(), matmul(a.numpy(), b.numpy()))


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [pair for pair in SHAPES if 0 not in pair[0] + pair[1]]
)
def test_the_worst_element_is_named_by_its_index(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    product = torch.matmul(a, b)
    product.reshape(-1)[-1] += 1
    worst = compare(product, matmul(a, b)).worst
    assert worst is not None
    assert worst.index == tuple(size - 1 for size in product.shape)


X = normal(4, 30, 7)


@pytest.mark.parametrize(
    ("got", "operation"),
    [
        (torch.softmax(X, 0), softmax(X, 0)),
        (torch.softmax(X, 1), softmax(X, 1)),
        (X.amax((1, 2)), testing.amax(X, (1, 2))),
        (X.sum(), sum_over(X)),
        (X.sum((0, 2)), sum_over(X, (0, 2))),
        (X.mean(-1), testing.mean(X, -1)),
    ],
    ids=["softmax 0", "softmax 1", "amax", "sum of all", "sum", "mean"],
)
def test_dimensions_are_those_of_torch(got: Tensor, operation: testing.Operation) -> None:
    assert compare(got, operation)
    assert not compare(got + 1e-3, operation)


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SETTINGS = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
each_number_of_dimensions = pytest.mark.parametrize("dimensions", CONVOLUTIONS)


def images_and_weights(dimensions: int) -> tuple[Tensor, Tensor]:
    """Return two images of 6 channels, and the weights of 8 windows over 3 of them."""
    images = normal(2, 6, *[9] * dimensions)
    weights = normal(8, 3, *[3] * dimensions, seed=1)
    return images, weights


@each_number_of_dimensions
def test_convolutions_with_a_bias_are_those_of_torch(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    bias = normal(8, seed=2)
    got = CONVOLUTIONS[dimensions](x, weight, bias, **SETTINGS)
    assert compare(got, testing.convolution(x, weight, bias, **SETTINGS))


@each_number_of_dimensions
def test_convolutions_without_a_bias_are_those_of_torch(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    got = CONVOLUTIONS[dimensions](x, weight, None, **SETTINGS)
    verdict = compare(got, testing.convolution(x, weight, None, **SETTINGS))
    assert verdict.kind is VerdictKind.ROUNDING


@each_number_of_dimensions
def test_a_convolution_without_a_channel_is_impossible(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    without_channel = torch.cat([weight[:, :2], weight[:, 2:] * 0], 1)
    got = CONVOLUTIONS[dimensions](x, without_channel, None, **SETTINGS)
    verdict = compare(got, testing.convolution(x, weight, None, **SETTINGS))
    assert verdict.kind is VerdictKind.IMPOSSIBLE
