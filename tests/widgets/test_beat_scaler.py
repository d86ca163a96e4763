"""Beat the scaler without a browser: rules, score, texts, messages, and real trainings."""

import json
import math
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState, advance, initial
from labkit.train import StepRecord, TrainingRun
from labkit.widgets.beat_scaler import game as rules
from labkit.widgets.beat_scaler.game import (
    Duel,
    GameStep,
    Tally,
    course,
    make_run,
    on_slider,
    tally,
)
from labkit.widgets.beat_scaler.widget import BeatTheScaler, static_duel
from labkit.widgets.driven.controller import Button, Phase
from labkit.widgets.scaler_timeline.trace import recorded_trace, replay

# The logarithms of the least and the largest safe scale of a fake run, for a loss of weight 1.
KEEPS, OVERFLOWS = 8.0, 20.0


class FakeRun:
    """A run that trains nothing: it overflows above its window, and its loss is 1 / step."""

    def __init__(self, task, recipe, seed, weights, device=None):
        self.recipe = recipe
        self.scaler = initial(recipe.scaler)
        self.weights = weights
        self.done = 0
        self.measurements = 0

    def window(self):
        self.measurements += 1
        return KEEPS, OVERFLOWS

    def step(self):
        weight = self.weights[self.done]
        scale, self.done = self.scaler.scale, self.done + 1
        found = math.log2(scale) >= OVERFLOWS - weight
        self.scaler = advance(self.scaler, found, self.recipe.scaler)
        return StepRecord(self.done, 2.0**weight / self.done, scale, found, not found)


def duel(steps=60, **options):
    quick = {"device": "cpu", "make_run": FakeRun, "wait": lambda seconds: None}
    return Duel(rules.TASK, 0, steps=steps, **{**quick, **options})


def played(game, moves=()):
    """Play a game to its end; `moves` maps a step to the log2 of the scale from then on."""
    moves = dict(moves)
    game.handle(Button.START)
    while game.due:
        if len(game.steps) + 1 in moves:
            game.handle(partial(game.move, moves[len(game.steps) + 1]))
        game.tick()
    return game


def test_the_course_of_weights_follows_from_the_seed():
    assert course(480, 0) == course(480, 0)
    assert course(480, 0) != course(480, 1)


@pytest.mark.parametrize("seed", range(5))
def test_the_course_of_weights_begins_calmly(seed):
    assert set(course(480, seed)[: rules.CALM_STEPS]) == {0}


@pytest.mark.parametrize("seed", range(5))
def test_the_course_of_weights_stays_within_its_bounds(seed):
    weights = course(480, seed)
    assert min(weights) >= rules.LOWEST_WEIGHT
    assert max(weights) <= rules.HIGHEST_WEIGHT


@pytest.mark.parametrize("seed", range(5))
def test_no_single_scale_fits_a_whole_course_of_weights(seed):
    weights = course(480, seed)
    assert max(weights) - min(weights) > OVERFLOWS - KEEPS


@pytest.mark.parametrize("seed", range(5))
def test_a_shorter_course_is_the_beginning_of_a_longer_one(seed):
    assert course(100, seed) == course(480, seed)[:100]


def test_step_is_useful_if_it_kept_its_gradients():
    expected = {(8, False): (False, True), (7, False): (True, False), (20, True): (False, False)}
    for (scale, skipped), outcome in expected.items():
        step = GameStep(1, 0.5, 2.0**scale, skipped, KEEPS, OVERFLOWS)
        assert (step.lossy, step.useful) == outcome


def test_a_tally_counts_skipped_lossy_and_useful_steps():
    assert tally([]).useful == 0
    game = played(duel(200))
    weights = np.array(course(200))
    skipped = weights + 16 >= OVERFLOWS
    lossy = KEEPS - weights > 16
    mine, _ = game.tallies()
    assert mine.skipped == skipped.sum()
    assert mine.lossy == (lossy & ~skipped).sum()
    assert mine.useful == pytest.approx((200 - skipped.sum() - lossy.sum()) / 200)


def test_scales_outside_of_the_slider_are_refused():
    for exponent in (-5, 31, 2.5, True):
        with pytest.raises(ValueError, match="from -4 to 30"):
            on_slider(exponent)


def test_a_scale_may_be_a_number_of_numpy():
    assert on_slider(np.int64(4)) == 4


