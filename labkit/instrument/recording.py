"""Recordings of trainings: the data for a later comparison of two runs, in one small file.

Idea: a file is a zip of one JSON header and raw columns of numbers. The header holds each name and
shape once. The file has the short form of all sketches of every sampled step. As far as its size
allows, it also has the long form of a step: drawn elements, exact norms and histograms. The first
four steps come first, then those that halve the rest of the training, and so on. The long forms of
layers and gradients come before those of weights and updates.

Invariants: a file has at most 2 MB, whatever the length of the training. It is written whole or not
at all. It holds no pickle, so reading one runs no code. `Recording.load` refuses a file that is
cut, damaged or of another kind, with a message that says so.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from labkit.findings import counted
from labkit.formats import FP16
from labkit.instrument.fate import fate
from labkit.instrument.histogram import ExponentHistogram, shift
from labkit.instrument.records import log2_of_scale
from labkit.instrument.sketch import DRAWN, NO_ELEMENTS, Sketch
from labkit.records import write_atomic

SCHEMA = "labkit.recording/1"
SUFFIX = ".labkit"
# size of a file
MOST_BYTES = 2_000_000
# A hostile file must not fill the memory. These are the size of all content of a file after
# decompression, in bytes, and the number of its sketches.
MOST_UNPACKED = 256_000_000
MOST_SKETCHES = 1 << 18
# size of the zip's directory and of the header's own member, with a margin
RESERVE = 1000
# characters of a setting or of another text about the run
MOST_CHARACTERS = 500
# size of a zip's own data for one member, without the name, which it has twice
MEMBER_BYTES = 76
# sampled steps that are dropped last
FIRST_STEPS = 4
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
# parts of the long form -> kinds of tensors; the parts are written in this order until the file is
# full
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
# long form of a histogram: column -> type; the counts follow as one more column
BINS = {"tensor": "<u2", "lo": "<i2", "length": "<u2", "zeros": "<i8", "non_finite": "<i8"}

# kind of a tensor, and its name
Key = tuple[str, str]
# digests of a batch: of its bits in order, and in any order
Digests = tuple[int, int]


class NotARecording(ValueError):
    """A file is of another kind, or is a recording that is cut, damaged or of a later version."""


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One sampled step of a recording.

    Attributes:
        step: number of the step, from 0.
        scale: scale of the loss.
        loss: unscaled loss, summed over the backward passes of the step; None if none was observed.
        batch: digests of the model's inputs, a pair for each call.
        random: checksum of the state of torch's generator at the first call; 0 if none was
            observed.
        backward: number of backward passes.
        sketches: (kind, name) -> sketch, in the order in which the tensors were computed.
        histograms: (kind, layer) -> histogram; empty if the file had no space left for them.
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

    Attributes:
        model: class of the model.
        steps: number of steps, skipped ones included.
        every: one step in so many was sampled.
        sampled: the sampled steps.
        layers: layer -> its class.
        lines: layer, "backward" or "step" -> file and line of the user's code that called it.
        skipped: number of steps that a scaler did not take.
        settings: what can change a run's numbers: versions, device, seed, threads, optimizers.
        unseen: what could not be recorded, and why.
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
        """Write the recording to a file, whole or not at all, and return its path.

        Raises:
            ValueError: the names of the layers and the settings alone exceed the limit of a file,
                or a step has more tensors than the format can hold.
        """
        return write_atomic(Path(path), packed(self))

    @classmethod
    def load(cls, path: Path | str) -> Recording:
        """Read a recording.

        Raises:
            NotARecording: the file is of another kind, or is cut or damaged.
            OSError: the file cannot be read.
        """
        path = Path(path)
        # twice the size of our own files, for those of a later version
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
    """Return a sort key for the sampled step of an index: the most important step comes first.

    After the first steps come those whose index has the largest power of two as a divisor. So the
    steps that remain are spread evenly over the training.

    >>> sorted(range(10), key=importance)
    [0, 1, 2, 3, 8, 4, 6, 5, 7, 9]
    """
    if index < FIRST_STEPS:
        return 0, 0, index
    # index & -index is the largest power of two that divides it
    power = (index & -index).bit_length()
    return 1, -power, index


# Writing


class _Table:
    """Table of distinct values; columns of numbers refer to a value by its number of 16 bits."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """Return the number of a hashable value, which is added if it is new.

        Raises:
            ValueError: the table is full.
        """
        if value not in self._numbers:
            if len(self.values) == 1 << 16:
                raise ValueError(
                    "expected a model with at most 65,536 different tensors in its steps, got more"
                )
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def packed(recording: Recording) -> bytes:
    """Return a recording as the content of a file.

    Raises:
        ValueError: as in `Recording.save`.
    """
    tensors = _Table()
    shapes = _Table()
    dtypes = _Table()
    # every form is made before the header, which holds the finished tables
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
        "layers": _shortened(recording.layers),
        "lines": _shortened(recording.lines),
        "settings": _shortened(recording.settings),
        "unseen": [_in_short(what) for what in recording.unseen],
        "tensors": tensors.values,
        "shapes": shapes.values,
        "dtypes": dtypes.values,
    }
    facts = [_facts(step) for step in recording.sampled]
    fitting, left = _fitting(header, facts, short)
    numbers = [step.step for step in recording.sampled]
    steps_with = _steps_with_long_forms(fitting, numbers, long, left)
    for index in fitting:
        facts[index]["parts"] = [part for part in PARTS if index in steps_with[part]]
    written = sorted(fitting)
    header["sampled"] = [facts[index] for index in written]

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), json.dumps(header), zipfile.ZIP_DEFLATED)
        for index in written:
            number = recording.sampled[index].step
            archive.writestr(zipfile.ZipInfo(f"short/{number}"), short[index])
            for part in facts[index]["parts"]:
                archive.writestr(zipfile.ZipInfo(f"{part}/{number}"), long[part][index])
    return file.getvalue()


def _shortened(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: _in_short(text) for name, text in texts.items()}


def _in_short(text: str) -> str:
    """Return a text; one that is too long is cut, and its checksum makes it differ from others.

    >>> _in_short("1e-08")
    '1e-08'
    >>> _in_short("betas, " * 1000)[-24:]
    'betas,... (crc 49fa70b5)'
    """
    if len(text) <= MOST_CHARACTERS:
        return text
    end = f"... (crc {zlib.crc32(text.encode()):08x})"
    return text[: MOST_CHARACTERS - len(end)] + end


def _size_in_zip(part: str, number: int, content: bytes) -> int:
    """Return the size of one part of a step in the file."""
    return MEMBER_BYTES + 2 * len(f"{part}/{number}") + len(content)


def _fitting(
    header: Mapping[str, Any], facts: Sequence[dict[str, Any]], short: Sequence[bytes]
) -> tuple[list[int], int]:
    """Return the steps whose short forms fit into the file, and the bytes that are left.

    Args:
        header: the header without the entries of the steps.
        facts: entry of each step in the header.
        short: short form of each step.

    Returns:
        The indices of the steps, the most important one first, and a number of bytes.

    Raises:
        ValueError: the header alone is larger than a file.
    """
    space = MOST_BYTES - RESERVE
    order = sorted(range(len(short)), key=importance)
    # number of steps -> size of their short forms, and number of their sketches
    members = [_size_in_zip("short", facts[index]["step"], short[index]) for index in order]
    sizes = list(accumulate(members, initial=0))
    sketches = list(accumulate((facts[index]["tensors"] for index in order), initial=0))

    def size_with(count: int) -> float:
        """Return the size of the header and the short forms with the first steps of the order."""
        if sketches[count] > MOST_SKETCHES:
            return inf
        # Which parts a step has is not known yet; with all of them, its entry is not smaller.
        entries = [facts[index] | {"parts": list(PARTS)} for index in sorted(order[:count])]
        text = json.dumps({**header, "sampled": entries})
        return len(zlib.compress(text.encode())) + sizes[count]

    # The size grows with the number of steps. The position found is that of the first number
    # whose steps do not fit.
    count = bisect_right(range(len(order) + 1), float(space), key=size_with) - 1
    if count < 0:
        raise ValueError(
            f"expected names of layers, settings and lines that fit into {MOST_BYTES:,} bytes, "
            f"got {size_with(0):,.0f} bytes of them. Watch a part of the model."
        )
    return order[:count], space - int(size_with(count))


def _steps_with_long_forms(
    fitting: Sequence[int],
    numbers: Sequence[int],
    long: Mapping[str, Sequence[bytes]],
    left: int,
) -> dict[str, set[int]]:
    """Return for each part the steps whose long forms fit into the rest of the file.

    Args:
        fitting: indices of the steps in the file, the most important one first.
        numbers: number of each step.
        long: part -> long form of each step, b"" for none.
        left: size of the rest of the file, in bytes.
    """
    steps_with: dict[str, set[int]] = {part: set() for part in long}
    for part, forms in long.items():
        for index in fitting:
            if not forms[index]:
                continue
            size = _size_in_zip(part, numbers[index], forms[index])
            if size > left:
                break
            left -= size
            steps_with[part].add(index)
    return steps_with


def _facts(step: RecordedStep) -> dict[str, Any]:
    """Return the entry of a step in the header."""
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
    """Return the columns of a step's sketches, without elements and histograms."""
    # a scale that has overflowed, or one of 0, shifts no histogram
    log2_scale = round(log2_of_scale(step.scale) or 0)
    lost: dict[Key, float] = {}
    for (kind, layer), histogram in step.histograms.items():
        # histograms of gradients are unscaled; FP16 rounds the scaled ones
        if "gradients" in kind:
            histogram = shift(histogram, log2_scale)
        fates = fate(histogram, FP16)
        lost[kind, layer] = fates.underflowed + fates.overflowed
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for (kind, name), each in step.sketches.items():
        rows["tensor"].append(tensors.number((kind, name)))
        rows["shape"].append(shapes.number(each.shape))
        rows["dtype"].append(dtypes.number(each.dtype))
        rows["norm"].append(_upper_bits(each.norm))
        rows["largest"].append(each.largest)
        rows["projection"].append(each.projection)
        rows["digest"].append(each.digest)
        rows["lost"].append(lost.get((kind, layer_of(name)), each.lost))
    return _columns(rows, COLUMNS)


