"""Training steps under any recipe, with a state from which a run resumes bit for bit.

The engine has the methods of any training loop: forward, backward, clip, step, zero_grad. The
recipe's values decide what they do; for FP32 the casts, the copies and the scale do nothing. The
state is all that a step reads and changes: weights, masters, optimizer, loss scales, counters. It
holds the model in FP32 under plain names.

Invariant: a step happens with unscaled, finite gradients or not at all, unless the recipe asks for
no check; its `StepReport` says which, and why. state_dict -> load_state_dict -> state_dict is the
identity, flat or not. A resumed run is bit-equal to an uninterrupted one. Loading a state that does
not fit raises and changes nothing.

Source: arXiv:1710.03740, section 3 (the loop); torch.amp.GradScaler (the order of unscaling,
clipping and stepping); apex.amp.scale_loss (a scale for each loss).
"""

from __future__ import annotations

import copy
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from labkit.amp.boundary import LOSS_INSIDE_MODEL, Boundary
from labkit.amp.casting.lists import registered_rules
from labkit.amp.graph.cast_graph import CastGraph
from labkit.amp.loss_scaling.clip import total_norm
from labkit.amp.loss_scaling.magnitudes import largest_magnitudes
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.loss_scaling.scaler import Decision, ScalerState, StepReport, decide, initial
from labkit.amp.loss_scaling.skips import FEWEST_SKIPS, diagnosis, step_report
from labkit.amp.low_bit.products import LowBitProducts, ScaleMemory
from labkit.amp.masters.convert import (
    require_range,
    restored_after_error,
    to_model_format,
    uncompiled,
)
from labkit.amp.masters.masters import Group
from labkit.amp.masters.weights import MakeOptimizer, Weights
from labkit.amp.masters.without_master import WeightRounding
from labkit.amp.ranges import RangeMemory
from labkit.amp.recipe import Recipe, as_recipe
from labkit.amp.requirements import (
    PRODUCTS_LAYOUT,
    as_scaler,
    require_keys,
    require_known,
    require_layout,
    require_loss,
    require_loss_id,
    require_same,
    require_same_network,
    require_trainable,
)
from labkit.amp.step import (
    Stage,
    StepGradients,
    StepInspection,
    StepListener,
    coalesced,
    not_finite,
)
from labkit.formats import FP32
from labkit.formats.arguments import require_kind
from labkit.gemm.half_storage import HALVES
from labkit.instrument.events import (
    EngineStepBegins,
    EngineStepEnded,
    LossScaled,
    Moment,
    StepEvent,
)
from labkit.instrument.stream import STREAM, Listener
from labkit.interop import as_device, dtype_of