def test_invalid_games_are_refused():
    for options in ({"steps": 0}, {"pace": 0}, {"pace": float("nan")}):
        with pytest.raises(ValueError, match="1 step or more and a positive pace"):
            duel(**options)


def test_a_game_of_another_task_is_refused():
    with pytest.raises(ValueError, match="task: expected one of 'segmentation'"):
        BeatTheScaler("chess")


@pytest.mark.parametrize("steps", [2.5, "20", True])
def test_steps_of_a_game_are_an_int(steps):
    with pytest.raises(TypeError, match="steps: expected an int, got"):
        duel(steps=steps)


def test_a_move_takes_effect_at_your_next_step():
    still = played(duel(60))
    moved = played(duel(60), {11: 12, 31: 3})
    scales = [math.log2(step.scale) for step in moved.yours.steps]
    assert scales == [16.0] * 10 + [12.0] * 20 + [3.0] * 30
    assert [s.scale for s in moved.scalers.steps] == [s.scale for s in still.scalers.steps]


@pytest.fixture(scope="module")
def well_played():
    """A game of 300 steps, each at a scale in the middle of its window."""
    moves = {step: max(-4, 14 - weight) for step, weight in enumerate(course(300), 1)}
    return played(duel(300), moves)


def test_following_the_window_beats_the_scaler(well_played):
    """A scale in the middle of the window skips no step and loses no gradient."""
    mine, theirs = well_played.tallies()
    assert mine.useful == 1
    assert theirs.useful < 0.95
    assert well_played.sentence().startswith("You win: 300 of your 300 steps were useful")


def test_the_window_is_measured_in_some_steps_only(well_played):
    assert well_played.yours.run.measurements == math.ceil(300 / rules.MEASURE_EVERY)


def test_the_window_of_each_step_follows_its_weight(well_played):
    for step, weight in zip(well_played.yours.steps, course(300), strict=True):
        assert step.keeps_from == KEEPS - weight
        assert step.overflows_at == OVERFLOWS - weight


def test_the_loss_of_a_step_is_shown_without_its_weight(well_played):
    losses = [step.loss for step in well_played.yours.steps]
    assert losses == pytest.approx([1 / number for number in range(1, 301)])


def test_a_verdict_tells_apart_what_percents_would_not():
    game = duel(480)
    game.build()
    game.phase = Phase.FINISHED
    game.tallies = lambda: (Tally(480, 1, 0, 0.1), Tally(480, 1, 1, 0.1))
    words = "You win: 479 of your 480 steps were useful, 478 of the scaler's."
    assert game.sentence().startswith(words)


def test_the_game_waits_only_to_keep_its_pace():
    now = [100.0]
    waits = []

    def wait(seconds):
        waits.append(seconds)
        now[0] += seconds

    game = duel(10, pace=8, clock=lambda: now[0], wait=wait)
    game.handle(Button.START)
    for _ in range(4):
        game.tick()
    assert waits == pytest.approx([0, 0.125, 0.125, 0.125])
    # After a slow step or a pause, the game does not catch up.
    now[0] += 60
    for _ in range(2):
        game.tick()
    assert waits[4:] == pytest.approx([0, 0.125])


# 76 of 100 steps were useful, and 91.
FEWER = Tally(100, 4, 20, 0.1)
MORE = Tally(100, 6, 3, 0.2)


def sentence_of(phase, yours, scalers, steps=100, in_sight=False):
    """Return the sentence of a game in a phase, with the tallies of you and of the scaler."""
    game = duel(steps)
    game.build()
    game.handle(partial(game.show, in_sight))
    game.phase = phase
    game.tallies = lambda: (yours, scalers)
    return game.sentence()


def test_underflows_are_not_reported_while_a_game_runs():
    assert sentence_of(Phase.RUNNING, FEWER, MORE, steps=480) == (
        "Step 100 of 480: you have skipped 4 steps, the scaler 6. The end adds those that lost "
        "gradients."
    )