def _long_form(step: RecordedStep, kinds: Sequence[str], tensors: _Table) -> bytes:
    """Return the long form of some kinds of tensors; b"" if elements of any were dropped.

    It is the sizes of the following columns, elements, norms, the columns of histograms, and
    counts.
    """
    sketches = [each for (kind, _), each in step.sketches.items() if kind in kinds]
    if not any(len(each.elements) for each in sketches):
        return b""
    # the reader derives the number of elements from the shape
    if any(len(each.elements) != min(each.size, DRAWN) for each in sketches):
        return b""
    bins: dict[str, list[Any]] = {name: [] for name in BINS}
    counts: list[int] = []
    for key, histogram in step.histograms.items():
        kind, _ = key
        if kind not in kinds:
            continue
        bins["tensor"].append(tensors.number(key))
        bins["lo"].append(histogram.lo)
        bins["length"].append(len(histogram.counts))
        bins["zeros"].append(histogram.zeros)
        bins["non_finite"].append(histogram.non_finite)
        counts.extend(histogram.counts.tolist())
    elements = np.concatenate([each.elements for each in sketches]).astype("<f4")
    norms = np.array([each.norm for each in sketches], dtype="<f8")
    sizes = np.array([len(elements), len(bins["lo"]), len(counts)], dtype="<u4")
    content = (
        sizes.tobytes()
        + _shuffled(elements)
        + _shuffled(norms)
        + _columns(bins, BINS)
        + _shuffled(np.array(counts, dtype="<i8"))
    )
    return zlib.compress(content)


