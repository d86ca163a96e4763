"""Checkpoints of distributed runs, which may resume with another number of processes.

Idea: each rank writes its parts by `torch.distributed.checkpoint`, under the names of the whole
tensors; a rank that reads them loads what its own parts need. Small values and the random
generators are in one more file for each rank. The folder gets its name after everything is written.

Invariant: a folder named step-N is complete, whenever a process is killed. A run that resumes with
the same number of ranks is bit-equal to an uninterrupted one, random numbers included.

Source: torch.distributed.checkpoint (save, load: resharding by name and position).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.tensor import DTensor

from labkit.amp.checkpoint import generators, set_generators
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import raising_rank_lost
from labkit.amp.loss_scaling.scaler import ScalerState
from labkit.amp.masters.convert import uncompiled
from labkit.amp.requirements import require_same

SCHEMA = "labkit.checkpoint.distributed/1"
KEPT = 2  # whole checkpoints in a folder; older ones are removed


def save(folder: str | Path, engine: DistributedEngine, **extra: Any) -> Path:
    """Write FOLDER/step-N, N being the engine's steps.

    All ranks call it, with a folder that all of them reach.

    Args:
        folder: a folder that all ranks reach; it is created if missing.
        engine: this rank's engine, between two steps.
        **extra: values and tensors of this rank that torch.load(weights_only=True) reads.

    Raises:
        RuntimeError: there are gradients that no step has used.
        RankLost: another rank ended or hangs; earlier checkpoints remain.
    """
    state = engine.state_dict()
    path = Path(folder) / f"step-{engine.steps:08d}"
    writing = path.with_name(f".{path.name}.writing")
    first = dist.get_rank(engine.group) == 0
    small = {
        key: state[key]
        for key in ("optimizer", "scalers", "recipe", "policy", "steps", "skips_in_a_row")
    }
    small["plain"] = {  # what optimizers keep beside tensors: the same on all ranks
        i: {field: value for field, value in fields.items() if not isinstance(value, Tensor)}
        for i, fields in state["weights"]["optimizer"]["state"].items()
    }
    small |= {
        "groups": state["weights"]["optimizer"]["param_groups"],
        "names": list(state["weights"]["master"]),
    }
    mine = {"rng": generators(), "generator": state["weights"]["generator"], "extra": extra}
    with raising_rank_lost("while it wrote a checkpoint", engine.group):
        if first:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
        dist.barrier(engine.group)
        torch.save(
            {"schema": SCHEMA, "world": engine.world, **small, **mine},
            writing / f"rank-{dist.get_rank(engine.group)}.pt",
        )
        state_dict_saver.save(
            _tensors(engine, state), checkpoint_id=writing, process_group=engine.group
        )
        dist.barrier(engine.group)
        if first:
            shutil.rmtree(path, ignore_errors=True)
            writing.rename(path)
            for old in sorted(Path(folder).glob("step-*"))[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier(engine.group)
    return path


def latest(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or None."""
    return max(Path(folder).glob("step-*"), default=None)