@pytest.mark.parametrize(
    ("phase", "yours", "scalers", "in_sight", "expected"),
    [
        (
            Phase.PAUSED,
            FEWER,
            MORE,
            False,
            "Paused at step 100 of 100: you have skipped 4 steps, the ",
        ),
        (
            Phase.FINISHED,
            FEWER,
            MORE,
            False,
            "The scaler wins: 76 of your 100 steps were useful, 91 of the scaler's. You skipped 4 "
            "and ran 20 at a scale ",
        ),
        (Phase.FINISHED, MORE, FEWER, True, "You win with the window in sight: 91 of"),
        (Phase.FINISHED, FEWER, FEWER, False, "A draw: 76 of"),
    ],
    ids=["paused", "lost", "won", "draw"],
)
def test_the_sentence_of_a_game_names_who_wins(phase, yours, scalers, in_sight, expected):
    assert sentence_of(phase, yours, scalers, in_sight=in_sight).startswith(expected)


def test_a_run_that_fails_is_reported():
    def breaks(*_arguments, **_options):
        raise RuntimeError("no such operator")

    assert (
        "RuntimeError: no such operator. Press Reset"
        in played(duel(20, make_run=breaks)).sentence()
    )


def test_showing_the_window_before_the_end_is_recorded():
    game = duel(10)
    game.handle(Button.START)
    game.tick()
    assert len(static_duel(game).axes[1].collections) == 0
    game.handle(partial(game.show, True))
    game.handle(partial(game.show, False))
    played(game)
    assert "with the window in sight" in game.sentence()
    # The two edges of the window are drawn.
    assert len(static_duel(game).axes[1].collections) == 2
    game.handle(Button.RESET)
    played(game)
    assert "in sight" not in game.sentence()


def test_showing_the_window_after_the_end_changes_no_score():
    game = played(duel(10))
    game.handle(partial(game.show, True))
    assert [score.peeked for score in game.scores] == [False]
    assert "in sight" not in game.sentence()


def test_a_window_hidden_before_the_first_step_does_not_count():
    game = duel(10)
    game.handle(partial(game.show, True))
    game.handle(partial(game.show, False))
    assert [score.peeked for score in played(game).scores] == [False]


def test_each_finished_game_has_a_row_of_scores():
    game = played(duel(steps=30))
    first = game.tallies()
    game.handle(Button.RESET)
    played(game, {1: 12})
    assert [(score.yours, score.scalers) for score in game.scores] == [first, game.tallies()]


def test_a_game_that_is_reset_before_its_end_has_no_score():
    game = played(duel(steps=30))
    game.handle(Button.RESET)
    game.handle(Button.START)
    game.tick()
    game.handle(Button.RESET)
    assert len(game.scores) == 1


def test_another_game_keeps_the_scores():
    game = played(duel(steps=30))
    game.handle(Button.RESET)
    game.handle(Button.START)
    assert len(game.scores) == 1


def test_another_place_of_training_keeps_the_scores():
    game = played(duel(steps=30))
    game.train_on(game.place)
    assert len(game.scores) == 1


class TestFrames:
    """What a game of 30 steps sends to its page: a frame before it, and one after each step."""

    @pytest.fixture
    def frames(self):
        return []

    @pytest.fixture
    def game(self, frames):
        widget = BeatTheScaler(steps=30, pace=1e6, device="cpu", make_run=FakeRun)
        widget.controller.send = lambda content, buffers: frames.append((content, buffers))
        game = widget.duel
        game.post(urgent=True)
        game.handle(Button.START)
        for _ in range(30):
            game.tick()
            game.post(urgent=True)
        yield game
        widget.close()

    def test_every_step_is_sent_once(self, game, frames):
        for side, steps in ((0, game.yours.steps), (1, game.scalers.steps)):
            sent = b"".join(buffers[side] for _, buffers in frames)
            rows = np.frombuffer(sent, "<f4").reshape(-1, 5)
            assert rows[:, 1].tolist() == [step.scale for step in steps]
            assert rows[:, 3].tolist() == [step.keeps_from for step in steps]

    @pytest.mark.usefixtures("game")
    def test_only_the_first_frames_are_whole(self, frames):
        assert [content["whole"] for content, _ in frames] == [True, True] + [False] * 29

    @pytest.mark.usefixtures("game")
    def test_the_recorded_game_is_sent_until_a_new_one_starts(self, frames):
        assert [bool(content["recorded"]) for content, _ in frames] == [True] + [False] * 30
        assert [len(buffers[2]) > 0 for _, buffers in frames] == [True] + [False] * 30

    def test_useful_steps_are_sent_at_the_end(self, game, frames):
        assert frames[11][0]["useful"] is None
        assert frames[-1][0]["useful"] == [side.useful for side in game.tallies()]

    @pytest.mark.usefixtures("game")
    def test_frames_are_json_without_nan(self, frames):
        json.dumps([content for content, _ in frames], allow_nan=False)

    def test_a_page_that_asks_again_gets_all_steps(self, game, frames):
        game.forget_sent()
        game.post(urgent=True)
        content, buffers = frames[-1]
        # Five numbers of four bytes each.
        assert (content["whole"], len(buffers[0])) == (True, 30 * 5 * 4)


