"""labkit's GradScaler beside torch.amp's.

Its interface and its states are torch's, 10,000 random steps have the same bits, cases of PyTorch's
own tests pass, and in a few cases it differs from torch's on purpose.
"""

import copy
import inspect
import math
import pickle
import random
import warnings
from collections import namedtuple
from functools import partial

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import OptState

from labkit.amp import ScalerConfig, ScalerState, static
from labkit.frameworks import GradScaler, from_state_dict, state_dict
from tests.amp.distributed.ranks import launch
from tests.frameworks.refusals import assert_refused_in_torchs_words

TORCHS = torch.amp.GradScaler


@pytest.fixture(params=[TORCHS, GradScaler], ids=["torchs", "ours"])
def make_scaler(request):
    """Run a test twice: torch's GradScaler must pass what ours must pass."""
    return partial(request.param, "cpu")


def signature(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_scaler_has_the_interface_of_torchs():
    """Public methods and those with an underscore, which libraries call and override."""
    methods = [name for name, member in vars(TORCHS).items() if inspect.isfunction(member)]
    for name in methods:
        assert signature(getattr(GradScaler, name)) == signature(getattr(TORCHS, name)), name


def test_a_new_scaler_has_the_attributes_of_torchs():
    torchs = vars(TORCHS("cpu"))
    ours = vars(GradScaler("cpu"))
    assert {name: ours[name] for name in torchs} == torchs


@pytest.mark.parametrize("name", ["_scale", "_growth_tracker"])
def test_the_tensors_of_a_scaler_are_like_torchs(name):
    torchs = getattr(ready(TORCHS), name)
    ours = getattr(ready(), name)
    assert ours.dtype == torchs.dtype
    assert ours.shape == torchs.shape


def test_isinstance_checks_of_libraries_hold():
    assert isinstance(GradScaler("cpu"), torch.amp.GradScaler)


@pytest.mark.parametrize("method", ["scale", "unscale_", "step", "update", "_unscale_grads_"])
def test_method_with_a_rule_is_not_torchs(method):
    assert getattr(GradScaler, method) is not getattr(TORCHS, method)


def weight_and_optimizer(gradient=1.0, dtype=torch.float32, **knobs):
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    weight.grad = torch.full_like(weight, gradient)
    return weight, torch.optim.SGD([weight], lr=1.0, **knobs)


def ready(scaler_class=GradScaler, **knobs):
    scaler = scaler_class("cpu", **knobs)
    scaler.scale(torch.ones(1))
    return scaler


# Name -> a misuse of a scaler that has scaled a loss already.
MISUSES = {
    "growth factor of 1": lambda make, scaler, optimizer: make("cpu", growth_factor=1.0),
    "backoff factor of 1": lambda make, scaler, optimizer: make("cpu", backoff_factor=1.0),
    "unscale_ before scale": lambda make, scaler, optimizer: make("cpu").unscale_(optimizer),
    "step before scale": lambda make, scaler, optimizer: make("cpu").step(optimizer),
    "update before scale": lambda make, scaler, optimizer: make("cpu").update(),
    "new scale before scale": lambda make, scaler, optimizer: make("cpu").update(8.0),
    "update before step": lambda make, scaler, optimizer: scaler.update(),
    "unscale_ twice": lambda make, scaler, optimizer: [
        scaler.unscale_(optimizer),
        scaler.unscale_(optimizer),
    ],
    "unscale_ after step": lambda make, scaler, optimizer: [
        scaler.step(optimizer),
        scaler.unscale_(optimizer),
    ],
    "step twice": lambda make, scaler, optimizer: [scaler.step(optimizer), scaler.step(optimizer)],
    "closure": lambda make, scaler, optimizer: scaler.step(optimizer, closure=None),
    "FP16 gradients": lambda make, scaler, optimizer: scaler.step(
        weight_and_optimizer(dtype=torch.float16)[1]
    ),
    "a number": lambda make, scaler, optimizer: scaler.scale(1.0),
    "two new scales": lambda make, scaler, optimizer: scaler.update(torch.ones(2)),
    "new scale with requires_grad": lambda make, scaler, optimizer: scaler.update(
        torch.ones(1, requires_grad=True)
    ),
    "new scale elsewhere": lambda make, scaler, optimizer: scaler.update(
        torch.ones(1, device="meta")
    ),
    "empty state": lambda make, scaler, optimizer: scaler.load_state_dict({}),
    "pickled in mid-step": lambda make, scaler, optimizer: [
        scaler.unscale_(optimizer),
        pickle.dumps(scaler),
    ],
    "copied in mid-step": lambda make, scaler, optimizer: [
        scaler.unscale_(optimizer),
        copy.deepcopy(scaler),
    ],
    "made twice": lambda make, scaler, optimizer: scaler._lazy_init_scale_growth_tracker(
        torch.device("cpu")
    ),
}


def test_misuses_are_refused_by_torchs_message_and_more():
    acts = {
        name: lambda make, act=act: act(make, ready(make), weight_and_optimizer()[1])
        for name, act in MISUSES.items()
    }
    assert_refused_in_torchs_words(acts, TORCHS, GradScaler)


@pytest.mark.parametrize("method", ["step", "unscale_"])
def test_a_model_in_place_of_an_optimizer_is_refused(method):
    scaler = GradScaler("cpu")
    model = nn.Linear(1, 1)
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    with pytest.raises(
        AttributeError, match="Linear has no param_groups: step and unscale_ take the optimizer"
    ):
        getattr(scaler, method)(model)


@pytest.mark.parametrize("make", [TORCHS, GradScaler], ids=["torchs", "ours"])
def test_scaler_without_cuda_warns_and_is_disabled(make, monkeypatch):
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: True)
    with pytest.warns(
        UserWarning, match="GradScaler is enabled, but CUDA is not available.  Disabling."
    ) as seen:
        assert not make().is_enabled()
    # The warning names the file that made the scaler.
    assert seen[0].filename == __file__


