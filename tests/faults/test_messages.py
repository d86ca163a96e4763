"""Messages of other frameworks, found as users paste them: wrapped, quoted, with ranks and
tracebacks.
"""

import re
import tomllib
from pathlib import Path

from labkit.cli import main
from labkit.faults import cards, explain
from labkit.faults.fault import address
from labkit.faults.messages import MESSAGES, messages_in

ROWS = tomllib.loads(Path(__file__).with_name("pasted_messages.toml").read_text(encoding="utf-8"))[
    "message"
]
# A message as a user pastes it -> a part of the known message.
PASTED = {row["pasted"]: row["known"] for row in ROWS}


NO_MESSAGES = [
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
    """Return a message as people paste it."""
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


def test_a_message_is_known_in_its_own_words_and_as_it_is_pasted() -> None:
    each = [(message, text) for message in MESSAGES for text in pasted(message.words)]
    assert [text for message, text in each if message not in messages_in(text)] == []
    for text, words in PASTED.items():
        assert any(message.words.startswith(words) for message in messages_in(text)), (
            text,
            messages_in(text),
        )
    for name in ("c10::Half", "at::Half"):  # the new and the old name of a type
        (found,) = explain(
            f"RuntimeError: value cannot be converted to type {name} without overflow"
        )
        assert found.id == "mask_constant"
    assert len({message.pattern for message in MESSAGES}) == len(MESSAGES), (
        "as many as sources were read"
    )
    assert len(MESSAGES) >= 45, "as many as sources were read"


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
    found = [message.words for message in messages_in(log)]
    assert [words[:20] for words in found] == [
        "UserWarning: None of",
        "mat1 and mat2 must h",
        "both inputs should h",
    ]


def test_a_cause_has_what_tells_it_from_the_others() -> None:
    several = [message for message in MESSAGES if message.causes]
    assert len(several) >= 60
    for message in several:
        assert len(set(message.causes)) == len(message.causes), message.words
        assert len(message.causes) >= 2, message.words
        assert all(" - " in cause for cause in message.causes), message.words


def test_the_command_names_both_causes_of_unscale_called_twice(capsys) -> None:
    text = "unscale_() has already been called on this optimizer since the last update()."
    assert main(["explain", text]) == 0
    said = " ".join(capsys.readouterr().out.split())
    first = said.index("each part of an accumulation")
    second = said.index("left out scaler.update")
    assert said.index("Cause 1:") < first < said.index("Cause 2:") < second
    assert "Repair: Unscale once" in said


def test_explain_prints_meaning_remedy_and_source(capsys) -> None:
    for message in MESSAGES:
        assert main(["explain", *message.words.split()]) == 0, message.words
        said = " ".join(capsys.readouterr().out.split())
        if not explain(message.words):
            assert "Run next:" in said, message.words
            assert message.source in said, message.words
        assert set(message.cards) <= cards().keys(), message.words
        assert address(message.source).startswith("https://"), message.words
        distribution = re.fullmatch(r"[\w.-]+ \d+(\.\d+)+", message.source)
        # a distribution's version says when, a thread's number does not
        assert distribution or re.fullmatch(r"\d{4}-\d{2}-\d{2}", message.date), message.words


def test_what_is_no_message_of_precision_gets_an_honest_answer(capsys) -> None:
    assert messages_in("") == []
    assert explain("") == []
    for text in NO_MESSAGES:
        assert messages_in(text) == [], text
        assert explain(text) == [], text
        assert main(["explain", *text.split()]) == 1, text
        assert "No known fault" in capsys.readouterr().err
