"""Checkpoints of distributed runs, which may resume with another number of processes.

Idea: each rank writes its parts by `torch.distributed.checkpoint`, under the names of the whole
tensors; a rank that reads them loads only its own parts. Small values, the states of the random
generators and the scales of low-bit products are in an additional file for each rank. The folder
gets its name after everything is written.

Invariant: a folder named step-N is complete, even if a process is killed while it writes. A run
that resumes with the same number of ranks is bit-equal to an uninterrupted one, random numbers
included.

Source: torch.distributed.checkpoint (save, load: resharding by name and position).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.tensor import DTensor

from labkit.amp.checkpoint import generators, require_readable, set_generators
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import raising_rank_lost
from labkit.amp.masters.convert import uncompiled
from labkit.amp.requirements import (
    PRODUCTS_LAYOUT,
    as_scaler,
    require_keys,
    require_layout,
    require_same,
    require_same_network,
)

SCHEMA = "labkit.checkpoint.distributed/1"
# Number of complete checkpoints that stay in a folder: the one just written and the newest others.
KEPT = 2


def save(folder: str | Path, engine: DistributedEngine, **extra: Any) -> Path:
    """Write a checkpoint to FOLDER/step-N, where N is the engine's number of steps.

    All ranks have to call it.

    Args:
        folder: a folder that all ranks can access; it is created if missing.
        engine: this rank's engine, between two steps.
        **extra: values and tensors of this rank, in types that torch.load(weights_only=True) reads.

    Returns:
        The folder of the checkpoint.

    Raises:
        RuntimeError: there are gradients that no step has used.
        TypeError: `extra` holds a type that torch.load(weights_only=True) does not read.
        RankLost: another rank ended or hangs; earlier checkpoints remain.
    """
    require_readable(extra)
    state = engine.state_dict()
    path = Path(folder) / f"step-{engine.steps:08d}"
    writing = path.with_name(f".{path.name}.writing")
    first = dist.get_rank(engine.group) == 0
    # the values of the engine's state without tensors
    small = {
        key: state[key]
        for key in ("optimizer", "scalers", "recipe", "policy", "steps", "skips_in_a_row")
    }
    # the optimizer's state without tensors, the same on all ranks
    small["plain"] = {
        index: {name: value for name, value in fields.items() if not isinstance(value, Tensor)}
        for index, fields in state["weights"]["optimizer"]["state"].items()
    }
    small["groups"] = state["weights"]["optimizer"]["param_groups"]
    small["names"] = list(state["weights"]["master"])
    of_this_rank = {
        "rng": generators(),
        "generator": state["weights"]["generator"],
        "extra": extra,
    }
    if "products" in state:
        of_this_rank["products"] = state["products"]
    with raising_rank_lost("while it wrote a checkpoint", engine.group):
        if first:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
        dist.barrier(engine.group)
        torch.save(
            {"schema": SCHEMA, "world": engine.world, **small, **of_this_rank},
            writing / f"rank-{dist.get_rank(engine.group)}.pt",
        )
        state_dict_saver.save(
            _tensors(engine, state), checkpoint_id=writing, process_group=engine.group
        )
        dist.barrier(engine.group)
        if first:
            _remove(path)
            writing.rename(path)
            others = [other for other in Path(folder).glob("step-*") if other != path]
            for old in sorted(others, reverse=True)[KEPT - 1 :]:
                _remove(old)
            # those that a killed process did not finish removing
            for rest in Path(folder).glob(".step-*.removed"):
                shutil.rmtree(rest, ignore_errors=True)
        dist.barrier(engine.group)
    return path


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint if it exists.

    It loses its name first, so that a process that is killed here leaves no incomplete step-N.
    """
    if not checkpoint.exists():
        return
    unnamed = checkpoint.with_name(f".{checkpoint.name}.removed")
    shutil.rmtree(unnamed, ignore_errors=True)
    checkpoint.rename(unnamed)
    shutil.rmtree(unnamed, ignore_errors=True)


def latest(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or None."""
    return max(Path(folder).glob("step-*"), default=None)


def load(path: str | Path, engine: DistributedEngine) -> dict[str, Any]:
    """Resume from a checkpoint of any number of ranks, sharded or not; return this rank's `extra`.

    If the number of ranks is the same, the random generators are restored, too. A rank that the
    checkpoint does not have gets rank 0's `extra`.

    Raises:
        ValueError: the folder is not a checkpoint, or the engine was built differently; nothing has
            changed then.
    """
    path = Path(path)
    current = engine.state_dict()
    small, metadata = read_small(path, dist.get_rank(engine.group))
    weights = {
        "optimizer": {"param_groups": small["groups"]},
        "master": dict.fromkeys(small["names"]),
    }
    # the model is among the tensors, which are loaded below
    saved_state = {**small, "weights": weights, "model": {}}
    require_keys(saved_state)
    require_same(current, saved_state)
    if engine.products is not None:
        require_layout(small, PRODUCTS_LAYOUT)
    scalers = [as_scaler(scaler) for scaler in small["scalers"]]
    targets = _tensors(engine, current, metadata)
    require_same_network(_networks_tensors(targets), _networks_tensors(metadata))
    with raising_rank_lost("while it read a checkpoint", engine.group):
        state_dict_loader.load(targets, checkpoint_id=path, process_group=engine.group)
    tensors = {
        name: t._local_tensor if isinstance(t, DTensor) else t for name, t in targets.items()
    }
    masters = {name: tensors[f"master.{name}"] for name in current["weights"]["master"]}
    optimizer = {
        "state": _optimizer_state(masters, tensors, small["plain"]),
        "param_groups": small["groups"],
    }
    if engine.products is not None:
        engine.products.memory.load_state_dict(small["products"])
    with torch.no_grad():
        for p in engine.weights.model_weights:
            # every master rounds to its weight, so this restores the weight exactly
            p.data.copy_(masters[engine.weights.names[p]])
        engine.weights.load_state_dict(
            {"master": masters, "optimizer": optimizer, "generator": small["generator"]}
        )
    engine.resume_at(scalers, small["steps"], small["skips_in_a_row"])
    if small["world"] == engine.world:
        set_generators(small["rng"])
    extra: dict[str, Any] = small["extra"]
    return extra


def read_small(path: Path, rank: int) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the small values that a rank wrote, and the metadata of the checkpoint's tensors.

    Args:
        path: the folder of the checkpoint.
        rank: the rank; one that the checkpoint does not have gets the values of rank 0.

    Raises:
        ValueError: the folder is not a complete checkpoint of this schema.
    """
    rank_file = path / f"rank-{rank}.pt"
    if not rank_file.exists():
        rank_file = path / "rank-0.pt"
    try:
        small = torch.load(rank_file, weights_only=True)
        metadata = filesystem.FileSystemReader(path).read_metadata().state_dict_metadata
    # errors on foreign files have no common type
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete checkpoint of many processes: {error}"
        ) from error
    schema = small.get("schema") if isinstance(small, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path}: expected a checkpoint of schema {SCHEMA!r}, got {schema!r}")
    return small, metadata