class TestDisabled:
    """Claim C52: enabled=False is a no-op, so one loop trains with and without a loss scale."""

    @pytest.fixture
    def scaler(self, make_scaler):
        return make_scaler(enabled=False, init_scale=4.0)

    def test_a_loss_is_not_scaled(self, scaler):
        loss = torch.ones(())
        assert scaler.scale(loss) is loss

    def test_a_gradient_is_not_unscaled(self, scaler):
        weight, optimizer = weight_and_optimizer(math.inf)
        scaler.unscale_(optimizer)
        assert weight.grad.item() == math.inf

    def test_a_step_with_inf_is_taken(self, scaler):
        weight, optimizer = weight_and_optimizer(math.inf)
        scaler.step(optimizer)
        scaler.update()
        assert weight.item() == -math.inf

    def test_the_scale_is_1(self, scaler):
        assert (scaler.get_scale(), scaler._get_growth_tracker()) == (1.0, 0)

    def test_it_has_and_loads_no_state(self, scaler):
        scaler.load_state_dict({"nonsense": 1})
        assert scaler.state_dict() == {}

    def test_a_copy_is_disabled(self, scaler):
        assert not pickle.loads(pickle.dumps(scaler)).is_enabled()


class Returning(torch.optim.SGD):
    """An optimizer whose step returns its arguments."""

    def step(self, *args, **kwargs):
        return args, kwargs


def test_step_passes_arguments_to_the_optimizer(make_scaler):
    scaler = make_scaler()
    weight, _ = weight_and_optimizer()
    scaler.scale(weight.sum())
    assert scaler.step(Returning([weight]), 1, None, two=2) == ((1, None), {"two": 2})


def test_a_skipped_step_returns_none(make_scaler):
    scaler = make_scaler()
    weight, _ = weight_and_optimizer()
    scaler.scale(weight.sum())
    weight.grad.fill_(math.nan)
    assert scaler.step(Returning([weight]), 1, two=2) is None


def test_step_of_a_disabled_scaler_passes_arguments_on(make_scaler):
    weight, _ = weight_and_optimizer()
    scaler = make_scaler(enabled=False)
    assert scaler.step(Returning([weight]), 1, two=2) == ((1,), {"two": 2})


