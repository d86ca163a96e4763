"""Recordings of trainings: what two runs need to be compared later, in one small file.

Idea: a file is a zip of one JSON header and raw columns of numbers: names and shapes are in the
header, once. Of every sampled step it has the short form of all sketches. Of as many steps as there
is room for it has the drawn elements, exact norms and histograms, too: the first four, then those
that halve the rest. Those of layers and gradients come before those of weights and updates.

Invariants: a file has at most 2 MB, whatever the length of the training. It is written whole or not
at all. It holds no pickle, so reading one runs no code. A file that is cut, damaged or foreign is
refused with a sentence.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.formats import FP16
from labkit.instrument.fate import fate
from labkit.instrument.histogram import ExponentHistogram, shift
from labkit.instrument.sketch import DRAWN, NO_ELEMENTS, Sketch
from labkit.records import write_atomic

SCHEMA = "labkit.recording/1"
SUFFIX = ".labkit"
MOST_BYTES = 2_000_000
# unpacked: a file of strangers must not fill the memory
MOST_UNPACKED = 256_000_000
FIRST_STEPS = 4  # sampled steps that are dropped last
HEADER = "recording.json"
# short form of a sketch: column -> type; the norm is cut to 16 bits
COLUMNS = {
    "tensor": "<u2",
    "shape": "<u2",
    "dtype": "u1",
    "norm": "<u2",
    "largest": "<f4",
    "projection": "<f4",
    "digest": "<u2",
    "lost": "<f2",
}
# parts of the long form, in the order in which there is room for them
PARTS = {
    "layers": (
        "inputs",
        "activations",
        "activation gradients",
        "weight gradients",
        "step gradients",
    ),
    "weights": ("weights", "updates"),
}
# of an exponent histogram: column -> type; its counts follow
BINS = {"tensor": "<u2", "lo": "<i2", "length": "<u2", "zeros": "<i8", "non_finite": "<i8"}

Key = tuple[str, str]  # kind of a tensor, and its name
Digests = tuple[int, int]  # of a batch: of its bits in order, and in any order


class NotARecording(ValueError):
    """A file that is no recording, or one that is cut, damaged or of a later version."""


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One sampled step of a recording.

    step        its number, from 0
    scale       of its loss
    loss        unscaled, summed over the backward passes of the step; None where none was seen
    batch       digests of the model's inputs, a pair for each call
    random      checksum of the state of torch's generator at the first call; 0 where none was seen
    backward    number of backward passes
    sketches    (kind, name) -> sketch, in the order in which the tensors came to be
    histograms  (kind, layer) -> histogram; empty where there was no room
    """

    step: int
    scale: float = 1.0
    loss: float | None = None
    batch: tuple[Digests, ...] = ()
    random: int = 0
    backward: int = 0
    sketches: Mapping[Key, Sketch] = field(default_factory=dict)
    histograms: Mapping[Key, ExponentHistogram] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded training.

    model     class of the model
    steps     number of steps, skipped ones included
    every     one step in so many was sampled
    sampled   the sampled steps
    layers    layer -> its class
    lines     layer, "backward" or "step" -> file and line of the user's code that called it
    skipped   number of steps that a scaler did not take
    settings  what can change a run's numbers: versions, device, seed, threads, optimizers
    unseen    what could not be recorded, and why
    """

    model: str
    steps: int
    every: int
    sampled: tuple[RecordedStep, ...]
    layers: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    def save(self, path: Path | str) -> Path:
        """Write the recording to a file, whole or not at all, and return its path."""
        return write_atomic(Path(path), packed(self))

    @classmethod
    def load(cls, path: Path | str) -> Recording:
        """Read a recording.

        Raises:
            NotARecording: the file is none, or is cut or damaged.
            OSError: it cannot be read.
        """
        path = Path(path)
        with path.open("rb") as file:
            content = file.read(2 * MOST_BYTES + 1)
        if len(content) > 2 * MOST_BYTES:
            raise NotARecording(
                f"{path}: expected a recording of at most {MOST_BYTES:,} bytes, got a larger file. "
                "Pass a file that `labkit watch --record FILE` wrote."
            )
        try:
            return unpacked(content)
        except NotARecording as error:
            raise NotARecording(f"{path}: {error}") from error


def importance(index: int) -> tuple[int, int, int]:
    """Return a sort key of a sampled step: those that are kept longest come first.

    >>> sorted(range(10), key=importance)
    [0, 1, 2, 3, 8, 4, 6, 5, 7, 9]
    """
    if index < FIRST_STEPS:
        return 0, 0, index
    halvings = (index & -index).bit_length()
    return 1, -halvings, index


# Writing


class _Table:
    """Numbers for values that are written once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def packed(recording: Recording) -> bytes:
    """Return a recording as the content of a file."""
    tensors, shapes, dtypes = _Table(), _Table(), _Table()
    short = [
        zlib.compress(_short_form(step, tensors, shapes, dtypes)) for step in recording.sampled
    ]
    long = {
        part: [_long_form(step, kinds, tensors) for step in recording.sampled]
        for part, kinds in PARTS.items()
    }
    header: dict[str, Any] = {
        "schema": SCHEMA,
        "model": recording.model,
        "steps": recording.steps,
        "every": recording.every,
        "skipped": recording.skipped,
        "layers": dict(recording.layers),
        "lines": dict(recording.lines),
        "settings": dict(recording.settings),
        "unseen": list(recording.unseen),
        "tensors": tensors.values,
        "shapes": shapes.values,
        "dtypes": dtypes.values,
        "sampled": [_facts(step) for step in recording.sampled],
    }
    kept, chosen = _selected(short, long, len(zlib.compress(json.dumps(header).encode())))
    facts = header["sampled"]
    for index in kept:
        facts[index]["parts"] = [part for part in PARTS if index in chosen[part]]
    header["sampled"] = [facts[index] for index in kept]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), json.dumps(header), zipfile.ZIP_DEFLATED)
        for index in kept:
            number = recording.sampled[index].step
            archive.writestr(zipfile.ZipInfo(f"short/{number}"), short[index])
            for part in facts[index]["parts"]:
                archive.writestr(zipfile.ZipInfo(f"{part}/{number}"), long[part][index])
    return file.getvalue()