class Engine:
    """A model, its optimizer and a recipe, trained by a loop that is independent of the recipe.

    Several `backward` before a `step` accumulate: their gradients are added up in FP32. Several
    losses may have a scale each (`losses`, `loss_id`). Construct a learning-rate scheduler with
    `engine.optimizer`, and step it only after a step that happened: `if engine.step().stepped:
    scheduler.step()`. Edits of the model's weights between two steps are respected, also through
    `.data`. A copy (copy.deepcopy, pickle) trains independently.

    Args:
        model: converted in place to the recipe's format. A compiled model stays compiled.
        make_optimizer: parameters -> torch optimizer, called once with the weights that the recipe
            steps.
        recipe: the precision of each part of training, or its name in `RECIPES`.
        device: the device to move the model to, "gpu" for the first one; None leaves it where it
            is.
        groups: parameter groups, or a function model -> groups; see `Weights`.
        flat: one master tensor for each group; see `Weights`.
        losses: the number of losses, each with a scale of its own.
        seed: seed of stochastic rounding.

    Raises:
        TypeError: make_optimizer is not callable or makes no optimizer; recipe is neither a Recipe
            nor a name; losses is not a whole number; groups are not dicts with parameters in
            "params".
        ValueError: losses < 1; no recipe has this name; the model cannot be trained
            (`require_trainable`) or converted to the recipe's format (`to_model_format`).
        RuntimeError: the model has tensors on the meta device.

    >>> from labkit.amp import RECIPES
    >>> make_optimizer = lambda weights: torch.optim.SGD(weights, lr=0.1)
    >>> engine = Engine(nn.Linear(2, 1), make_optimizer, RECIPES["FP16 static"])
    >>> engine.zero_grad()
    >>> with engine.forward():
    ...     loss = engine(torch.ones(4, 2)).square().mean()
    >>> engine.backward(loss)
    >>> engine.step().stepped
    True
    """

    # whether arguments beyond the model's range are looked for in each call, on any device
    _checks_every_range: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        recipe: Recipe | str,
        *,
        device: torch.device | str | None = None,
        groups: Sequence[Group] | Callable[[nn.Module], Sequence[Group]] | None = None,
        flat: bool = False,
        losses: int = 1,
        seed: int = 0,
    ) -> None:
        require_kind(seed, int, "seed")
        require_trainable(model, make_optimizer, losses)
        losses = operator.index(losses)
        seed = operator.index(seed)
        recipe = as_recipe(recipe)
        self.recipe = recipe
        self.device = next(model.parameters()).device if device is None else as_device(device)
        # A second try after an error, such as a wrong learning rate, begins with the same weights.
        with restored_after_error(model):
            self.model = to_model_format(model, recipe.model, keep_norms=recipe.keep_norms)
            if device is not None:
                self.model.to(self.device)
            self.call: Callable[..., Any] = self.model
            if recipe.graph and recipe.autocast is not None:
                self.call = CastGraph(self.model, recipe.autocast)
            self.weights = self._make_weights(
                uncompiled(self.model), make_optimizer, groups=groups, flat=flat, seed=seed
            )
        self.products: LowBitProducts | None = None
        if recipe.products is not None:
            self.products = LowBitProducts(
                recipe.products, self.model, self.weights.names, seed, recipe.name
            )
        self.scalers: list[ScalerState] = [initial(recipe.scaler)] * losses
        self.steps = 0
        self.skips_in_a_row = 0
        self._gradients = StepGradients(self.weights)
        self._loss = torch.tensor(0.0)
        self._scale = 1.0
        self._ranges = RangeMemory(check_every_tensor=self._checks_every_range)
        in_half = recipe.model != FP32 or recipe.autocast is not None
        self._boundary = Boundary(self.model, dtype_of(recipe.model), self._ranges, in_half)
        # whether the last step had inf or NaN, so that the next one is likely to as well
        self._last_found_inf = False
        # thread -> number of regions that are open
        self._regions: dict[int, int] = {}
        self._guard_optimizer()

    def _make_weights(
        self, model: nn.Module, make_optimizer: MakeOptimizer, **options: Any
    ) -> Weights:
        """Return the weights of a model under the recipe; a distributed engine replaces the model.

        Args:
            model: the model without the wrapper of torch.compile.
            make_optimizer: as for `Engine`.
            options: further arguments of `Weights`.
        """
        return Weights(
            model,
            make_optimizer,
            master=self.recipe.master_weights,
            rounding=self.recipe.rounding,
            optimizer_dtype=dtype_of(self.recipe.optimizer),
            **options,
        )

    def _require_known(self) -> None:
        """Refuse a layer that was added to the model after the engine was made."""
        require_known(uncompiled(self.model), self.weights.ids)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer, for a learning-rate scheduler."""
        return self.weights.optimizer

    @property
    def scaler(self) -> ScalerState:
        """The state of the first loss's scaler; it may be set between two steps."""
        return self.scalers[0]

    @scaler.setter
    def scaler(self, state: ScalerState) -> None:
        require_kind(state, ScalerState, "scaler", "For example: ScalerState(1024.0)")
        self.scalers[0] = state

    def forward(self) -> AbstractContextManager[None]:
        """Open the region in which a forward pass and its loss run under the recipe.

        Raises:
            RuntimeError: the model was moved to another device after the engine was constructed.
            ValueError: data of another shape were assigned to a weight's `.data`.
        """
        self.weights.require_unmoved()
        self.weights.restore_dtypes()
        return self._region()

    @contextmanager
    def _region(self) -> Iterator[None]:
        """Enter the recipe's modes, and count the engine's open regions of this thread."""
        thread = threading.get_ident()
        self._regions[thread] = self._regions.get(thread, 0) + 1
        try:
            with self.recipe.forward(self.device, self.products, self._ranges):
                yield
        finally:
            self._regions[thread] -= 1
            if not self._regions[thread]:
                del self._regions[thread]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model: FP32 tensors in, FP32 tensors out, whatever format it computes in.

        Outside of `forward()` the call has a region of its own, so that the model always computes
        under the recipe; a loss that is computed after it is in FP32. Tensors inside lists, tuples,
        dicts, dataclasses and namespaces are cast, too. A tensor with finite values beyond the
        model's range, such as a mask of FP32's lowest number, is passed in FP32.

        Warns:
            UserWarning: a result, such as an iterator or an object of another class, may hold half
                tensors that cannot be reached. It is warned of once, by its type.

        Raises:
            RuntimeError: a tensor is on another device than the model's weights, and the model did
                not move it.
        """
        if threading.get_ident() in self._regions:
            return self._boundary.run(self.call, args, kwargs)
        with self.forward():
            return self._boundary.run(self.call, args, kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, which has no open region, and guard its optimizer."""
        self.__dict__.update(state)
        self._regions = {}
        self._guard_optimizer()

    def _guard_optimizer(self) -> None:
        """Refuse `optimizer.step()` by hand while the gradients are not those of the optimizer."""
        # a wrapper of an optimizer has no hooks
        if not hasattr(self.optimizer, "_optimizer_step_pre_hooks"):
            return
        # A hook with a strong reference would keep the engine's memory until a garbage collection.
        reference = weakref.ref(self)

        def before_step(*_: Any) -> None:
            engine = reference()
            if engine is not None:
                engine._refuse_foreign_step()

        self.optimizer.register_step_pre_hook(before_step)

    def _refuse_foreign_step(self) -> None:
        """Raise an error if the optimizer is stepped by hand while its gradients are scaled."""
        if self.weights.stepping or not self._gradients.has_pending:
            return
        if self.weights.has_copies or self._scale != 1:
            raise RuntimeError(
                "expected engine.step(), got engine.optimizer.step(): the gradients in the model "
                f"are multiplied by the loss scale {self._scale:g} and are not yet the "
                "optimizer's. Call engine.step(), which unscales them, checks them and steps the "
                "optimizer."
            )

    def backward(
        self,
        loss: Tensor,
        loss_id: int = 0,
        *,
        other_engines: Sequence[Engine] = (),
        retain_graph: bool = False,
    ) -> None:
        """Multiply a loss by its scale and run the backward pass.

        Args:
            loss: a scalar. One in FP16 is cast to FP32 first, since its gradient is the scale,
                which may exceed FP16's largest number, 65504.
            loss_id: the index of the loss among the engine's `losses`.
            other_engines: other engines whose models the loss depends on. The smallest of the
                engines' scales applies to all; each engine steps or skips, and updates its scale,
                by the gradients of its own model.
            retain_graph: as in torch.

        Raises:
            TypeError: the loss is not a tensor, loss_id is not a whole number, or other_engines is
                not a list of engines.
            ValueError: the loss has more than one element.
            RuntimeError: the loss depends on no parameter; zero_grad() has not been called since
                the last step, or since the gradients were unscaled; a layer was added to the model
                after the engine was constructed.
            IndexError: the engine has no loss of this index.
        """
        if isinstance(other_engines, Engine):
            raise TypeError("other_engines: expected a list of engines, got one. Write [engine].")
        for engine in other_engines:
            require_kind(engine, Engine, "other_engines", "Pass a list of engines.")
        engines = (self, *other_engines)
        for engine in engines:
            require_loss_id(loss_id, len(engine.scalers))
        require_loss(loss)
        if STREAM.listeners:
            STREAM.emit(LossScaled(lambda: min(each.scalers[loss_id].scale for each in engines)))
        for engine in engines:
            engine._require_known()
            engine._gradients.before_backward()
        if loss.dtype == torch.float16:
            loss = self._boundary.result(loss)
        scale = min(engine.scalers[loss_id].scale for engine in engines)
        for engine in engines:
            engine._loss = loss.detach()
            engine._scale = scale
            engine._emit(Moment.FORWARD)
        with self.recipe.backward(self.device):
            self._run_backward(loss if scale == 1 else loss * scale, retain_graph)
        for engine in engines:
            engine._gradients.after_backward(loss_id, scale)
            engine._emit(Moment.SCALED)

    def _run_backward(self, scaled: Tensor, retain_graph: bool) -> None:
        scaled.backward(retain_graph=retain_graph)

    @contextmanager
    def listen(self, listener: StepListener) -> Iterator[None]:
        """Call `listener(event)` at each moment of a step until the `with` block ends.

        Raises:
            TypeError: `listener` is not callable.

        >>> from labkit.amp import RECIPES
        >>> engine = Engine(nn.Linear(1, 1), torch.optim.SGD, RECIPES["FP32"])
        >>> with engine.listen(lambda event: print(event.moment.name, sorted(event.gradients))):
        ...     engine.backward(engine(torch.ones(1, 1)).sum())
        ...     _ = engine.step()
        FORWARD []
        SCALED ['bias', 'weight']
        UNSCALED ['bias', 'weight']
        STEPPED ['bias', 'weight']
        """
        if not callable(listener):
            raise TypeError(f"listener: expected a function StepEvent -> None, got {listener!r}")

        def receive(event: StepEvent[StepReport]) -> None:
            if event.engine is self:
                listener(event)

        # a `Listener` without `failed` lets the exceptions of `receive` end the step
        with STREAM.subscribed(Listener().on(StepEvent, receive)):
            yield

    def _emit(self, moment: Moment, report: StepReport | None = None) -> None:
        if not (STREAM.listeners and STREAM.observes(StepEvent)):
            return
        gradients: dict[str, Tensor] = {}
        if moment is Moment.SCALED:
            gradients = {
                name: p.grad for p, name in self.weights.names.items() if p.grad is not None
            }
        elif moment is not Moment.FORWARD:
            gradients = self.weights.by_name(self._gradients.unscaled())
        STREAM.emit(StepEvent(moment, self._loss, self._scale, gradients, report, self))

    def masters(self) -> dict[str, Tensor]:
        """Return parameter name -> tensor that the optimizer steps: a master, or a view into it."""
        weights = self.weights
        return dict(zip(weights.stepped_names, weights.master_weights, strict=True))

    @property
    def rounds_stochastically(self) -> bool:
        """Whether a step rounds weights up or down at random, so that small updates count."""
        return self.recipe.rounding is WeightRounding.STOCHASTIC

    def clip(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the unscaled gradients down to a total norm of at most `max_norm`.

        Args:
            max_norm: the largest total norm.
            norm_type: the order of the norm, as in torch.nn.utils.clip_grad_norm_.

        Returns:
            The norm before clipping, a scalar. If a gradient holds inf or NaN, so does the norm,
            and the step will be skipped.

        Raises:
            TypeError: max_norm is not a number.
            ValueError: max_norm is not positive, or norm_type is NaN.
        """
        require_kind(max_norm, (int, float, Tensor), "max_norm")
        if not max_norm > 0:
            raise ValueError(
                f"expected max_norm > 0, the largest norm of the gradients, got {max_norm!r}"
            )
        return self._gradients.clip(max_norm, norm_type, self._measure)

    def _measure(self, values: Sequence[Tensor], norm_type: float) -> Tensor:
        """Return the total norm of gradients, in a distributed engine over all processes."""
        return total_norm(values, norm_type)

    def gradients(self) -> dict[str, Tensor]:
        """Return parameter name -> unscaled gradient.

        The tensors may be changed in place: the step uses them, and checks them again for inf and
        NaN.
        """
        return self.weights.by_name(self._gradients.to_change())

    def step(self, closure: object = None) -> StepReport:
        """Step the weights if every gradient is finite, update the scales, and return a report.

        If there are no gradients at all, nothing happens, and the report says so. With several
        losses, the report is about one whose gradients held inf or NaN, or else about the first.

        Args:
            closure: None. The parameter exists for loops that pass one to torch's optimizers.

        Raises:
            RuntimeError: a step has used these gradients already; a closure was passed; gradients
                were changed while scaled, or computed by a backward other than the engine's.
        """
        if not STREAM.listeners:
            return self._step(closure)
        STREAM.emit(EngineStepBegins(self))
        try:
            report = self._step(closure)
        except BaseException:
            STREAM.emit(EngineStepEnded(self, raised=True))
            raise
        STREAM.emit(EngineStepEnded(self))
        return report

    def _step(self, closure: object) -> StepReport:
        if closure is not None:
            raise RuntimeError(
                "expected no closure, got one: its backward would run inside the step, too late to "
                "unscale or skip. Run forward and backward first, then call step() without a "
                "closure."
            )
        if self._gradients.stage is Stage.CONSUMED:
            raise RuntimeError(
                "expected new gradients, got those of the last step; call zero_grad() and "
                "backward()."
            )
        gradients = self._gradients.unscaled()
        inspection = self._inspect(gradients)
        own_found_inf: dict[int, bool] = {}
        if any(gradient is not None for gradient in gradients):
            own_found_inf = self._gradients.found_inf
        found_inf = self._agreed(own_found_inf)
        # no loss has a gradient (a loss with finite gradients is in it, as False)
        if len(found_inf) == 0:
            self._gradients = StepGradients(self.weights, self._gradients.zeros)
            return self._omitted(
                "no gradient: call engine.backward() on a loss of this model first"
            )
        if inspection.beyond_range:
            # The forward pass cast finite numbers to infinity. The scale is not the cause, so it
            # stays.
            report = self._omitted(
                "left out: an FP32 input or mask holds finite numbers beyond "
                f"{self.recipe.model.name}, and was cast to it, since earlier ones held none. From "
                "the next step on it stays FP32."
            )
        else:
            report = self._decide_and_step(found_inf, gradients, inspection)
        self.steps += 1
        self._gradients.stage = Stage.CONSUMED
        self._emit(Moment.STEPPED, report)
        return report

    def _decide_and_step(
        self,
        found_inf: Mapping[int, bool],
        gradients: Sequence[Tensor | None],
        inspection: StepInspection,
    ) -> StepReport:
        """Decide for each loss, step the weights unless one decision is to skip, and report."""
        self._emit(Moment.UNSCALED)
        decisions = {
            loss_id: decide(self.scalers[loss_id], inf, self.recipe.scaler)
            for loss_id, inf in found_inf.items()
        }
        # the report is about a skipping loss, else one with inf or NaN, else the first
        worst = max(decisions, key=lambda i: (decisions[i].skip, decisions[i].found_inf, -i))
        report = self._report(decisions[worst], gradients, inspection)
        if report.stepped:
            # a listener to UNSCALED may have edited weights after the inspection
            edited = None if STREAM.listeners else inspection.edited
            self.weights.step(gradients, edited=edited)
        for loss_id, decision in decisions.items():
            self.scalers[loss_id] = decision.after
        self.skips_in_a_row = report.skips_in_a_row
        self._last_found_inf = report.found_inf
        return report

    def _omitted(self, why: str) -> StepReport:
        """Return the report of a step that was left out, with the counters unchanged."""
        return StepReport(
            stepped=False,
            found_inf=False,
            scale=self.scaler.scale,
            why=why,
            skips_in_a_row=self.skips_in_a_row,
        )

    def _inspect(self, gradients: Sequence[Tensor | None]) -> StepInspection:
        """Read all values that this step needs from the device, in one transfer."""
        edits = self.weights.edits()
        # The magnitudes of gradients, weights and loss are for a diagnosis. They are read here only
        # if this step is likely to need one: gradients after a step with inf or NaN, weights and
        # loss after several skipped steps.
        named: dict[str, Tensor] = {}
        if self._last_found_inf:
            named = self.weights.by_name(coalesced(gradients))
        suspects = list(named.values())
        reads_weights = False
        if self.skips_in_a_row + 1 >= FEWEST_SKIPS and self.weights.model_weights:
            reads_weights = True
            suspects += [*self.weights.model_weights, self._loss]
        magnitudes = largest_magnitudes(suspects) if suspects else []
        edit_flags = edits or []
        inner_losses = self._boundary.unread
        ranges = self._ranges.pending
        scalars = [*edit_flags, *inner_losses, *ranges, *magnitudes]
        # the values are in the order of the scalars, and are taken off in that order
        values = iter(self._gradients.read_found_inf(scalars))
        is_edited = any(list(islice(values, len(edit_flags))))
        self._boundary.record(list(islice(values, len(inner_losses))))
        beyond_range = self._ranges.record(list(islice(values, len(ranges))))
        sizes = list(values)
        culprits = None
        if named:
            culprits = not_finite(named, sizes)
        bad_weights = None
        loss_size = None
        if reads_weights:
            *weight_sizes, loss_size = sizes[len(named) :]
            bad_weights = not_finite(self.weights.stepped_names, weight_sizes)
        return StepInspection(
            # without flags, the weights are on another device
            edited=edits is None or is_edited,
            beyond_range=beyond_range,
            culprits=culprits,
            bad_weights=bad_weights,
            loss_size=loss_size,
        )

    def _agreed(self, found_inf: dict[int, bool]) -> dict[int, bool]:
        """Return loss -> found_inf, on which the processes of a distributed engine agree."""
        return found_inf

    def _culprits(
        self, gradients: Sequence[Tensor | None], known: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Return the names of the gradients with inf or NaN, or `known` if already read."""
        if known is not None:
            return known
        named = self.weights.by_name(coalesced(gradients))
        return not_finite(named, read_scalars(largest_magnitudes(list(named.values()))))

    def _report(
        self, decision: Decision, gradients: Sequence[Tensor | None], inspection: StepInspection
    ) -> StepReport:
        """Report the decision, the non-finite gradients, and the cause if it is not the scale."""
        culprits: tuple[str, ...] = ()
        if decision.found_inf:
            culprits = self._culprits(gradients, inspection.culprits)
        report = step_report(decision, culprits, self.skips_in_a_row)
        sentences = [report.why]
        cause = diagnosis(report, self.recipe.scaler)
        if cause is not None:
            sentences.append(cause + inspection.cause_beyond_gradients(self.weights, self._loss))
        if self._boundary.loss_inside and decision.skip:
            sentences.append(LOSS_INSIDE_MODEL)
        self._boundary.loss_inside = False
        return replace(report, why=". ".join(sentences))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the last step.

        Args:
            set_to_none: as in torch. False: a parameter that has had a gradient gets one of zeros,
                which the step uses if the next backward does not reach it: momentum and weight
                decay still change it.
        """
        zeros = {} if set_to_none else self._gradients.gradient_layouts()
        self.weights.zero_grad()
        self._gradients = StepGradients(self.weights, zeros)
        self._ranges.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes, in types that torch.load(weights_only=True) reads.

        "model" is a plain FP32 state dict, as `fp32_model` returns. The tensors are not copies:
        save them before the next step.

        Raises:
            RuntimeError: there are gradients that no step has used; a state has no gradients.
        """
        if self._gradients.has_pending:
            raise RuntimeError(
                "expected no pending gradients, since a checkpoint holds none; save it after "
                "step()."
            )
        return self._state()

    def _state(self) -> dict[str, Any]:
        state = {
            "model": self.fp32_model(),
            "weights": self.weights.state_dict(),
            "optimizer": type(self.weights.optimizer).__name__,
            "scalers": [asdict(scaler) for scaler in self.scalers],
            "recipe": self.recipe.as_dict(),
            "policy": registered_rules(),
            "steps": self.steps,
            "skips_in_a_row": self.skips_in_a_row,
        }
        if self.products is not None:
            state["products"] = self.products.memory.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned, bit for bit; gradients are cleared.

        Raises:
            TypeError: the state is not a mapping.
            ValueError: the state is damaged, or of another network, optimizer or recipe; the
                message says which, and what to do. Nothing has changed then.
        """
        require_keys(state)
        try:
            self._load_state(state)
        # what a part of another type raises where it is used
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"this state is damaged: {type(error).__name__}: {error}. Load an older one."
            ) from error

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state that has all parts; change nothing if a part of it does not fit."""
        require_layout(state)
        require_same(self._state(), state)
        scalers = [as_scaler(scaler) for scaler in state["scalers"]]
        products: Mapping[str, Any] | None = None
        if self.products is not None:
            require_layout(state, PRODUCTS_LAYOUT)
            products = state["products"]
        with self._loading(state["model"], products):
            self.weights.load_state_dict(state["weights"])
        self.resume_at(scalers, state["steps"], state["skips_in_a_row"])

    def resume_at(self, scalers: list[ScalerState], steps: int, skips: int) -> None:
        """Set the scalers and counters and clear the gradients, after loading the weights."""
        self.scalers = scalers
        self.steps = steps
        self.skips_in_a_row = skips
        self.weights.zero_grad()
        self._gradients = StepGradients(self.weights)
        self._ranges.forget()

    def fp32_model(self, averages: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return the model's state dict in FP32, with the precision of the masters.

        Args:
            averages: name of each trainable parameter -> FP32 weight, used instead of the masters.

        Raises:
            TypeError: averages is not a mapping.
            ValueError: averages have other names than the trainable parameters.
        """
        weights = self.weights
        values: Mapping[str, Tensor] = {}
        if averages is not None:
            require_kind(averages, Mapping, "averages", "Pass parameter name -> weight.")
            different = sorted(averages.keys() ^ set(weights.stepped_names))
            if different:
                raise ValueError(
                    "averages: expected one for each trainable parameter and no others, but "
                    f"{different[0]!r} is only on one side. Construct a new Ema(engine)."
                )
            values = averages
        elif weights.master:
            values = weights.named_masters()
        by_weight: dict[Tensor, Tensor] = {
            p: values[name] for p, name in weights.names.items() if name in values
        }
        state: dict[str, Any] = {}
        # By parameter, not by name: the state dict lists a tied weight under each of its names.
        for name, value in uncompiled(self.model).state_dict(keep_vars=True).items():
            if isinstance(value, Tensor):
                tensor = by_weight.get(value, value).detach()
                state[name] = tensor.float() if tensor.dtype in HALVES else tensor
            else:
                state[name] = value
        return state

    @torch.no_grad()
    def load_model(self, state: Mapping[str, Any]) -> None:
        """Load the weights of a plain torch state dict, in any precision.

        The rest of the engine is unchanged.

        Raises:
            TypeError: the state dict is not a mapping.
            ValueError: the state dict is of another network, and the message names the keys that
                differ; or a finite number would become inf in the recipe's format. Nothing has
                changed then.
        """
        with self._loading(state):
            pass
        for name, master in self.weights.named_masters().items():
            master.copy_(state[name])
        self.weights.copy_back()

    def _require_range(self, state: Mapping[str, Any]) -> None:
        """Refuse a state dict with a number that would become inf in the model's dtypes."""
        for name, own in uncompiled(self.model).state_dict().items():
            value = state[name]
            if isinstance(own, Tensor) and isinstance(value, Tensor):
                require_range(f"{name!r} of this state dict", value, own.dtype)

    @contextmanager
    def _loading(
        self, model_state: Mapping[str, Any], products_state: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Load the model and the products' memory; restore both if that or the block fails."""
        model = uncompiled(self.model)
        require_same_network(model.state_dict(), model_state)
        self._require_range(model_state)
        self.weights.adopt_edits()
        parts: list[tuple[nn.Module | ScaleMemory, Mapping[str, Any]]] = [(model, model_state)]
        if self.products is not None and products_state is not None:
            parts.append((self.products.memory, products_state))
        before = [(part, copy.deepcopy(part.state_dict())) for part, _ in parts]
        try:
            for part, state in parts:
                part.load_state_dict(state)
            yield
        except BaseException:
            for part, earlier in before:
                part.load_state_dict(earlier)
            raise