def _upper_bits(number: float) -> int:
    """Return the upper 16 bits of a number in FP32."""
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32)) >> 16


def _from_upper_bits(bits: int) -> float:
    """Return the middle of the FP32 numbers with these upper 16 bits; zero, inf and NaN stay."""
    # In these 16 bits, 0x7FFF selects all but the sign, and 0x7F80 the exponent, which is all ones
    # in inf and NaN.
    is_zero = bits & 0x7FFF == 0
    is_finite = bits & 0x7F80 != 0x7F80
    lower_bits = 0x8000 if is_finite and not is_zero else 0
    return float(np.uint32((bits << 16) | lower_bits).view(np.float32))


def _columns(rows: Mapping[str, list[Any]], types: Mapping[str, str]) -> bytes:
    """Return the columns in the order of their types, each shuffled."""
    # a number that is too large for its column becomes inf
    with np.errstate(over="ignore"):
        return b"".join(_shuffled(np.array(rows[name], dtype=types[name])) for name in types)


def _shuffled(numbers: np.ndarray[Any, Any]) -> bytes:
    """Return the first bytes of all numbers, then their second bytes, and so on.

    The bytes of exponents are alike, and compress well side by side.
    """
    return numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


# Reading

# what zipfile, json, numpy and our own checks raise for a damaged file
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
        NotARecording: the content is that of another kind of file, or is cut or damaged.
    """
    # the signature of a zip
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
            return _recording(header, _Members(archive))
    except NotARecording:
        raise
    except UNREADABLE as error:
        raise NotARecording(
            f"expected a whole recording, got one that is cut or damaged ({error}). "
            "Copy the file again, or record the run again."
        ) from error


def _check_schema(schema: str) -> None:
    name, _, version = schema.partition("/")
    own_name, _, own_version = SCHEMA.partition("/")
    if name != own_name:
        raise ValueError(f"its schema is {schema!r}")
    if int(version) > int(own_version):
        raise NotARecording(
            f"expected the schema {SCHEMA}, got {schema}, of a later version. Update labkit."
        )


class _Members:
    """Reads the compressed members of a file, at most as much as a recording can hold."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._left = MOST_UNPACKED

    def read(self, name: str) -> bytes:
        """Return the content of a member, decompressed."""
        decompressor = zlib.decompressobj()
        # a limit of 0 would be none
        content = decompressor.decompress(self._archive.read(name), self._left + 1)
        self._left -= len(content)
        if not decompressor.eof or self._left < 0:
            raise ValueError("a part of it is cut or too large")
        return content