MEMBER = 160  # bytes that a zip needs for one member, at most


def _selected(
    short: Sequence[bytes], long: Mapping[str, Sequence[bytes]], taken: int
) -> tuple[list[int], dict[str, set[int]]]:
    """Return the indices of the steps that there is room for, and of those with each part."""
    left = MOST_BYTES - taken - 10 * MEMBER
    kept: list[int] = []
    for index in sorted(range(len(short)), key=importance):
        left -= len(short[index]) + MEMBER
        if left < 0:
            left += len(short[index]) + MEMBER
            break
        kept.append(index)
    chosen: dict[str, set[int]] = {part: set() for part in long}
    for part, forms in long.items():
        for index in kept:
            if not forms[index]:
                continue
            if len(forms[index]) + MEMBER > left:
                break
            left -= len(forms[index]) + MEMBER
            chosen[part].add(index)
    return sorted(kept), chosen


def _facts(step: RecordedStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "scale": step.scale,
        "loss": step.loss,
        "batch": step.batch,
        "random": step.random,
        "backward": step.backward,
        "tensors": len(step.sketches),
        "parts": [],
    }


def layer_of(name: str) -> str:
    """Return the layer of a tensor's name: "lstm #2" is the second tensor that "lstm" returned.

    >>> layer_of("lstm #2"), layer_of("fc.weight")
    ('lstm', 'fc.weight')
    """
    return name.partition(" #")[0]


def _short_form(step: RecordedStep, tensors: _Table, shapes: _Table, dtypes: _Table) -> bytes:
    log2_scale = round(math.log2(step.scale)) if step.scale > 0 else 0
    lost: dict[Key, float] = {}
    for (kind, layer), histogram in step.histograms.items():
        by = log2_scale if "gradients" in kind else 0
        fates = fate(shift(histogram, by), FP16)
        lost[kind, layer] = fates.underflowed + fates.overflowed
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for (kind, name), each in step.sketches.items():
        rows["tensor"].append(tensors.number((kind, name)))
        rows["shape"].append(shapes.number(each.shape))
        rows["dtype"].append(dtypes.number(each.dtype))
        rows["norm"].append(_cut(each.norm))
        rows["largest"].append(each.largest)
        rows["projection"].append(each.projection)
        rows["digest"].append(each.digest)
        rows["lost"].append(lost.get((kind, layer_of(name)), each.lost))
    return _columns(rows, COLUMNS)