def test_scaled_outputs_keep_their_containers(make_scaler):
    """Repeats test_grad_scaling_scale of test_cuda.py on one device.

    Every tensor in nested lists and tuples is scaled.
    """
    scaler = make_scaler(init_scale=2.0)
    four = torch.full((1,), 4.0)
    losses = type("Losses", (list,), {})([four])
    one, [pair], [last, (inner,)] = scaled = scaler.scale((four, losses, [four, (four,)]))
    assert [type(part) for part in (scaled, *scaled[1:])] == [tuple, type(losses), list]
    assert [t.item() for t in (one, pair, last, inner)] == [8.0] * 4


def test_a_generator_is_scaled_when_its_items_are_drawn(make_scaler):
    scaler = make_scaler(init_scale=2.0)
    scaled = scaler.scale(torch.ones(()) for _ in range(2))
    assert scaler._scale is None
    assert [tensor.item() for tensor in scaled] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "dtype_of_scalar"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_a_scaled_scalar_in_16_bits_is_fp32(make_scaler, dtype, dtype_of_scalar):
    assert make_scaler().scale(torch.ones(1, dtype=dtype)).dtype == dtype
    assert make_scaler().scale(torch.ones((), dtype=dtype)).dtype == dtype_of_scalar


def test_stages_of_an_optimizer_are_torchs(make_scaler):
    scaler = make_scaler()
    weight, optimizer = weight_and_optimizer()
    scaler.scale(weight.sum())

    def stage():
        return scaler._per_optimizer_states[id(optimizer)]["stage"]

    assert stage() is OptState.READY
    scaler.unscale_(optimizer)
    assert stage() is OptState.UNSCALED
    scaler.step(optimizer)
    assert stage() is OptState.STEPPED
    assert {str(d): t.item() for d, t in scaler._found_inf_per_device(optimizer).items()} == {
        "cpu": 0.0
    }
    scaler.update()
    assert stage() is OptState.READY


def scaler_after_a_step(make_scaler):
    """Return a scaler whose growth tracker is 1."""
    scaler = make_scaler()
    weight, optimizer = weight_and_optimizer()
    scaler.scale(weight.sum())
    scaler.step(optimizer)
    scaler.update()
    return scaler


@pytest.mark.parametrize("new_scale", [8.0, torch.tensor(8.0), torch.tensor(8.0).double()])
def test_a_new_scale_keeps_the_tracker(make_scaler, new_scale):
    scaler = scaler_after_a_step(make_scaler)
    scaler.update(new_scale)
    assert scaler.get_scale() == 8.0
    assert scaler._get_growth_tracker() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_new_scale_is_copied(make_scaler, dtype):
    scaler = scaler_after_a_step(make_scaler)
    new_scale = torch.tensor(8.0, dtype=dtype)
    scaler.update(new_scale)
    new_scale.fill_(3.0)
    assert scaler.get_scale() == 8.0


def set_found_inf(scaler, optimizer, value):
    """Write into the scaler's tensor, as a library does with an inf of another process."""
    scaler._found_inf_per_device(optimizer)[torch.device("cpu")].fill_(value)


# Our scaler caches the numbers in its tensors, so that the host does not wait for the device. A
# number that somebody else writes into them must be read all the same.


@pytest.mark.parametrize(
    ("scale", "tracker", "found_inf", "scale_after", "tracker_after"),
    [
        pytest.param(4.0, 3, 0.0, 4.0, 4, id="kept"),
        pytest.param(2.0, 4, 0.0, 4.0, 0, id="grown"),
        pytest.param(32.0, 0, 1.0, 16.0, 0, id="lowered"),
    ],
)
def test_numbers_written_into_its_tensors_take_effect(
    make_scaler, scale, tracker, found_inf, scale_after, tracker_after
):
    scaler = make_scaler(growth_interval=5)
    weight, optimizer = weight_and_optimizer()
    scaler.scale(weight.sum())
    assert scaler.get_scale() == 2.0**16
    scaler._scale.fill_(scale)
    scaler._growth_tracker.fill_(tracker)
    assert scaler.get_scale() == scale
    assert scaler._get_growth_tracker() == tracker
    scaler.unscale_(optimizer)
    assert weight.grad.item() == 1 / scale
    set_found_inf(scaler, optimizer, found_inf)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == scale_after
    assert scaler._get_growth_tracker() == tracker_after


