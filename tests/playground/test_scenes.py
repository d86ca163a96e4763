"""The answers to the playground's questions, against runs of their settings, and its digits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.widgets.base.joining import in_order, joined
from labkit.widgets.playground.widget import SCENES
from tests.javascript.node import NodeEngine, node
from tests.playground.digits import FILE, digits_script

# JavaScript: run a scene, and return its outcome and those of the right answer.
RUN = """(scene, seed) => {
  const { problem, preset, changes, method, answers, right, seen } = SCENES[scene];
  const recipe = { ...RECIPE_PRESETS[preset], ...changes };
  const training = newTraining(PROBLEMS[problem](), recipe, seed);
  takeMethod(training, { ...training.method, ...method });
  const session = newSession(training, portraitInputs(training.problem));
  for (let step = 0; step < seen; step++) stepBoth(session);
  const outcome = outcomeOf(session);
  return [outcome, answers[right].outcomes];
}"""
# JavaScript: return the outcomes of all answers of a scene.
OUTCOMES = "(scene) => SCENES[scene].answers.flatMap(({ outcomes }) => outcomes)"
MODULES = ("session", "problems", "scenes", "outcome", "portraits")


@pytest.fixture(scope="module")
def engine() -> Iterator[NodeEngine]:
    """A process of node with the page's scenes."""
    if node() is None:
        pytest.skip("node runs the page's modules")
    with NodeEngine() as engine:
        engine.load(joined(in_order([f"playground/{name}.js" for name in MODULES])))
        yield engine


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("scene", SCENES)
def test_the_answer_is_what_a_run_shows(engine: NodeEngine, scene: str, seed: int) -> None:
    outcome, right = engine.call(RUN, [scene, seed])
    assert outcome in right


@pytest.mark.parametrize("scene", SCENES)
def test_an_outcome_has_one_answer(engine: NodeEngine, scene: str) -> None:
    outcomes = engine.call(OUTCOMES, [scene])
    assert len(outcomes) == len(set(outcomes))


def test_the_digits_are_those_of_the_lab() -> None:
    """After a change, `python -m tests.playground.digits` writes the file."""
    assert FILE.read_text(encoding="utf-8") == digits_script()