def _long_form(step: RecordedStep, kinds: Sequence[str], tensors: _Table) -> bytes:
    """Return elements, norms and histograms of some kinds of tensors; b"" where none are kept."""
    sketches = [each for (kind, _), each in step.sketches.items() if kind in kinds]
    if not any(len(each.elements) for each in sketches):
        return b""
    bins: dict[str, list[Any]] = {name: [] for name in BINS}
    counts: list[Any] = []
    for key, histogram in step.histograms.items():
        if key[0] not in kinds:
            continue
        bins["tensor"].append(tensors.number(key))
        bins["lo"].append(histogram.lo)
        bins["length"].append(len(histogram.counts))
        bins["zeros"].append(histogram.zeros)
        bins["non_finite"].append(histogram.non_finite)
        counts.extend(histogram.counts.tolist())
    drawn = np.concatenate([each.elements for each in sketches])
    norms = np.array([each.norm for each in sketches], dtype="<f8")
    sizes = np.array([len(drawn), len(bins["lo"]), len(counts)], dtype="<u4").tobytes()
    numbers = _shuffled(np.asarray(drawn, dtype="<f4")) + _shuffled(norms)
    content = sizes + numbers + _columns(bins, BINS) + _shuffled(np.asarray(counts, dtype="<i8"))
    return zlib.compress(content)


def _cut(number: float) -> int:
    """Return the upper 16 bits of a number in FP32."""
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32)) >> 16


def _uncut(bits: int) -> float:
    """Return the middle of the numbers with these upper 16 bits; zero, inf and NaN as they are."""
    middle = 0x8000 if bits & 0x7FFF and bits & 0x7F80 != 0x7F80 else 0
    return float(np.uint32((bits << 16) | middle).view(np.float32))


def _columns(rows: Mapping[str, list[Any]], types: Mapping[str, str]) -> bytes:
    with np.errstate(over="ignore"):
        return b"".join(_shuffled(np.array(rows[name], dtype=types[name])) for name in types)


def _shuffled(numbers: np.ndarray[Any, Any]) -> bytes:
    """Return first bytes, then second bytes ...: those of exponents are alike, and pack well."""
    return numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


# Reading

UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    OSError,
)