def load(path: str | Path, engine: DistributedEngine) -> dict[str, Any]:
    """Resume from a checkpoint of any number of ranks, sharded or not; return this rank's `extra`.

    If the number of ranks is the same, random generators are restored, too. Otherwise each rank
    gets rank 0's `extra` and keeps its generators.

    Raises:
        ValueError: it is not a checkpoint, or the engine was built otherwise; nothing has changed
            then.
    """
    path = Path(path)
    current = engine.state_dict()
    same_rank = path / f"rank-{dist.get_rank(engine.group)}.pt"
    try:
        stored = torch.load(
            same_rank if same_rank.exists() else path / "rank-0.pt", weights_only=True
        )
        found = filesystem.FileSystemReader(path).read_metadata().state_dict_metadata
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a complete checkpoint of many processes: {error}"
        ) from error
    weights = {
        "optimizer": {"param_groups": stored["groups"]},
        "master": dict.fromkeys(stored["names"]),
    }
    require_same(current, {**stored, "weights": weights, "model": {}})
    targets = _tensors(engine, current, found)
    with raising_rank_lost("while it read a checkpoint", engine.group):
        state_dict_loader.load(targets, checkpoint_id=path, process_group=engine.group)
    tensors = {
        name: t._local_tensor if isinstance(t, DTensor) else t for name, t in targets.items()
    }
    masters = {name: tensors[f"master.{name}"] for name in current["weights"]["master"]}
    scalers = [ScalerState(**scaler) for scaler in stored["scalers"]]
    each: dict[int, dict[str, Any]] = {i: dict(fields) for i, fields in stored["plain"].items()}
    for i, name in enumerate(masters):
        prefix = f"optimizer.{name}."
        read = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        if read:
            each[i] = each.get(i, {}) | read
    optimizer = {"state": each, "param_groups": stored["groups"]}
    with torch.no_grad():
        for p in engine.weights.model_weights:
            # rounding to nearest is exact here
            p.data.copy_(masters[engine.weights.names[p]])
        engine.weights.load_state_dict(
            {"master": masters, "optimizer": optimizer, "generator": stored["generator"]}
        )
    engine.resume_at(scalers, stored["steps"], stored["skips_in_a_row"])
    if stored["world"] == engine.world:
        set_generators(stored["rng"])
    extra: dict[str, Any] = stored["extra"]
    return extra


def _tensors(
    engine: DistributedEngine, state: Mapping[str, Any], stored: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name: masters, optimizer state, rest of the model.

    If `stored`, the metadata of a checkpoint (name -> shape and dtype), is passed, the tensors are
    empty ones to read into.
    """
    masters: dict[str, Tensor] = state["weights"]["master"]
    known: dict[str, Tensor] = {f"master.{name}": master for name, master in masters.items()}
    owner = {key: key.removeprefix("master.") for key in known}
    each = state["weights"]["optimizer"]["state"]
    for i, name in enumerate(masters):
        fields = (
            each.get(i, {}) if stored is None else _fields_of(name, masters[name], engine, stored)
        )
        for field, value in fields.items():
            if isinstance(value, Tensor):
                known[key := f"optimizer.{name}.{field}"] = value
                owner[key] = name if value.shape == masters[name].shape and field != "step" else ""
    shared = {key: _whole(engine, owner[key], value) for key, value in known.items()}
    if stored is not None:
        shared = {key: torch.empty_like(value) for key, value in shared.items()}
    model = uncompiled(engine.model)
    rest = {name: p.detach() for name, p in model.named_parameters() if name not in masters}
    rest |= {name: b for name, b in model.named_buffers() if name in model.state_dict()}
    return shared | {f"rest.{name}": tensor for name, tensor in rest.items()}


def _fields_of(
    name: str, master: Tensor, engine: DistributedEngine, stored: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return an empty optimizer state of one parameter, as in a checkpoint.

    Elementwise fields of this rank's part.
    """
    prefix = f"optimizer.{name}."
    shape = master.shape if engine.parts is None else engine.parts.pairs[name][0].shape
    found = {
        key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)
    }
    return {
        field: torch.empty(
            master.shape if value.size == shape and field != "step" else value.size,
            dtype=value.properties.dtype,
            device="cpu" if field == "step" else master.device,
        )
        for field, value in found.items()
        if "." not in field
    }


def _whole(engine: DistributedEngine, name: str, part: Tensor) -> Tensor:
    """Return a part as a DTensor, torch's type for parts of a whole, if the model is sharded."""
    if engine.parts is None or not name:
        return part
    like = engine.parts.pairs[name][0]
    placed = (like.device_mesh, like.placements)
    return DTensor.from_local(
        part, *placed, run_check=False, shape=like.shape, stride=like.stride()
    )