@pytest.fixture
def widget():
    """A widget whose game of 30 steps trains nothing."""
    widget = BeatTheScaler(steps=30, pace=1e6, make_run=FakeRun)
    yield widget
    widget.close()


def test_messages_of_a_page_are_commands_of_the_game(widget):
    for message in ({"do": "move", "log2_scale": 7}, {"do": "show", "window": True}):
        widget.duel.handle(widget.command(message))
    assert (widget.duel.log2_scale, widget.duel.in_sight) == (7, True)


@pytest.mark.parametrize(
    ("message", "words"),
    [({"do": "jump"}, "jump"), ({"do": "move", "log2_scale": 31}, "from -4 to 30")],
)
def test_a_wrong_message_of_a_page_is_refused(widget, message, words):
    with pytest.raises(ValueError, match=words):
        widget.command(message)


@pytest.fixture
def over(widget):
    """The widget, whose thread has played a game at the scale 2^9."""
    ended = threading.Event()
    widget.controller.send = lambda content, buffers: content["phase"] == "finished" and ended.set()
    widget.move(9)
    widget.press("start")
    assert ended.wait(120)
    return widget


def test_the_widget_plays_a_game_in_its_thread(over):
    assert {step.scale for step in over.duel.yours.steps} == {2.0**9}


def test_a_still_has_the_picture_of_a_game(over):
    assert over.still()["image/png"].startswith(b"\x89PNG")


def test_a_closed_widget_has_no_thread(over):
    over.close()
    assert not over.controller.alive


FOLDERS = ("beat_scaler",)
PLAY = """(records, start, total, moves, sight) => {
  const game = newGame(records, start, total);
  press(game, "start");
  game.inSight = game.peeked = sight;
  while (game.phase === "running") {
    game.hand = moves[game.yours.length] ?? game.hand;
    playStep(game);
  }
  return { score: game.scores[0], scales: game.scalers.map(({ scale }) => scale),
    words: gameSentence(game, game.scores[0]), steps: game.yours.length };
}"""


@pytest.fixture(scope="module")
def on_page():
    """The records with which a page plays."""
    widget = BeatTheScaler(seed=0, device="cpu")
    yield widget.page_records()[0]["game"]
    widget.close()


def weighted(seed=0, steps=480):
    return rules.weighted_trace(recorded_trace(), course(steps, seed))


def test_the_scaler_of_a_page_equals_labkit_s(js, on_page):
    played = js.run(PLAY, on_page, 16, 480, {}, False)
    expected = replay(rules.SCALERS.scaler, weighted())
    assert played["scales"] == np.log2(expected.scale).tolist()
    score = played["score"]
    assert score["skipped"][1] == expected.skips
    assert score["lossy"][1] == int(expected.lossy.sum())


PEEK = """(records, shows) => {
  const game = newGame(records, 16, 3);
  for (const step of [-1, 0, 1, 2]) {
    for (const [at, inSight] of shows) if (at === step) showWindow(game, inSight);
    if (step < 0) press(game, "start");
    else playStep(game);
  }
  showWindow(game, true);
  return game.scores[0].peeked;
}"""


@pytest.mark.parametrize(
    ("shows", "peeked"),
    [
        ([], False),
        ([[-1, True], [-1, False]], False),
        ([[-1, True]], True),
        ([[1, True], [1, False]], True),
    ],
)
def test_a_page_notes_a_window_that_was_shown_before_the_end(js, on_page, shows, peeked):
    assert js.run(PEEK, on_page, shows) is peeked


def test_following_the_window_beats_the_scaler_on_a_page(js, on_page):
    trace = weighted()
    edges = zip(trace.keeps_from, np.log2(65520 / np.array(trace.largest)), strict=True)
    moves = {str(at): math.ceil((low + high) / 2) for at, (low, high) in enumerate(edges)}
    played = js.run(PLAY, on_page, 16, 480, moves, False)
    mine, theirs = played["score"]["useful"]
    assert mine > theirs + 0.05
    assert played["words"].startswith(f"You win: {480 * mine:.0f} of your 480 steps were useful")