def unpacked(content: bytes) -> Recording:
    """Return the recording in a file's content.

    Raises:
        NotARecording: it holds none, or is cut or damaged.
    """
    if not content.startswith(b"PK"):
        raise NotARecording(
            "expected a recording, got another kind of file. "
            "Pass a file that `labkit watch --record FILE` wrote."
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST_UNPACKED:
                raise ValueError("it is larger inside than a recording can be")
            if HEADER not in archive.namelist():
                raise NotARecording(
                    "expected a recording, got another zip archive. "
                    "Pass a file that `labkit watch --record FILE` wrote."
                )
            header = json.loads(archive.read(HEADER))
            _check_schema(header["schema"])
            return _recording(header, archive)
    except NotARecording:
        raise
    except UNREADABLE as error:
        raise NotARecording(
            f"expected a whole recording, got one that is cut or damaged ({error}). "
            "Copy the file again, or record the run again."
        ) from error


def _check_schema(schema: str) -> None:
    name, _, version = schema.partition("/")
    ours, _, our_version = SCHEMA.partition("/")
    if name != ours:
        raise ValueError(f"its schema is {schema!r}")
    if int(version) > int(our_version):
        raise NotARecording(
            f"expected the schema {SCHEMA}, got {schema}, of a later version. Update labkit."
        )


def _recording(header: Mapping[str, Any], archive: zipfile.ZipFile) -> Recording:
    tensors = [(str(kind), str(name)) for kind, name in header["tensors"]]
    shapes = [tuple(int(side) for side in shape) for shape in header["shapes"]]
    dtypes = [str(name) for name in header["dtypes"]]
    sampled = []
    for facts in header["sampled"]:
        number, rows = int(facts["step"]), int(facts["tensors"])
        columns, rest = _read_columns(_unpack(archive.read(f"short/{number}")), COLUMNS, rows)
        if rest:
            raise ValueError(f"step {number} has {len(rest)} bytes too many")
        sketches = {}
        for row, index in enumerate(columns["tensor"]):
            sketches[tensors[index]] = Sketch(
                shapes[columns["shape"][row]],
                dtypes[columns["dtype"][row]],
                _uncut(int(columns["norm"][row])),
                float(columns["largest"][row]),
                float(columns["projection"][row]),
                int(columns["digest"][row]),
                NO_ELEMENTS,
                float(columns["lost"][row]),
            )
        histograms: dict[Key, ExponentHistogram] = {}
        for part in facts["parts"]:
            data = _unpack(archive.read(f"{part}/{number}"))
            histograms |= _read_long(data, PARTS[part], sketches, tensors)
        sampled.append(
            RecordedStep(
                number,
                float(facts["scale"]),
                None if facts["loss"] is None else float(facts["loss"]),
                tuple((int(ordered), int(any_order)) for ordered, any_order in facts["batch"]),
                int(facts["random"]),
                int(facts["backward"]),
                sketches,
                histograms,
            )
        )
    return Recording(
        model=str(header["model"]),
        steps=int(header["steps"]),
        every=int(header["every"]),
        sampled=tuple(sampled),
        layers=_texts(header["layers"]),
        lines=_texts(header["lines"]),
        skipped=int(header["skipped"]),
        settings=_texts(header["settings"]),
        unseen=tuple(str(what) for what in header["unseen"]),
    )


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in fields.items()}


def _unpack(data: bytes) -> bytes:
    """Return data that zlib packed, at most as much as a recording can hold."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(data, MOST_UNPACKED)
    if not unpacking.eof:
        raise ValueError("a part of it is cut or too large")
    return found


def _read_column(data: bytes, kind: str, count: int) -> tuple[np.ndarray[Any, Any], bytes]:
    size = np.dtype(kind).itemsize
    if len(data) < size * count:
        raise ValueError("a column is too short")
    planes = np.frombuffer(data[: size * count], dtype=np.uint8).reshape(size, count)
    return np.ascontiguousarray(planes.T).view(kind).reshape(count), data[size * count :]


def _read_columns(
    data: bytes, types: Mapping[str, str], count: int
) -> tuple[dict[str, np.ndarray[Any, Any]], bytes]:
    columns = {}
    for name, kind in types.items():
        columns[name], data = _read_column(data, kind, count)
    return columns, data


def _read_long(
    data: bytes, kinds: Sequence[str], sketches: dict[Key, Sketch], tensors: Sequence[Key]
) -> dict[Key, ExponentHistogram]:
    """Add elements and norms to the sketches of some kinds, and return their histograms."""
    keys = [key for key in sketches if key[0] in kinds]
    drawn, rows, bins = (int(size) for size in np.frombuffer(data[:12], dtype="<u4"))
    numbers, data = _read_column(data[12:], "<f4", drawn)
    norms, data = _read_column(data, "<f8", len(keys))
    columns, data = _read_columns(data, BINS, rows)
    counts, data = _read_column(data, "<i8", bins)
    ends = np.cumsum([min(sketches[key].size, DRAWN) for key in keys])
    if data or ends[-1] != drawn or columns["length"].sum() != bins:
        raise ValueError("the lengths of its columns contradict each other")
    for key, norm, elements in zip(keys, norms, np.split(numbers, ends[:-1]), strict=True):
        sketches[key] = replace(sketches[key], norm=float(norm), elements=elements)
    parts = np.split(counts, np.cumsum(columns["length"])[:-1])
    return {
        tensors[columns["tensor"][row]]: ExponentHistogram(
            parts[row],
            int(columns["lo"][row]),
            int(columns["zeros"][row]),
            int(columns["non_finite"][row]),
        )
        for row in range(rows)
    }
