"""Known messages are recognized as users paste them: wrapped, quoted, with ranks or a traceback."""

import re
import tomllib
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.faults import cards, explain
from labkit.faults.fault import address
from labkit.faults.messages import MESSAGES, Message, messages_in, remedies

ROWS = tomllib.loads(Path(__file__).with_name("pasted_messages.toml").read_text(encoding="utf-8"))[
    "message"
]
# A message as a user pastes it -> a part of the known message.
PASTED = {row["pasted"]: row["known"] for row in ROWS}


# Texts that are not about precision.
OTHER_TEXTS = [
    "IndexError: list index out of range",
    "mat1 and mat2 shapes cannot be multiplied (64x10 and 64x128)",
    "NotImplementedError: half the methods are not implemented",
    "loss is 0.3 and falling",
    "ModuleNotFoundError: No module named 'half'",
    "ValueError: Using a target size (torch.Size([3])) that differs from the input size in "
    "binary_cross_entropy",
    "Function AddBackward0 returned an invalid gradient at index 1 - expected type "
    "torch.FloatTensor but got torch.cuda.FloatTensor",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at "
    "non-singleton dimension 0",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two "
    "devices, cuda:0 and cpu!",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
    "ValueError: too many values to unpack (expected 2)",
    "ZeroDivisionError: float division by zero",
    "RuntimeError: Trying to backward through the graph a second time",
    "Error(s) in loading state_dict for Net: size mismatch for fc.weight",
    "KeyError: 'model.layers.0.weight'",
    "TypeError: forward() got an unexpected keyword argument 'labels'",
    "UserWarning: Anomaly Detection has been enabled.",
    "AssertionError: train loss 0.31 is not below 0.3",
    "Epoch 3: loss=0.7, grad_norm=1.3, skipped 0 files",
    "RuntimeError: Function MulBackward0 returned an invalid gradient at index 0 - got [3] but "
    "expected shape compatible with [4]",
    "AttributeError: module 'torch' has no attribute 'compile'",
    "ModuleNotFoundError: No module named 'apex_legends'",
    "loss is nano-sized",
    "ValueError: num_heads must be a divisor of embed_dim; half of the heads are unused",
]


def pasted(words: str) -> list[str]:
    """Return a message in the forms in which users paste it."""
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
        f"Error: {words}\n"
    )
    ranks = "\n".join(f"[rank1]: {line}" for line in traceback.splitlines())
    wrapped = "\n│ ".join(words.split(" "))
    return [
        words,
        words.upper(),
        traceback,
        ranks,
        wrapped,
        words.replace("'", "`").replace('"', "'"),
    ]


def test_a_message_is_recognized_in_each_form() -> None:
    for message in MESSAGES:
        for text in pasted(message.words):
            assert message in messages_in(text), text


@pytest.mark.parametrize("text", PASTED)
def test_a_pasted_text_is_recognized(text: str) -> None:
    words = [message.words for message in messages_in(text)]
    assert any(each.startswith(PASTED[text]) for each in words), words


# The present and the former name of one type.
@pytest.mark.parametrize("name", ["c10::Half", "at::Half"])
def test_both_names_of_a_type_lead_to_the_fault(name: str) -> None:
    (fault,) = explain(f"RuntimeError: value cannot be converted to type {name} without overflow")
    assert fault.id == "mask_constant"


@pytest.mark.parametrize("sentence", [remedies.DIAGNOSE, remedies.WATCH, remedies.IN_FP32])
def test_a_shared_sentence_is_apart_from_its_neighbours(sentence: str) -> None:
    shared = re.escape(sentence)
    for message in MESSAGES:
        assert not re.search(rf"\S{shared}|{shared}\S", message.next), message.next


def test_no_two_messages_have_the_same_pattern() -> None:
    assert len({message.pattern for message in MESSAGES}) == len(MESSAGES)


def test_each_text_is_explained_by_one_row() -> None:
    """The words of a row are not explained by a family as well, which says less."""
    twice = {
        message.words: [each.words for each in messages_in(message.words)] for message in MESSAGES
    }
    assert {words: rows for words, rows in twice.items() if rows != [words]} == {}


def test_two_messages_in_one_log_are_both_explained() -> None:
    log = (
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
        "RuntimeError: dot : expected both vectors to have same dtype, but found Half and Float\n"
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    )
    assert [message.words[:20] for message in messages_in(log)] == [
        "UserWarning: None of",
        "mat1 and mat2 must h",
        "both inputs should h",
    ]


def test_a_cause_has_what_tells_it_from_the_others() -> None:
    several = [message for message in MESSAGES if message.causes]
    # About half of the messages have several causes.
    assert len(several) > len(MESSAGES) / 3
    for message in several:
        assert len(set(message.causes)) == len(message.causes), message.words
        assert len(message.causes) >= 2, message.words
        assert all(" - " in cause for cause in message.causes), message.words


def test_the_command_names_both_causes_of_unscale_called_twice(capsys) -> None:
    text = "unscale_() has already been called on this optimizer since the last update()."
    assert main(["explain", text]) == 0
    output = " ".join(capsys.readouterr().out.split())
    parts = (
        "Cause 1:",
        "each part of an accumulation",
        "Cause 2:",
        "left out scaler.update",
    )
    places = [output.index(part) for part in parts]
    assert places == sorted(places)
    assert "Repair: Unscale once" in output


def test_explain_prints_meaning_remedy_and_source(capsys) -> None:
    for message in MESSAGES:
        assert main(["explain", *message.words.split()]) == 0, message.words
        # The lines of the output are broken at spaces and hyphens.
        output = "".join(capsys.readouterr().out.split())
        # Of a message that a fault explains, the command shows the fault.
        if not explain(message.words):
            for text in (message.means, message.next, message.source):
                assert "".join(text.split()) in output, (message.words, text)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.words[:40])
def test_a_message_has_known_cards_and_a_dated_source(message: Message) -> None:
    assert set(message.cards) <= cards().keys()
    assert address(message.source).startswith("https://")
    # A source such as "torch 2.10.0" needs no date, since the version has one.
    is_version = re.fullmatch(r"[\w.-]+ \d+(\.\d+)+", message.source)
    if not is_version:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", message.date)


@pytest.mark.parametrize("text", ["", *OTHER_TEXTS])
def test_other_texts_are_not_explained(text: str) -> None:
    assert messages_in(text) == []
    assert explain(text) == []


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_the_command_says_that_a_text_is_not_known(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *text.split()]) == 1
    assert "No known fault" in capsys.readouterr().err