def test_an_inf_that_is_written_after_the_step_lowers_the_scale(make_scaler):
    scaler = make_scaler(init_scale=4.0)
    weight, optimizer = weight_and_optimizer()
    scaler.scale(weight.sum())
    scaler.step(optimizer)
    set_found_inf(scaler, optimizer, 1.0)
    scaler.update()
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize(
    "copied",
    [lambda scaler: pickle.loads(pickle.dumps(scaler)), copy.deepcopy],
    ids=["pickle", "copy"],
)
def test_a_copy_of_a_scaler_continues(make_scaler, copied):
    scaler = scaler_after_a_step(partial(make_scaler, init_scale=8.0, growth_interval=3))
    again = copied(scaler)
    assert again.state_dict() == scaler.state_dict()
    # The next loss makes the tensors.
    assert again._scale is None
    again.scale(torch.ones(1))
    assert again._scale.item() == 8.0
    assert again._growth_tracker.item() == 1


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
def test_grad_scale_set_on_a_fused_optimizer_takes_effect(make_scaler, optimizer_class):
    weight = nn.Parameter(torch.ones(1))
    optimizer = optimizer_class([weight], lr=1.0, fused=True)
    scaler = make_scaler(init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    optimizer.grad_scale = torch.tensor(2.0)
    scaler.step(optimizer)
    # It divides by the scale of 4, and by its own factor of 2.
    assert weight.grad.item() == 0.5
    assert not hasattr(optimizer, "grad_scale")


# States: either scaler loads the state of the other.


@pytest.fixture
def torchs_state():
    """Return the state of torch's scaler with no setting of the default."""
    source = ready(
        TORCHS, init_scale=24.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=9
    )
    source._growth_tracker.fill_(5)
    return source.state_dict()


@pytest.mark.parametrize("has_scaled", [False, True])
def test_each_scaler_loads_the_state_of_the_other(torchs_state, has_scaled):
    ours = ready() if has_scaled else GradScaler("cpu")
    ours.load_state_dict(torchs_state)
    assert ours.state_dict() == torchs_state
    torchs = ready(TORCHS)
    torchs.load_state_dict(ours.state_dict())
    assert torchs.state_dict() == torchs_state


def test_a_state_of_torch_becomes_one_of_the_engine(torchs_state):
    state, config = from_state_dict(torchs_state)
    assert state == ScalerState(24.0, 5)
    assert config == ScalerConfig(24.0, 3.0, 0.25, 9)
    assert state_dict(state, config) == torchs_state


def test_our_defaults_are_torchs():
    _, config = from_state_dict(TORCHS("cpu").state_dict())
    assert config == ScalerConfig()


def test_a_static_scale_has_no_state_of_torch():
    with pytest.raises(ValueError, match="always dynamic"):
        state_dict(ScalerState(8.0), static(8))


def test_the_state_of_a_disabled_scaler_is_refused():
    with pytest.raises(ValueError, match="got one without"):
        from_state_dict(TORCHS("cpu", enabled=False).state_dict())


# Many steps, and many processes.


@pytest.mark.slow
def test_sharded_scaler_is_torchs_bit_for_bit(tmp_path):
    """Run two processes, each of which steps weights of its own."""
    ranks = launch("scalers", 2, tmp_path)
    for found in ranks:
        for (scale, tracker, weight), (own_scale, own_tracker, own) in zip(
            found["torch"], found["ours"], strict=True
        ):
            assert scale == own_scale
            assert tracker == own_tracker
            assert torch.equal(weight, own)
    scales = [[scale for scale, *_ in found["ours"]] for found in ranks]
    assert scales[0] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    assert scales[1] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    alone = [[scale for scale, *_ in found["alone"]] for found in ranks]
    assert alone[0][:2] == alone[1][:2]
    # Without a sharded scaler, the first rank does not learn of the overflow.
    assert alone[0][2:] != alone[1][2:]


# With this seed, also a short run skips more than a tenth of its steps, and has a scale near the
# largest one in more than a hundredth.
SEED = 5
Moment = namedtuple("Moment", "scale tracker weights")


def random_steps(scaler_class, steps, seed, lowest, fused):
    """Train two weights by two optimizers, in orders of calls that are drawn from a seed.

    Args:
        scaler_class: the class of the scaler.
        steps: number of steps.
        seed: the seed of all draws.
        lowest: a lower scale is replaced by a new one.
        fused: whether the optimizers are fused.

    Yields:
        The scale, the tracker and the weights after each step.
    """
    draw = random.Random(seed)
    gradients = torch.randn(steps, 2, 4, generator=torch.Generator().manual_seed(seed)) * 8
    weights = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))]
    optimizers = [
        torch.optim.SGD([weight], lr=0.1, fused=fused, foreach=False) for weight in weights
    ]
    scaler = ready(scaler_class, growth_interval=3)
    for step in range(steps):
        used = draw.choice([(0,), (1,), (0, 1), (1, 0)])
        for index in used:
            # this overflows by itself if the scale is near FP32's largest number
            weights[index].grad = scaler.scale(gradients[step, index])
            if draw.random() < 0.2:
                weights[index].grad[draw.randrange(4)] = draw.choice(
                    [math.inf, -math.inf, math.nan]
                )
            if draw.random() < 0.4:
                scaler.unscale_(optimizers[index])
                if draw.random() < 0.5:
                    nn.utils.clip_grad_norm_([weights[index]], draw.choice([0.1, 1.0]))
        for index in used:
            scaler.step(optimizers[index])
        scaler.update(*_a_new_scale(draw, scaler, lowest))
        _set_a_knob(draw, scaler)
        yield Moment(
            scaler._scale.item(),
            scaler._growth_tracker.item(),
            [weight.tolist() for weight in weights],
        )


