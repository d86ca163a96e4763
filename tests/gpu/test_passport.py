"""Passports of a GPU: written although items fail, hang or crash, and read although damaged.

The items of most tests are small functions of this module, which a process serves as it does the
real ones. The tests of the reader use `passport_t4_simulated.jsonl`, which was written on the
simulated T4; the last test writes such a file.
"""

import itertools
import json
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit import cli
from labkit.amp import RECIPES
from labkit.gpu import passport
from labkit.gpu.catalogue import catalogue
from labkit.gpu.job import Job
from labkit.gpu.measure import ulps_apart
from labkit.gpu.passport.probes import REFUSALS, reason_of
from labkit.gpu.passport.read import KINDS
from labkit.gpu.worker import Item, Kind, WorkerProcess, answer, without_folders
from labkit.train import TASKS
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
T4 = Path(__file__).with_name("passport_t4_simulated.jsonl")
Found = dict[str, Any]

# --- writing --------------------------------------------------------------------------------------


def lines_before(device: str, found: Found) -> None:
    """Count the lines that the file of this passport holds while this item runs."""
    found["lines"] = len(Path(os.environ["TEST_PASSPORT"]).read_text().splitlines())


def fails(device: str, found: Found) -> None:
    found["by then"] = 3
    raise ValueError("expected an even number, got 3")


def hangs(device: str, found: Found) -> None:
    print("about to wait", file=sys.stderr)
    threading.Event().wait()


def aborts(device: str, found: Found) -> None:
    os.abort()


def prints(device: str, found: Found) -> None:
    # What a library prints must not be taken for an answer.
    print('{"item": "not an answer"}')
    found["ok"] = True


