"""What a learner returns is written down as plain JSON, and only what can be read back from that is ever compared."""

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.grading.sandbox.wire import Failure, Instance, Opaque, dump, load


def test_plain_values_come_back_as_they_went() -> None:
    numbers = (0, -(10**30), 0.1, 2.0**-1074, math.inf)
    for value in (*numbers, None, True, False, "scale", [], [1, [2.0, None]], (1, "a"), {"a": 8.0}):
        back = load(json.loads(json.dumps(dump(value))))
        assert back == value
        assert type(back) is type(value)
    assert math.isnan(load(dump(math.nan)))  # type: ignore[arg-type]
    assert load(dump(Failure("error", "it stopped", "line 2"))) == Failure("error", "it stopped", "line 2")


def test_tensors_come_back_with_type_shape_and_every_bit() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int64)
    matrix = torch.arange(6.0).reshape(2, 3)
    lazy = torch.tensor([1 + 2j]).conj().imag  # torch keeps a bit that says "negated"
    assert lazy.is_neg()
    views = [matrix.T, matrix[:, 1], torch.arange(6.0)[4::2], lazy, torch.nn.Parameter(torch.ones(2)).detach()]
    shaped = [torch.arange(math.prod(n)).reshape(n).to(dtype) for n in ((), (0,), (3,), (2, 3)) for dtype in dtypes]
    for tensor in (*views, *shaped):
        back = load(dump(tensor))
        assert isinstance(back, torch.Tensor)
        assert back.dtype is tensor.dtype
        assert torch.equal(back, tensor)
    assert torch.equal(load(dump(torch.nn.Parameter(torch.ones(2)))), torch.ones(2))  # type: ignore[arg-type]


def test_numpy_arrays_and_scalars_travel() -> None:
    array = np.array([[1.5, -0.0]], dtype=np.float16)
    back = load(dump(array))
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.tobytes()) == (np.float16, array.tobytes())
    assert load(dump(np.float32(0.5))) == 0.5


def test_sizes_and_decimals_travel_as_tuples_and_floats() -> None:
    assert load(dump(torch.ones(2, 3).shape)) == (2, 3)
    assert load(dump([Decimal("0.375"), Decimal(7)])) == [0.375, 7.0]
    assert isinstance(load(dump(Decimal("sNaN"))), Opaque)


def test_a_dataclass_of_labkit_travels_as_its_fields() -> None:
    fields = {"scale": 8.0, "growth_tracker": 3, "hysteresis_tracker": 1}
    assert load(dump(ScalerState(8.0, 3, 1))) == Instance("ScalerState", fields)


class Yes:
    """Says yes to everything, and would raise if anybody asked for its fields."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("who asks?")


YesFloat, YesState = (type(f"Yes{kind.__name__}", (kind,), dict(vars(Yes))) for kind in (float, ScalerState))


class YesTensor(torch.Tensor):
    def __eq__(self, other: object) -> Any:
        return True


def test_nothing_is_left_of_an_object_with_a_mind_of_its_own() -> None:
    for value in (Yes(), YesFloat(1.0), torch.ones(1).as_subclass(YesTensor), YesState(1.0), float):
        assert isinstance(load(dump(value)), Opaque)
        assert load(dump([value])) == [load(dump(value))]


def test_a_class_of_the_same_name_is_not_ours() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "import dataclasses\n@dataclasses.dataclass\nclass ScalerState:\n    scale: float\n"
        "ScalerState.__module__ = 'labkit.amp.loss_scaling.scaler'",
        namespace,
    )
    assert isinstance(load(dump(namespace["ScalerState"](8.0))), Opaque)


def test_what_has_no_end_or_no_memory_is_cut_off() -> None:
    endless: list[object] = []
    endless += [endless, endless]
    assert isinstance(load(dump(endless)), Opaque)
    assert isinstance(load(dump(torch.zeros(1).expand(10**12))), Opaque)
    assert isinstance(load(dump(10**5000)), Opaque)
    assert isinstance(load(dump(torch.ones(2).to_sparse())), Opaque)


def test_what_dump_did_not_write_is_refused() -> None:
    tensors = ['["tensor", "float32", [2], "AAAA"]', '["tensor", "float32", [-3], "AAAAAA=="]']
    objects = ['["__import__", "os"]', '["array", "O", [1], "AAAAAAAAAAA="]', '["instance", "ScalerState", 5]']
    for text in ("null", "[]", "7", '["int", "x"]', '["failure"]', "[" * 900 + "]" * 900, *tensors, *objects):
        with pytest.raises(ValueError, match="not an answer written by dump"):
            load(json.loads(text))