def _a_new_scale(draw, scaler, lowest):
    """Return a new scale, a number or a tensor, in a list; mostly an empty list.

    There is a new scale in about every twentieth step, and whenever the scale is below `lowest`.
    """
    if draw.random() < 0.05 or scaler.get_scale() < lowest:
        value = 2.0 ** draw.triangular(0, 127, 127)
        return [value if draw.random() < 0.5 else torch.tensor(value)]
    return []


def _set_a_knob(draw, scaler):
    """Rarely change a setting of the scaler, or load its own state."""
    if draw.random() < 0.05:
        scaler.set_growth_factor(draw.choice([2.0, 1.5, 1.0009765625, 3.7, 2.0**20]))
    if draw.random() < 0.05:
        scaler.set_backoff_factor(draw.choice([0.5, 0.9, 0.1, 1 / 3]))
    if draw.random() < 0.05:
        scaler.set_growth_interval(scaler._get_growth_tracker() + draw.randint(1, 4))
    if draw.random() < 0.01:
        scaler.load_state_dict(pickle.loads(pickle.dumps(scaler)).state_dict())


# Below a scale of 1, ours unscales a fused optimizer's gradients before its kernel does: the last
# bit may differ there.
@pytest.mark.parametrize(
    ("fused", "lowest", "steps"),
    [
        (False, 2.0**-100, 600),
        (True, 16.0, 600),
        pytest.param(False, 2.0**-100, 10_000, marks=pytest.mark.slow),
    ],
    ids=["loop", "fused", "long"],
)
def test_random_steps_are_torchs_bit_for_bit(fused, lowest, steps):
    taken = 0
    skipped = 0
    near_largest_scale = 0
    before = None
    both = (
        random_steps(scaler_class, steps, SEED, lowest, fused)
        for scaler_class in (GradScaler, TORCHS)
    )
    for ours, theirs in zip(*both, strict=True):
        assert ours == theirs, f"at step {taken} of seed {SEED}"
        taken += 1
        if before is not None and ours.weights == before.weights:
            skipped += 1
        if ours.scale > 2.0**120:
            near_largest_scale += 1
        before = ours
    assert taken == steps
    # Otherwise the draws would not test skipped steps, or large scales.
    assert skipped > 0.1 * steps
    assert near_largest_scale > 0.01 * steps


# Cases of PyTorch's own tests, for both scalers. Each docstring names the case of
# pytorch/test/test_torch.py (or test_cuda.py) that the test repeats. Cases that the random steps
# above cover (two optimizers of which one overflows, clipping, fused steps) are left out.