def test_a_page_has_the_sentences_of_labkit(js, on_page):
    """They differ only in the losses, which a page does not have."""
    mine = Tally(100, 4, 20, 0.1)
    theirs = Tally(100, 6, 3, 0.2)
    score = {
        "steps": 100,
        "useful": [mine.useful, theirs.useful],
        "skipped": [4, 6],
        "lossy": [20, 3],
        "peeked": False,
    }
    for phase in (Phase.RUNNING, Phase.PAUSED, Phase.FINISHED):
        for in_sight in (False, True):
            game = duel(480)
            game.build()
            game.handle(partial(game.show, in_sight))
            game.phase, game.tallies = phase, lambda: (mine, theirs)
            state = {"phase": str(phase), "total": 480, "inSight": in_sight}
            sentence = js.run("gameSentence", state, {**score, "peeked": in_sight})
            assert game.sentence().split(" Loss at the end")[0] == sentence


def test_a_page_plays_the_game_by_keys(page, on_page):
    widget = BeatTheScaler(seed=0, device="cpu", steps=6, pace=1000)
    root = page.show(widget)
    widget.close()
    assert root.locator(".lk-sentence").inner_text().startswith("Press Start and keep the scale")
    root.get_by_role("button", name="Start").focus()
    for key in ("ArrowUp", "ArrowUp", "Enter"):
        page.page.keyboard.press(key)
    page.page.wait_for_selector(".labkit-beat-scaler[data-phase=finished]")
    page.page.wait_for_function(
        "/(win|wins|draw).*: .*6 steps/.test(document.querySelector('.lk-sentence').innerText)"
    )
    assert root.locator(".bs-scores tbody tr").count() == 1
    assert root.get_attribute("data-scale") == "18"
    assert "on recorded gradients" in root.locator(".run-place").inner_text()


SMALL = replace(rules.TASK, batch_size=2)


def test_a_run_of_weight_1_equals_a_training_run():
    """A weight of 2^0 changes no bit of a TrainingRun of the same task."""
    weighted = rules.WeightedRun(SMALL, rules.SCALERS, 0, (0,) * 3)
    plain = TrainingRun(SMALL, rules.SCALERS, 0, measure_every=0)
    assert [weighted.step() for _ in range(3)] == [plain.step() for _ in range(3)]


class TestWindow:
    """The scales of a run between which gradients neither underflow nor overflow."""

    # The logarithms of the factors of the loss in two steps.
    WEIGHTS = (4, 4)

    @pytest.fixture
    def run(self):
        return make_run(SMALL, rules.YOURS, 0, self.WEIGHTS)

    def test_the_window_contains_the_first_scale(self, run):
        keeps, overflows = run.window()
        assert keeps < 16 < overflows

    def test_a_step_above_the_window_is_skipped(self, run):
        _, overflows = run.window()
        run.scaler = ScalerState(2.0 ** math.ceil(overflows - self.WEIGHTS[0] + 0.5))
        assert not run.step().stepped

    def test_a_step_inside_the_window_is_taken(self, run):
        _, overflows = run.window()
        run.scaler = ScalerState(2.0 ** math.floor(overflows - self.WEIGHTS[0] - 1.5))
        assert run.step().stepped
        assert all(bool(torch.isfinite(p).all()) for p in run.model.parameters())

    def test_gradients_of_zero_overflow_at_no_scale(self):
        def loss(outputs, targets):
            return (0 * outputs).sum()

        run = make_run(replace(SMALL, loss=loss), rules.YOURS, 0, self.WEIGHTS)
        assert run.window() == (0, math.inf)


def test_a_compensated_weight_does_not_change_a_training():
    """If the scale compensates the weight, FP16 gradients are equal, and Adam trains equally."""
    losses = []
    for weights in ((0, 0, 0, 0), (0, 5, -3, 2)):
        run = make_run(SMALL, rules.YOURS, 0, weights)
        losses_of_run = []
        for weight in weights:
            run.scaler = ScalerState(2.0 ** (16 - weight))
            losses_of_run.append(run.step().loss / 2.0**weight)
        losses.append(losses_of_run)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[0][-1] != losses[0][0]