def has_no_memory(device: str, found: Found) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def breaks_the_context(device: str, found: Found) -> None:
    def refuse(device: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    sys.modules["labkit.gpu.worker"].synchronize = refuse
    refuse(device)


SERVED = {
    function.__name__: function
    for function in (lines_before, fails, hangs, aborts, prints, has_no_memory, breaks_the_context)
}


def serving(*names: str) -> list[str]:
    """Return the command of a process that serves these functions; "time NAME" is a timing."""
    return [sys.executable, "-c", f"from tests.gpu.test_passport import serve\nserve({names!r})"]


def serve(names: tuple[str, ...]) -> None:
    from labkit.gpu.worker import serve

    kinds = {True: Kind.TIMING, False: Kind.FACTS}
    serve(
        [
            Item(name, kinds[name.startswith("time ")], SERVED[name.removeprefix("time ")])
            for name in names
        ],
        "cpu",
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_PASSPORT", str(tmp_path / "passport.jsonl"))
    return tmp_path / "passport.jsonl"


def lines_of(file: Path) -> dict[str, Any]:
    return {line["item"]: line for line in map(json.loads, file.read_text().splitlines())}


# item -> its outcome; `lines_before` counts the lines in the file when it runs
OUTCOMES = {
    "prints": "done",
    "fails": "failed",
    "has_no_memory": "out of memory",
    "hangs": "process lost",
    "aborts": "process lost",
    "breaks_the_context": "failed",
    "lines_before": "done",
}


@dataclass(frozen=True)
class Passport:
    """A finished passport: its lines by item, what was printed, and how it ended."""

    lines: dict[str, Any]
    printed: list[str]
    end: str


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Passport:
    """A passport whose items fail in every way; it takes seconds."""
    file = tmp_path_factory.mktemp("passport") / "passport.jsonl"
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_PASSPORT", str(file))
        end = passport.make(
            file, serving(*OUTCOMES), item_seconds=3.0 * slowness(), say=printed.append
        )
    return Passport(lines_of(file), printed, end)


def test_passport_has_a_line_for_each_item(troubled: Passport) -> None:
    assert [*troubled.lines] == ["start", *OUTCOMES, "end"]
    outcomes = {name: troubled.lines[name]["outcome"] for name in OUTCOMES}
    assert outcomes == OUTCOMES


def test_each_item_has_its_line_before_the_next_begins(troubled: Passport) -> None:
    # the start, and the six items before
    assert troubled.lines["lines_before"]["lines"] == 7


def test_passport_with_failed_items_is_complete(troubled: Passport) -> None:
    assert troubled.end == "complete"
    assert troubled.lines["end"]["missing"] == []


def test_passport_names_its_schema(troubled: Passport) -> None:
    assert troubled.lines["start"]["schema"] == "labkit.passport/1"


def test_failed_item_has_its_error_and_traceback(troubled: Passport) -> None:
    fails = troubled.lines["fails"]
    assert fails["error"] == "ValueError: expected an even number, got 3"
    frames = [frame for frame in fails["traceback"] if "test_passport.py" in frame]
    assert any("fails" in frame for frame in frames)


def test_failed_item_keeps_what_it_had_measured(troubled: Passport) -> None:
    assert troubled.lines["fails"]["by then"] == 3


def test_hanging_item_says_where_it_hung(troubled: Passport) -> None:
    hangs = troubled.lines["hangs"]
    assert re.fullmatch(r"no answer within .* s, so its process was ended", hangs["error"])
    assert "about to wait" in hangs["said"]
    # the traceback of the process
    assert "in hangs" in hangs["said"]


def test_aborted_item_names_the_signal(troubled: Passport) -> None:
    assert troubled.lines["aborts"]["error"] == "its process ended with SIGABRT"


def test_item_after_a_broken_context_has_a_new_process(troubled: Passport) -> None:
    assert troubled.lines["breaks_the_context"]["broken"]
    assert troubled.lines["lines_before"]["outcome"] == "done"


def test_failures_are_printed_at_once(troubled: Passport) -> None:
    assert troubled.printed[:2] == [
        "facts: 7 items",
        "  fails: failed, ValueError: expected an even number, got 3",
    ]


def test_passport_names_no_folder_of_this_machine(troubled: Passport) -> None:
    text = json.dumps(troubled.lines)
    assert str(ROOT) not in text
    assert str(Path.home()) + os.sep not in text


def test_a_passport_without_time_has_timings_only(file: Path) -> None:
    """Timings have a time limit of their own."""
    assert (
        passport.make(file, serving("prints", "fails", "time prints"), seconds=0.0)
        == "the time was up"
    )
    lines = lines_of(file)
    assert list(lines) == ["start", "time prints", "end"]
    assert lines["end"]["missing"] == ["prints", "fails"]


def test_a_passport_without_a_process_says_why(file: Path) -> None:
    end = passport.make(file, [sys.executable, "-c", "raise SystemExit('no torch here')"])
    assert end == "no process for the items could be started: its process ended with status 1"
    assert "no torch here" in lines_of(file)["process"]["said"]
    assert lines_of(file)["end"]["outcome"] == end


def test_an_interrupted_passport_keeps_its_lines(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = WorkerProcess.ask
    printed = []

    def interrupted(worker: WorkerProcess, name: str, *rest: Any) -> Found:
        if name == "hangs":
            raise KeyboardInterrupt
        return ask(worker, name, *rest)

    monkeypatch.setattr(WorkerProcess, "ask", interrupted)
    assert (
        passport.make(file, serving("prints", "hangs", "fails"), say=printed.append)
        == "interrupted"
    )
    assert printed == ["facts: 3 items", "interrupted; what is done is in the file"]
    lines = lines_of(file)
    assert list(lines) == ["start", "prints", "end"]
    assert lines["end"]["missing"] == ["hangs", "fails"]


# --- the command ----------------------------------------------------------------------------------


def test_a_passport_replaces_no_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labkit.gpu.command.worker_command", lambda _: serving("prints"))
    words = ["gpu", "--device", "cpu", "--passport"]
    assert cli.main([*words, str(file)]) == 0
    assert f"complete. The passport is in {file}\nSend this file." in capsys.readouterr().out
    before = file.read_bytes()
    file.with_name("passport-2.jsonl").write_text("another")
    assert cli.main([*words, str(file)]) == 2
    message = capsys.readouterr().err
    assert "exists already and was not changed" in message
    # The message suggests the first name that is free.
    assert str(file.with_name("passport-3.jsonl")) in message
    assert file.read_bytes() == before


def test_a_path_that_cannot_be_written_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpu", "--device", "cpu", "--passport"]
    assert cli.main([*words, str(file.parent / "no folder" / "p.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    file.write_text("a file, not a folder")
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, str(file / "p.jsonl")])
    assert f"expected a folder, got the file {file}" in capsys.readouterr().err


# --- reading --------------------------------------------------------------------------------------


def read(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit status of `labkit gpu --read`, and all that it prints."""
    status = cli.main(["gpu", "--read", str(path)])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_worked_example_of_the_simulated_t4(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = read(T4, capsys)
    assert status == 0
    assert printed.startswith("Passport of Tesla T4 (simulated), 15 GiB, compute capability 7.5")
    layer_norm = "layer_norm of Half with weights of Float: refused, as expected"
    assert f"{layer_norm}: expected scalar type Half but found Float" in printed
    assert "batch_norm of Half with weights of Float: taken, as expected" in printed
    assert "  O1 " in printed.partition("Host waits of a step")[2]


def test_a_file_that_is_not_a_passport_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    for content, sentence in (
        (b"", "got an empty file"),
        (bytes(range(256)), "got 256 bytes of something else"),
        (b'{"cells": [], "nbformat": 4}\n', "got JSON of another kind (dict)"),
        (b"[1, 2]", "got JSON of another kind (list)"),
        (b"[" * 100_000, "got 100000 bytes of something else"),
    ):
        path.write_bytes(content)
        status, printed = read(path, capsys)
        assert status == 2
        assert "expected lines of JSON that `labkit gpu --passport` wrote" in printed
        assert sentence in printed
    none = tmp_path / "none"
    assert read(none, capsys) == (
        2,
        f"labkit gpu: {none} cannot be read (No such file or directory)\n",
    )
    assert read(tmp_path, capsys)[0] == 2


def test_a_damaged_passport_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = T4.read_bytes()
    path = tmp_path / "p.jsonl"
    half = whole[: len(whole) // 2]
    path.write_bytes(half)
    status, printed = read(path, capsys)
    assert status == 1
    number = half.count(b"\n") + 1
    size = len(half.rpartition(b"\n")[2])
    assert f"DAMAGED: the last line, {number}, was cut off after {size} bytes" in printed
    assert "DAMAGED: the last line, which says how it ended, is missing" in printed
    assert "Passport of Tesla T4" in printed


def test_a_passport_cut_off_anywhere_has_a_report() -> None:
    whole = T4.read_bytes()
    # Every 1997th byte: a prime, so lines are cut at all kinds of places.
    for end in range(whole.index(b"\n"), len(whole), 1997):
        found = passport.parse(whole[:end])
        assert not found.whole
        assert passport.report(found)


def test_a_line_that_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = T4.read_bytes().split(b"\n")
    path = tmp_path / "p.jsonl"
    rows[5] = b"\xff\x00\xfe"
    path.write_bytes(b"\n".join(rows))
    status, printed = read(path, capsys)
    assert status == 1
    assert "DAMAGED: line 6 is not a line of a passport" in printed
    # Without that line, and without the empty text after the last newline.
    assert len(passport.parse(path.read_bytes()).lines) == len(rows) - 2


def test_a_wrong_value_in_a_line_hides_no_other_line() -> None:
    rows = [json.loads(row) for row in T4.read_text().splitlines()]
    index_by_kind = {row["kind"] + row["item"].split(" ")[0]: n for n, row in enumerate(rows)}
    for number, junk in itertools.product(index_by_kind.values(), (None, "junk", [], {"a": "b"})):
        for key in rows[number]:
            changed = [*rows[:number], {**rows[number], key: junk}, *rows[number + 1 :]]
            text = passport.report(passport.parse("\n".join(map(json.dumps, changed)).encode()))
            assert "Tesla T4" in text or rows[number]["item"] == "card"


def report_with(*changed: Found) -> str:
    """Return the report of the T4's passport in which these lines replace those of their items."""
    rows = {row["item"]: row for row in map(json.loads, T4.read_text().splitlines())}
    rows |= {row["item"]: row for row in changed}
    return passport.report(passport.parse("\n".join(map(json.dumps, rows.values())).encode()))


def line_of(item: str) -> Found:
    found: Found = passport.read_file(T4).line(item)
    assert found, item
    return found


def test_a_report_names_losses_that_differ_from_the_cpu() -> None:
    line = line_of("train digits FP32")
    # The second loss is 0.1 % off, which is far beyond FP32, and within BF16.
    off = [line["cpu"][0], (float.fromhex(line["cpu"][1]) * 1.001).hex(), line["cpu"][2]]
    text = report_with({**line, "losses": off, "again": off, "ulps": [0, 12345, 0]})
    assert "step 2: within 9.5e-07 of the CPU's" in text
    assert "0.001 off, 12345 ulps" in text
    assert "0.001 off" not in report_with({**line, "recipe": "BF16", "losses": off, "again": off})


def test_a_report_names_losses_that_do_not_repeat() -> None:
    line = line_of("train digits O1")
    assert "the same losses twice" in report_with(
        {**line, "again": [*line["losses"][:2], (9.0).hex()]}
    )
    assert "the same losses twice" not in report_with(line)


def test_a_report_names_unexpected_refusals() -> None:
    name = "layer_norm of Half with weights of Float"
    for changed, words in (
        ({"refused": False, "message": ""}, f"{name}: taken, EXPECTED TO BE refused"),
        ({"message": "CUDA error: unknown"}, f"{name}: refused, BUT FOR ANOTHER REASON"),
        ({"refusal": "a new one"}, "a new one: refused, which is not in the table"),
    ):
        assert words in report_with({**line_of(f"refusal {name}"), **changed})


def test_a_report_names_waits_above_the_limit() -> None:
    for waits, copies, words in (
        (1, {}, ("1 waits   0 copies", ": within")),
        (
            5,
            {"aten::copy_ at labkit/b.py:2": 1},
            ("5 waits   1 copies", "ABOVE, most of them aten::equal at a.py:1"),
        ),
        # the copies of a line count beside its waits
        (
            3,
            {"aten::equal at a.py:1": 1, "aten::copy_ at labkit/b.py:2": 3},
            ("3 waits   4 copies", "ABOVE, most of them aten::equal at a.py:1"),
        ),
    ):
        text = report_with(
            {**line_of("waits O1"), "waits": {"aten::equal at a.py:1": waits}, "copies": copies}
        )
        (row,) = (row for row in text.splitlines() if row.startswith("  O1  "))
        assert words[0] in row
        assert row.endswith(words[1])


def test_equal_differences_share_a_row() -> None:
    failed = {
        "outcome": "failed",
        "error": "RuntimeError: expected scalar type Half but found Float\nmore",
    }
    end = {
        **line_of("end"),
        "outcome": "the time was up",
        "missing": ["train unet O1", "train unet O2", "pace gpt"],
    }
    text = report_with(
        *({**line_of(f"train digits {recipe}"), **failed} for recipe in ("FP32", "O1")), end
    )
    assert text.count("failed, RuntimeError: expected scalar type Half but found Float") == 1
    assert "(as layer_norm of Half with weights of Float)" in text
    assert "  the same: train digits O1" in text
    assert "Missing (the time was up): 2 of 'train', 1 of 'pace'" in text


# --- the items ------------------------------------------------------------------------------------


def test_the_cpu_accepts_the_calls_that_cuda_accepts() -> None:
    accepted = [row for row in REFUSALS if not row.refused]
    assert {row.name.partition(" ")[0] for row in accepted} == {"batch_norm"}
    for row in accepted:
        row.call("cpu")


def test_reasons_of_refusals_are_found_in_messages() -> None:
    assert reason_of("CUDA error: out of memory") == ""
    assert reason_of("RuntimeError: \"igamma_cuda\" not implemented for 'Half'") == "igamma of Half"


def test_ulps_are_counted_as_steps_of_nextafter() -> None:
    rng = np.random.default_rng(0)
    for start in [
        *rng.normal(size=20).astype("f4"),
        np.float32(0),
        np.float32(2**-149),
        np.float32(-(2.0**-126)),
    ]:
        end = start
        for steps in range(4):
            assert ulps_apart(float(start), float(end)) == steps
            end = np.nextafter(end, np.float32(np.inf))
    inf = float("inf")
    assert ulps_apart(inf, inf) == 0
    assert ulps_apart(inf, -inf) is None
    assert ulps_apart(inf, 1.0) is None


def test_catalogue_has_every_recipe_and_task() -> None:
    items = catalogue(Job("cpu"))
    names = [item.name for item in items]
    assert len(set(names)) == len(names)
    assert {f"train {task} {recipe}" for task in TASKS for recipe in RECIPES} <= set(names)
    # The reader has words for each kind of item.
    assert set(KINDS) == set(Kind)
    kinds = [item.kind for item in items]
    # Timings are last.
    assert kinds.index(Kind.TIMING) == len(kinds) - kinds.count(Kind.TIMING)


def test_a_training_on_the_cpu_equals_itself() -> None:
    (item,) = (item for item in catalogue(Job("cpu", quick=True)) if item.name == "train digits O1")
    line = json.loads(json.dumps(answer(item, "cpu")))
    assert line["outcome"] == "done"
    assert line["losses"] == line["cpu"]
    assert line["again"] == line["cpu"]
    assert line["ulps"] == [0, 0, 0]


# --- on the simulated card ------------------------------------------------------------------------

REFUSED, CAPTURED = (
    "refusal layer_norm of Half with weights of Float",
    "capture mma.sync.m16n8k8.f32.f16.f16.f32",
)
ON_T4 = (
    "card",
    "versions",
    "flags",
    REFUSED,
    "train digits O1",
    "train gpt FP16",
    "waits O1",
    "autocast torch_fp16",
    "autocast LSTM",
    "torch.amp CNN",
    CAPTURED,
    "pace digits",
)


def on_the_card(path: str) -> Any:
    """Write a passport of ON_T4, and return its lines."""
    chosen = f"main(Job('cuda', quick=True), only={ON_T4!r})"
    command = [sys.executable, "-c", f"from tests.gpu.checks.__main__ import Job, main\n{chosen}"]
    assert passport.make(Path(path), command) == "complete"
    return lines_of(Path(path))


@pytest.mark.slow
def test_a_passport_of_the_simulated_t4(simulated_gpu: Any, file: Path) -> None:
    lines = simulated_gpu("T4", on_the_card, str(file))
    assert set(lines) == {"start", *ON_T4, "end"}
    assert lines["card"]["capability"] == [7, 5]
    assert lines["train digits O1"]["losses"] == lines["train digits O1"]["cpu"]
    assert lines[REFUSED]["refused"]
    assert sum(lines["waits O1"]["waits"].values()) >= 1
    assert lines["pace digits"]["steps_per_second"]["FP32"] > 0
    assert lines["autocast torch_fp16"]["calls"] > 30
    assert all(
        how.startswith("unusable: ") for how in lines["autocast torch_fp16"]["unlike"].values()
    )
    # Without cuDNN, torch runs an LSTM step by step.
    unlike = lines["autocast LSTM"]["unlike"]
    assert unlike == dict.fromkeys(("LSTM", "LSTM, packed"), "the numbers differ")
    assert "LSTM, packed: the numbers differ" in passport.report(passport.read_file(file))
    # The simulated card has no driver that could execute PTX.
    assert lines[CAPTURED]["outcome"] == "failed"


def test_only_the_home_folder_itself_becomes_a_tilde(monkeypatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/people/ann"))
    assert without_folders("/people/ann/train.py") == "~/train.py"
    assert without_folders("/people/anna/train.py") == "/people/anna/train.py"