@pytest.mark.parametrize("knobs", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_inf_after_unscaling_reaches_the_weights(make_scaler, knobs):
    """Repeats test_params_invalidated_with_grads_invalidated_between_unscale_and_step.

    Only unscale_ checks the gradients, and it does so once.
    """
    scaler = make_scaler()
    weight, optimizer = weight_and_optimizer(**knobs)
    scaler.scale(weight.sum())
    scaler.unscale_(optimizer)
    weight.grad.fill_(math.nan)
    scaler.step(optimizer)
    assert math.isnan(weight.item())


def unscaled(make_scaler, gradients):
    """Unscale gradients by a scale of 4, through `_unscale_grads_`.

    Returns:
        found_inf by device, and the gradients after the call.
    """
    parameters = [
        nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype)) for gradient in gradients
    ]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    quarter = torch.tensor([0.25])
    nothing = torch.tensor([0.0])
    found = make_scaler()._unscale_grads_(torch.optim.SGD(parameters), quarter, nothing, True)
    assert nothing.item() == 0, "the caller's flag is copied, not written to"
    return {str(device): flag.item() for device, flag in found.items()}, [
        parameter.grad for parameter in parameters
    ]


def gradients_of_any_layout():
    """Return contiguous, transposed, sliced and FP16 gradients of 4."""
    four = torch.full((20, 20), 4.0)
    return [four.clone(), four.clone().t(), four.clone()[:, :5], four.half(), four.half()]


def test_gradients_of_any_layout_are_unscaled_in_place(make_scaler):
    """Repeats test_grad_scaling_unscale."""
    gradients = gradients_of_any_layout()
    found, left = unscaled(make_scaler, gradients)
    assert found == {"cpu": 0.0}
    for gradient, same in zip(gradients, left, strict=True):
        assert same is gradient
        assert (gradient == 1).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", range(len(gradients_of_any_layout())))
def test_inf_is_found_in_gradients_of_any_layout(make_scaler, place, bad):
    """Repeats test_grad_scaling_unscale."""
    gradients = gradients_of_any_layout()
    gradients[place][2, 2] = bad
    found, _ = unscaled(make_scaler, gradients)
    assert found == {"cpu": 1.0}


def sparse_gradient(dtype, values):
    """Return a gradient [2, 3] whose first and third value are in one place."""
    places = torch.tensor([[0, 1, 0], [2, 0, 2]])
    return torch.sparse_coo_tensor(
        places, torch.tensor(values), (2, 3), dtype=dtype, check_invariants=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sparse_gradients_are_unscaled(make_scaler, dtype):
    """Repeats test_grad_scaling_unscale_sparse."""
    gradient = sparse_gradient(dtype, [16.0, 32.0, 64.0])
    found, (left,) = unscaled(make_scaler, [gradient.clone()])
    assert found == {"cpu": 0.0}
    assert left.is_sparse
    assert torch.equal(left.to_dense(), gradient.to_dense() / 4)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        pytest.param(torch.float32, [16.0, 32.0, math.inf], id="inf"),
        # The sum in one place is beyond FP16.
        pytest.param(torch.float16, [64000.0, 32.0, 64000.0], id="sum"),
    ],
)
def test_inf_is_found_in_sparse_gradients(make_scaler, dtype, values):
    """Repeats test_grad_scaling_unscale_sparse."""
    found, (left,) = unscaled(make_scaler, [sparse_gradient(dtype, values)])
    assert found == {"cpu": 1.0}
    assert left.is_sparse


class Recorder(torch.optim.Optimizer):
    """An optimizer that would unscale by itself, and records the scaler's attributes instead."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        self.received = self.grad_scale, self.found_inf


class OldRecorder(Recorder):
    """The same by torch's older protocol, in which the scaler is passed as an argument."""

    def step(self, closure=None, *, grad_scaler=None):
        self.received = grad_scaler
        assert not {"grad_scale", "found_inf"} & vars(self).keys()


def test_unscaling_optimizer_gets_scale_and_found_inf(make_scaler):
    """Repeats test_grad_scaler_pass_itself.

    An optimizer receives the scaler itself, with a warning, or scale and found_inf as tensors.
    """
    weight = nn.Parameter(torch.ones(3))
    old = OldRecorder([weight])
    new = Recorder([weight])
    scaler = make_scaler(init_scale=2.0)
    scaler.scale(weight.mean()).backward()
    with pytest.warns(FutureWarning, match="stop passing itself"):
        scaler.step(old)
    assert old.received is scaler
    with warnings.catch_warnings(action="error"):
        scaler.step(new)
    scaler.update()
    assert [tensor.item() for tensor in new.received] == [2.0, 0.0]
    assert not {"grad_scale", "found_inf"} & vars(new).keys()