def _recording(header: Mapping[str, Any], members: _Members) -> Recording:
    tensors = [(str(kind), str(name)) for kind, name in header["tensors"]]
    shapes = [tuple(int(side) for side in shape) for shape in header["shapes"]]
    dtypes = [str(name) for name in header["dtypes"]]
    sampled: list[RecordedStep] = []
    sketches_left = MOST_SKETCHES
    for facts in header["sampled"]:
        number = int(facts["step"])
        rows = int(facts["tensors"])
        sketches_left -= rows
        if sketches_left < 0:
            raise ValueError("it has more tensors than a recording can hold")
        short = members.read(f"short/{number}")
        columns, rest = _read_columns(short, COLUMNS, rows)
        if rest:
            raise ValueError(
                f"expected step {number} to end, got {counted(len(rest), 'byte')} more"
            )
        sketches = _sketches(columns, tensors, shapes, dtypes)
        histograms: dict[Key, ExponentHistogram] = {}
        for part in facts["parts"]:
            long = members.read(f"{part}/{number}")
            histograms |= _add_long_form(long, PARTS[part], sketches, tensors)
        sampled.append(_recorded_step(facts, sketches, histograms))
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


def _sketches(
    columns: Mapping[str, np.ndarray[Any, Any]],
    tensors: Sequence[Key],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> dict[Key, Sketch]:
    """Return the sketches of a step, without elements, from the columns of their short form."""
    sketches: dict[Key, Sketch] = {}
    for row, index in enumerate(columns["tensor"]):
        sketches[tensors[index]] = Sketch(
            shape=shapes[columns["shape"][row]],
            dtype=dtypes[columns["dtype"][row]],
            norm=_from_upper_bits(int(columns["norm"][row])),
            largest=float(columns["largest"][row]),
            projection=float(columns["projection"][row]),
            digest=int(columns["digest"][row]),
            elements=NO_ELEMENTS,
            lost=float(columns["lost"][row]),
        )
    return sketches


def _recorded_step(
    facts: Mapping[str, Any],
    sketches: Mapping[Key, Sketch],
    histograms: Mapping[Key, ExponentHistogram],
) -> RecordedStep:
    """Return a sampled step from its entry in the header, its sketches and its histograms."""
    loss: float | None = None
    if facts["loss"] is not None:
        loss = float(facts["loss"])
    batch = [(int(ordered), int(any_order)) for ordered, any_order in facts["batch"]]
    return RecordedStep(
        step=int(facts["step"]),
        scale=float(facts["scale"]),
        loss=loss,
        batch=tuple(batch),
        random=int(facts["random"]),
        backward=int(facts["backward"]),
        sketches=sketches,
        histograms=histograms,
    )


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in fields.items()}