def _networks_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint that belong to the network, by name, without data.

    Args:
        tensors: name -> tensor, or the metadata of a stored one.
    """
    empty: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind in ("master", "rest"):
            size = tensor.shape if isinstance(tensor, Tensor) else tensor.size
            empty[name] = torch.empty(size, device="meta")
    return empty


def _optimizer_state(
    masters: Iterable[str],
    tensors: Mapping[str, Tensor],
    plain: Mapping[int, Mapping[str, Any]],
) -> dict[int, dict[str, Any]]:
    """Return the state of an optimizer, by the index of the parameter.

    Args:
        masters: the names of the masters, in the order of the optimizer.
        tensors: the tensors of a checkpoint; those of the state have names such as
            "optimizer.fc.weight.exp_avg".
        plain: index of a parameter -> the values of its state that are not tensors.
    """
    state = {index: dict(values) for index, values in plain.items()}
    for index, name in enumerate(masters):
        prefix = f"optimizer.{name}."
        for key, tensor in tensors.items():
            field = key.removeprefix(prefix)
            # a field with a point is of another parameter, whose name begins with this one's
            if key.startswith(prefix) and "." not in field:
                state.setdefault(index, {})[field] = tensor
    return state


def _tensors(
    engine: DistributedEngine, state: Mapping[str, Any], stored: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name: masters, optimizer state, rest of the model.

    Args:
        engine: the engine.
        state: its state.
        stored: the metadata of a checkpoint, name -> shape and dtype, to get empty masters and
            optimizer state to read into; None for those of the engine.
    """
    masters: dict[str, Tensor] = state["weights"]["master"]
    shared: dict[str, Tensor] = {}
    for index, (name, master) in enumerate(masters.items()):
        shared[f"master.{name}"] = _whole(engine, name, master)
        if stored is None:
            fields = state["weights"]["optimizer"]["state"].get(index, {})
        else:
            fields = _fields_of(name, master, engine, stored)
        for field, value in fields.items():
            if not isinstance(value, Tensor):
                continue
            # "step" is a scalar, and a master may be one, too
            elementwise = value.shape == master.shape and field != "step"
            shared[f"optimizer.{name}.{field}"] = (
                _whole(engine, name, value) if elementwise else value
            )
    if stored is not None:
        shared = {key: torch.empty_like(value) for key, value in shared.items()}
    model = uncompiled(engine.model)
    rest = {name: p.detach() for name, p in model.named_parameters() if name not in masters}
    rest |= {name: b for name, b in model.named_buffers() if name in model.state_dict()}
    return shared | {f"rest.{name}": tensor for name, tensor in rest.items()}


def _fields_of(
    name: str, master: Tensor, engine: DistributedEngine, stored: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return an empty optimizer state of one parameter, with the fields that a checkpoint has.

    Elementwise fields have the shape of this rank's part.
    """
    prefix = f"optimizer.{name}."
    whole_shape = master.shape
    if engine.parts is not None:
        sharded, _ = engine.parts.pairs[name]
        whole_shape = sharded.shape
    empty: dict[str, Tensor] = {}
    for key, value in stored.items():
        field = key.removeprefix(prefix)
        # a name with a point is of another parameter, whose name begins with this one's
        if not key.startswith(prefix) or "." in field:
            continue
        dtype = value.properties.dtype
        if field == "step":
            empty[field] = torch.empty(value.size, dtype=dtype, device="cpu")
        elif value.size == whole_shape:
            empty[field] = torch.empty(master.shape, dtype=dtype, device=master.device)
        else:
            empty[field] = torch.empty(value.size, dtype=dtype, device=master.device)
    return empty


def _whole(engine: DistributedEngine, name: str, part: Tensor) -> Tensor:
    """Return this rank's part of a tensor as a DTensor, if the model is sharded.

    Args:
        engine: the engine.
        name: the parameter whose shape and placement the whole tensor has.
        part: this rank's part.
    """
    if engine.parts is None:
        return part
    like, _ = engine.parts.pairs[name]
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