# Cases in which ours differs from torch's on purpose: torch's scaler spoils a training, or refuses
# a step that it could skip. The expectations of torch are those of torch 2.13; if a later version
# mends a case, its test fails.


def begin(scaler_class, optimizer_class=torch.optim.SGD, **knobs):
    """Return a scaler that has scaled a loss, a weight of 1, and its optimizer with a rate of 1."""
    scaler = scaler_class("cpu", **knobs)
    weight = nn.Parameter(torch.ones(1))
    scaler.scale(weight.sum())
    return scaler, weight, optimizer_class([weight], lr=1.0)


def step(scaler, weight, optimizer, gradient):
    weight.grad = torch.tensor([gradient]) * (
        scaler.get_scale() if math.isfinite(gradient) else 1.0
    )
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(
    ("scaler_class", "scale", "weight_after"),
    [(TORCHS, 0.0, -math.inf), (GradScaler, 2.0**-126, 0.75)],
    ids=["torchs", "ours"],
)
def test_repeated_overflows_take_torchs_scale_to_zero(scaler_class, scale, weight_after):
    scaler, weight, optimizer = begin(scaler_class)
    for _ in range(166):
        step(scaler, weight, optimizer, math.inf)
    assert scaler.get_scale() == scale
    assert weight.item() == 1.0
    # every scaled gradient is small at this scale
    weight.grad = torch.full((1,), 2.0**-128)
    scaler.step(optimizer)
    assert weight.item() == weight_after