def _read_column(data: bytes, dtype: str, count: int) -> tuple[np.ndarray[Any, Any], bytes]:
    """Return the column at the start of the data, and the rest of the data."""
    itemsize = np.dtype(dtype).itemsize
    end = itemsize * count
    if len(data) < end:
        raise ValueError("a column is too short")
    # the inverse of `_shuffled`
    bytes_by_place = np.frombuffer(data[:end], dtype=np.uint8).reshape(itemsize, count)
    column = np.ascontiguousarray(bytes_by_place.T).view(dtype).reshape(count)
    return column, data[end:]


def _read_columns(
    data: bytes, types: Mapping[str, str], count: int
) -> tuple[dict[str, np.ndarray[Any, Any]], bytes]:
    """Return the columns at the start of the data, and the rest of the data."""
    columns = {}
    for name, dtype in types.items():
        columns[name], data = _read_column(data, dtype, count)
    return columns, data


def _add_long_form(
    data: bytes, kinds: Sequence[str], sketches: dict[Key, Sketch], tensors: Sequence[Key]
) -> dict[Key, ExponentHistogram]:
    """Add elements and norms to the sketches of some kinds, and return their histograms."""
    keys = [key for key in sketches if key[0] in kinds]
    # three sizes of 4 bytes, as `_long_form` writes them
    drawn, rows, bins = (int(size) for size in np.frombuffer(data[:12], dtype="<u4"))
    elements, data = _read_column(data[12:], "<f4", drawn)
    norms, data = _read_column(data, "<f8", len(keys))
    columns, data = _read_columns(data, BINS, rows)
    counts, data = _read_column(data, "<i8", bins)
    # a sketch has as many elements as were drawn of its tensor
    ends = np.cumsum([min(sketches[key].size, DRAWN) for key in keys])
    if data or ends[-1] != drawn or columns["length"].sum() != bins:
        raise ValueError("the lengths of its columns contradict each other")
    elements_by_key = np.split(elements, ends[:-1])
    for key, norm, own_elements in zip(keys, norms, elements_by_key, strict=True):
        sketches[key] = replace(sketches[key], norm=float(norm), elements=own_elements)
    counts_by_row = np.split(counts, np.cumsum(columns["length"])[:-1])
    histograms = {}
    for row in range(rows):
        key = tensors[columns["tensor"][row]]
        histograms[key] = ExponentHistogram(
            counts=counts_by_row[row],
            lo=int(columns["lo"][row]),
            zeros=int(columns["zeros"][row]),
            non_finite=int(columns["non_finite"][row]),
        )
    return histograms