# Ours grows after the step that follows the change, and then every second step.
@pytest.mark.parametrize(
    ("scaler_class", "grown"),
    [(TORCHS, 8.0), (GradScaler, 8.0 * 2.0 ** (1 + 19 // 2))],
    ids=["torchs", "ours"],
)
def test_a_growth_interval_below_the_tracker_ends_torchs_growth(scaler_class, grown):
    scaler, weight, optimizer = begin(scaler_class, init_scale=8.0, growth_interval=100)
    for number in range(25):
        if number == 5:
            scaler.set_growth_interval(2)
        step(scaler, weight, optimizer, 0.0)
    assert scaler.get_scale() == grown


def begin_with_closure(scaler_class):
    """Return a scaler, a weight, its optimizer, and a closure that has computed a gradient."""
    scaler, weight, optimizer = begin(scaler_class, init_scale=1024.0)

    def closure():
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()

    closure()
    return scaler, weight, optimizer, closure


def test_torchs_step_with_a_positional_closure_is_not_unscaled():
    scaler, weight, optimizer, closure = begin_with_closure(TORCHS)
    scaler.step(optimizer, closure)
    assert weight.item() == 1.0 - 1024.0


def test_a_positional_closure_is_refused():
    scaler, _, optimizer, closure = begin_with_closure(GradScaler)
    with pytest.raises(
        RuntimeError, match=r"Closure use is not currently supported.*run it before"
    ):
        scaler.step(optimizer, closure)


@pytest.mark.parametrize("scaler_class", [TORCHS, GradScaler], ids=["torchs", "ours"])
def test_a_closure_by_keyword_is_refused(scaler_class):
    scaler, _, optimizer, closure = begin_with_closure(scaler_class)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=closure)


# Scales, settings, states and outputs that torch accepts and ours refuses.

INVALID_SCALE = r"scale must be a number from 2\^-126 to 3.4e38"
invalid_scales = pytest.mark.parametrize("scale", [-1.0, 0.0, math.nan, math.inf, 2.0**-127])


@invalid_scales
def test_an_invalid_first_scale_is_refused(scale):
    ready(TORCHS, init_scale=scale)
    with pytest.raises(ValueError, match=f"init_{INVALID_SCALE}"):
        GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
@invalid_scales
def test_an_invalid_new_scale_is_refused(scale, kind):
    ready(TORCHS).update(kind(scale))
    scaler = ready()
    with pytest.raises(ValueError, match=INVALID_SCALE):
        scaler.update(kind(scale))
    assert scaler.get_scale() == 2.0**16, "a refused scale was set"


INVALID_SETTINGS = [
    ("growth_factor", 0.5),
    ("growth_factor", math.nan),
    ("backoff_factor", 2.0),
    ("backoff_factor", 0.0),
    ("growth_interval", 0),
    ("growth_interval", -5),
]


@pytest.mark.parametrize(
    ("key", "value"), [*INVALID_SETTINGS, ("scale", 0.0), ("_growth_tracker", -1)]
)
def test_an_invalid_state_changes_nothing(key, value):
    state = {**TORCHS("cpu", growth_interval=7).state_dict(), key: value}
    TORCHS("cpu").load_state_dict(state)
    scaler = GradScaler("cpu")
    with pytest.raises(ValueError, match="must be"):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == TORCHS("cpu").state_dict()


@pytest.mark.parametrize(("key", "value"), INVALID_SETTINGS)
def test_an_invalid_setting_changes_nothing(key, value):
    getattr(TORCHS("cpu"), f"set_{key}")(value)
    scaler = GradScaler("cpu")
    with pytest.raises(ValueError, match=f"{key} must be"):
        getattr(scaler, f"set_{key}")(value)
    assert scaler.state_dict() == TORCHS("cpu").state_dict()


@pytest.mark.parametrize("outputs", [{"loss": torch.ones(1)}, "loss", b"loss"])
def test_outputs_that_hold_no_tensor_are_refused(outputs):
    # torch returns a map, which fails only when it is read.
    assert isinstance(TORCHS("cpu").scale(outputs), map)
    with pytest.raises(
        ValueError, match=r"outputs must be a Tensor or an iterable of Tensors; got a \w+"
    ):
        GradScaler("cpu").scale(outputs)


# Steps that torch refuses, overflows or leaves half done.

fused_or_not = pytest.mark.parametrize("fused", [False, True])


def step_and_update(scaler, optimizer):
    scaler.step(optimizer)
    scaler.update()


@fused_or_not
def test_torch_refuses_an_optimizer_without_gradients(fused):
    scaler, _, optimizer = begin(TORCHS, partial(torch.optim.SGD, fused=fused))
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        step_and_update(scaler, optimizer)


@fused_or_not
def test_an_optimizer_without_gradients_changes_nothing(fused):
    scaler, weight, optimizer = begin(GradScaler, partial(torch.optim.SGD, fused=fused))
    step_and_update(scaler, optimizer)
    assert weight.item() == 1.0
    assert scaler.get_scale() == 2.0**16
    assert scaler._get_growth_tracker() == 1


@fused_or_not
@pytest.mark.parametrize(
    ("scaler_class", "weight_after", "scale_after"),
    [(TORCHS, -math.inf, 2.0**-10), (GradScaler, 1.0, 2.0**-11)],
    ids=["torchs", "ours"],
)
def test_scale_below_1_overflows_a_finite_gradient(fused, scaler_class, weight_after, scale_after):
    """torch's kernel checks for inf before it divides, and 2^120 / 2^-10 overflows."""
    sgd = partial(torch.optim.SGD, fused=fused)
    scaler, weight, optimizer = begin(scaler_class, sgd, init_scale=2.0**-10)
    weight.grad = torch.full((1,), 2.0**120)
    scaler.step(optimizer)
    assert weight.item() == weight_after
    scaler.update()
    assert scaler.get_scale() == scale_after


class Failing(torch.optim.Optimizer):
    """An optimizer that would unscale by itself, and whose steps fail."""

    _step_supports_amp_scaling = True

    def step(self, closure=None):
        raise ArithmeticError


@pytest.mark.parametrize(
    ("scaler_class", "is_left_behind"),
    [(TORCHS, True), (GradScaler, False)],
    ids=["torchs", "ours"],
)
def test_a_failed_fused_step_leaves_torchs_scale(scaler_class, is_left_behind):
    """The next step would multiply it by the scale again."""
    scaler, weight, _ = begin(scaler_class)
    optimizer = Failing([weight], {})
    weight.grad = torch.ones(1)
    with pytest.raises(ArithmeticError):
        scaler.step(optimizer)
    assert hasattr(optimizer, "grad_scale") is is_left_behind
