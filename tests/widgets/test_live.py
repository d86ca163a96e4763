"""The live training without a browser: buttons, steps, texts and messages."""

import json
import math
import threading
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from labkit.amp import RECIPES, initial
from labkit.amp import static as static_scaler
from labkit.train import TASKS, StepRecord, TrainingRun, recorded
from labkit.widgets import LiveTraining
from labkit.widgets.base.number_words import short
from labkit.widgets.driven.controller import (
    FRAME_SECONDS,
    IN_FLIGHT,
    UNANSWERED_SECONDS,
    Button,
    Phase,
)
from labkit.widgets.live_training.branch import MERGE_STEPS, SETTLE_STEPS
from labkit.widgets.live_training.knobs import Knobs, Scaling, knobs_of, recipe_of
from labkit.widgets.live_training.words import rates, sentence, static_training, who

TASK = TASKS["segmentation"]


class FakeRun:
    """A run that trains nothing: its losses are given, its scale is that of the recipe."""

    losses: ClassVar[dict[int, float]] = {}
    breaks_at: ClassVar[int] = 0
    measure_every = 10

    def __init__(self, task, recipe, seed, device=None):
        self.recipe, self.scaler, self.done, self.changes = recipe, initial(recipe.scaler), 0, []

    def step(self):
        self.done += 1
        if self.done == self.breaks_at and self.recipe.model.name == "FP16":
            raise RuntimeError("no such operator")
        loss = (
            self.losses.get(self.done, 1 / self.done)
            if self.recipe.model.name == "FP16"
            else 0.5 / self.done
        )
        measured = self.measure_every and (self.done - 1) % self.measure_every == 0
        return StepRecord(
            self.done, loss, self.scaler.scale, False, True, 0.25 if measured else None
        )

    def change(self, recipe):
        self.changes.append(recipe)
        if recipe.scaler != self.recipe.scaler:
            self.scaler = initial(recipe.scaler)
        self.recipe = recipe

    def evaluate(self):
        return self.done / 100


def controller(steps=20, recipe="FP16", **attributes):
    return live_bench(recipe, steps, type("Fake", (FakeRun,), attributes))


def live_bench(recipe, steps, make_run):
    """Return the run of a live training that steps runs of another class."""
    return LiveTraining(TASK, recipe, steps=steps, device="cpu", make_run=make_run).forked_run


def change(c, **knobs):
    return partial(c.turn, knobs)


def ticked(c, times):
    c.handle(Button.START)
    for _ in range(times):
        c.tick()
    return c


def test_each_press_of_step_does_one_step():
    c = controller()
    c.handle(Button.STEP)
    c.tick()
    c.tick()
    assert (len(c.run.steps), c.phase, c.due) == (1, "paused", False)
    # Three presses before the first step is done.
    for _ in range(3):
        c.handle(Button.STEP)
    while c.due:
        c.tick()
    assert c.phase == "paused"
    assert len(c.run.steps) == 4


def test_stop_cancels_a_step_that_is_not_done():
    c = controller()
    for _ in range(4):
        c.handle(Button.STEP)
        c.tick()
    c.handle(Button.STEP)
    c.handle(Button.STOP)
    c.tick()
    assert c.phase == "finished"
    assert len(c.run.steps) == 4
    assert sentence(c).startswith("Stopped at step 4 of 20: ")


def after_reset():
    """Return a controller that was reset after 8 steps of a static scale, and the steps before."""
    c = controller()
    c.handle(change(c, scaling=Scaling.STATIC, log2_scale=5))
    ticked(c, 8)
    before = list(c.run.steps)
    c.handle(Button.RESET)
    return c, before


def test_reset_keeps_the_last_run_beside_an_empty_one():
    c, before = after_reset()
    assert c.phase == "idle"
    assert c.run.steps == []
    assert c.run.marks == []
    assert c.previous == before


def test_reset_keeps_the_knobs():
    c, _ = after_reset()
    assert c.run.wanted.log2_scale == 5
    ticked(c, 1)
    assert c.run.steps[0].scale == 32.0


def test_reset_keeps_the_steps_in_fp32():
    """FP32 trains beside the first run, and its steps are kept for the next one."""
    c, _ = after_reset()
    fp32 = list(c.fp32.steps)
    ticked(c, 5)
    assert len(fp32) == 8
    assert c.fp32.steps == fp32
    ticked(c, 5)
    assert [s.step for s in c.fp32.steps] == list(range(1, 11))


def test_change_takes_effect_at_the_next_step():
    c = ticked(controller(), 3)
    c.handle(change(c, scaling=Scaling.STATIC, log2_scale=10))
    assert [m.label for m in c.run.marks] == []
    c.tick()
    assert [s.scale for s in c.run.steps] == [1, 1, 1, 1024]
    assert [(m.step, m.label) for m in c.run.marks] == [(4, "scaling on, 2^10")]


def test_a_change_while_the_run_is_built_leaves_no_mark():
    c = controller()
    c.handle(Button.START)
    # Building takes a second, in which a learner may turn a knob.
    c.build()
    c.handle(change(c, scaling=Scaling.DYNAMIC, log2_scale=16))
    ticked(c, 2)
    assert c.run.marks == []
    assert c.run.steps[0].scale == 2.0**16


def at_a_dynamic_scale():
    """Return a controller with dynamic scaling from 2^16, whose scale has fallen to 2^12."""
    c = controller()
    c.handle(change(c, scaling=Scaling.DYNAMIC, log2_scale=16))
    ticked(c, 2)
    c.run.run.scaler = replace(c.run.run.scaler, scale=2.0**12)
    return c


def test_the_knob_of_the_scale_sets_a_dynamic_scale():
    c = at_a_dynamic_scale()
    c.handle(change(c, log2_scale=16))
    c.tick()
    assert c.run.steps[-1].scale == 2.0**16
    assert [m.label for m in c.run.marks] == ["scale 2^16"]


def test_another_knob_leaves_a_dynamic_scale_as_it_is():
    c = at_a_dynamic_scale()
    c.handle(change(c, masters="forgotten"))
    c.tick()
    assert c.run.steps[-1].scale == 2.0**12
    assert c.run.run.changes[-1].master_weights is False


def test_drag_moves_one_mark():
    c = ticked(controller(recipe="FP16 static", steps=40), 3)
    for exponent in (11, 12, 13):
        c.handle(change(c, log2_scale=exponent))
        c.tick()
    assert [(m.step, m.label) for m in c.run.marks] == [(6, "scale 2^13")]
    for _ in range(MERGE_STEPS):
        c.tick()
    c.handle(change(c, log2_scale=20))
    c.tick()
    assert [(m.step, m.label) for m in c.run.marks] == [
        (6, "scale 2^13"),
        (6 + 1 + MERGE_STEPS, "scale 2^20"),
    ]


def test_a_change_that_is_undone_leaves_no_mark():
    c = ticked(controller(), 3)
    for masters, labels in (("forgotten", ["master weights forgotten"]), ("kept", [])):
        c.handle(change(c, masters=masters))
        c.tick()
        assert [m.label for m in c.run.marks] == labels


def test_underflow_is_measured_after_a_drag_has_settled():
    c = ticked(controller(steps=40), 9)
    # The drag lasts from step 10 to 12, and over step 11, which would be measured.
    for exponent in (3, 4, 5):
        c.handle(change(c, scaling=Scaling.STATIC, log2_scale=exponent))
        c.tick()
    for _ in range(10):
        c.tick()
    assert [s.step for s in c.run.steps if s.underflow is not None] == [
        1,
        12 + SETTLE_STEPS - 1,
        21,
    ]


def test_every_recipe_has_its_knobs():
    for name, recipe in RECIPES.items():
        assert recipe_of(knobs_of(recipe, LiveTraining.offered)) == recipe, name


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("FP8", "E4M3 by autocast with dynamic scaling"),
        (
            "FP16 Kahan",
            "FP16 with a static scale of 2^10 and Kahan rounding, without master weights",
        ),
    ],
)
def test_a_run_is_named_by_its_knobs(recipe, words):
    assert who(knobs_of(RECIPES[recipe], LiveTraining.offered)) == words


def test_a_growth_interval_holds_for_every_dynamic_scaling():
    for recipe in ("FP16", "FP16 dynamic"):
        live = LiveTraining("digits", recipe, steps=4, device="cpu", growth_interval=7)
        live.forked_run.handle(change(live.forked_run, scaling=Scaling.DYNAMIC))
        assert recipe_of(live.forked_run.run.wanted).scaler.growth_interval == 7
        live.close()


def test_invalid_knobs_are_refused():
    c = controller(recipe="O3")
    c.handle(change(c, masters="kept"))
    assert c.run.wanted.masters == "none"
    assert "master weights are FP32" in c.notice
    c.handle(change(c, log2_scale=31))
    assert "from 0 to 30, got 31" in c.notice


def test_the_notice_of_a_refusal_goes_with_the_next_press():
    c = controller()
    c.handle(change(c, log2_scale=31))
    assert c.notice
    c.handle(Button.START)
    assert c.notice == ""


def test_invalid_arguments_of_a_live_training_are_refused():
    for arguments, words in (
        ({"task": "sorting"}, "'segmentation'.*got 'sorting'"),
        ({"recipe": "FP12"}, "'FP16 static'.*got 'FP12'"),
        ({"growth_interval": 0}, "growth_interval must be a whole number, 1 or more; got 0"),
        (
            {"recipe": replace(RECIPES["FP16"], scaler=static_scaler(1000))},
            r"'FP16' starts at 1000. Take 2\^10",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            LiveTraining(**arguments)


def test_after_an_error_reset_begins_again():
    c = ticked(controller(breaks_at=3), 3)
    ended = (
        "Training ended after step 2 by an error: RuntimeError: no such operator. Press "
        "Reset to begin again."
    )
    assert c.phase == "failed"
    assert sentence(c) == ended
    c.handle(Button.RESET)
    ticked(c, 2)
    assert c.phase == "running"
    assert len(c.run.steps) == 2
    assert len(c.fp32.steps) == 2


def test_the_sentence_says_since_when_the_loss_is_nan():
    c = ticked(controller(losses=dict.fromkeys(range(4, 21), math.nan)), 6)
    assert sentence(c) == (
        "Step 6 of 20: the loss of FP16 without scaling has been NaN since step 4, FP32 at "
        "0.0833. Infinity or NaN sits in its weights or activations, and no loss scale takes it "
        "out: press Reset."
    )


def test_a_loss_that_was_infinite_once_is_not_mentioned():
    text = sentence(ticked(controller(losses={4: math.inf}), 6))
    assert text.startswith("Step 6 of 20: ")
    assert "inf" not in text


def moment(
    phase=Phase.RUNNING, total=250, knobs=None, wanted=None, skipped=0, underflow=None, changes=0
):
    """Return a controller after 120 steps, of which the last ones were skipped."""
    c = controller(total)
    knobs = knobs or Knobs()
    c.phase, c.run.knobs, c.run.wanted = phase, knobs, wanted or knobs
    c.run.steps += [
        StepRecord(n, 0.0252, 1.0, False, n <= 120 - skipped, underflow) for n in range(1, 121)
    ]
    c.fp32.steps += [StepRecord(n, 0.0101, 1.0, False, True) for n in range(1, 121)]
    c.run.marks += [None] * changes
    return c


def static_knobs(log2_scale):
    return Knobs(scaling=Scaling.STATIC, log2_scale=log2_scale)


LOSSES = "is at 0.0252, FP32 at 0.0101"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            {"underflow": 0.82},
            f"Step 120 of 250: FP16 without scaling {LOSSES}; 82% of its gradient elements "
            "underflow.",
        ),
        (
            {"phase": Phase.PAUSED, "knobs": static_knobs(10), "underflow": 0.0},
            f"Paused at step 120 of 250: FP16 with a static scale of 2^10 {LOSSES}; none of its "
            "gradient elements underflow.",
        ),
        (
            {"phase": Phase.FINISHED, "changes": 2, "wanted": Knobs(scaling=Scaling.DYNAMIC)},
            f"Stopped at step 120 of 250, after 2 changes: FP16 without scaling {LOSSES}. "
            "The next run will be FP16 with dynamic scaling.",
        ),
        (
            {"knobs": static_knobs(30), "skipped": 7},
            f"Step 120 of 250: FP16 with a static scale of 2^30 {LOSSES}. The last 7 steps were "
            "skipped: at scale 2^0 the gradients overflow, so the weights stand still.",
        ),
    ],
    ids=["running", "paused", "stopped", "skipping"],
)
def test_the_sentence_describes_the_state_of_the_run(state, expected):
    c = moment(**state)
    c.run.run = c.fp32.run = FakeRun(TASK, RECIPES["FP16"], 0)
    assert sentence(c) == expected


def test_the_sentence_of_a_finished_run_states_its_metrics():
    c = moment(Phase.FINISHED, 120)
    c.run.metrics[120] = 0.04
    c.fp32.metrics[120] = 0.706
    c.run.run = c.fp32.run = FakeRun(TASK, RECIPES["FP16"], 0)
    assert sentence(c) == (
        "Finished at step 120: FP16 without scaling has Dice 0.040, FP32 0.706; losses "
        "0.0252 and 0.0101."
    )


def test_the_sentence_before_a_run_says_what_start_does():
    c = controller(250)
    c.handle(change(c, masters="forgotten"))
    assert sentence(c) == (
        "Nothing has run yet. Press Start: FP16 without scaling or master weights trains "
        "beside FP32 on the CPU, emulated, with the same first weights and the same "
        "batches, for 250 steps. Drawn faintly, from records: FP32 reached Dice 0.677 in "
        "250 steps."
    )


def test_a_run_of_one_step_has_the_singular():
    widget = LiveTraining("segmentation", "FP16", steps=1, device="cpu")
    assert "for 1 step." in widget.sentence
    widget.close()


def test_the_sentence_says_that_a_run_is_built():
    c = controller(250)
    c.phase = Phase.RUNNING
    assert sentence(c) == "Getting ready: the data, and networks with the same first weights."


def test_the_sentence_compares_the_rates_at_the_end():
    ended = moment(Phase.FINISHED, 120)
    ended.run.run = ended.fp32.run = FakeRun(TASK, RECIPES["FP16"], 0)
    ended.run.metrics[120], ended.fp32.metrics[120] = 0.04, 0.706
    ended.run.seconds, ended.fp32.seconds = [1 / 62.5] * 2, [1 / 41.04] * 2
    assert sentence(ended).endswith(
        " In the same seconds on the CPU, emulated, FP32 did 41 steps a second, this run 62.5."
    )


def test_rates_of_runs_beside_each_other_are_compared():
    assert rates(ticked(controller(), 20)) is not None


def test_rates_of_different_moments_are_not_compared():
    """The steps of FP32 are those of before, when the machine may have been slower."""
    c = ticked(ticked(controller(), 20), 20)
    assert (c.phase, len(c.run.steps)) == ("finished", 20)
    assert rates(c) is None
    assert "steps a second" not in sentence(c)


def test_a_run_without_masters_shows_swallowed_updates():
    c = live_bench("FP16 no master", 40, TrainingRun)
    c.task = TASKS["digits"]
    assert c.shares == ["swallowed"]
    ticked(c, 2)
    assert sentence(c).endswith("of its updates are swallowed.")
    c.handle(change(c, masters="kept"))
    c.tick()
    assert c.shares == ["swallowed"]


def test_forgotten_masters_show_swallowed_updates_as_well():
    c = ticked(controller(), 2)
    assert c.shares == ["underflow"]
    c.handle(change(c, masters="forgotten"))
    assert c.shares == ["underflow", "swallowed"]


def test_state_has_the_pictures_of_results():
    live = LiveTraining("painted_picture", "FP16", steps=400, device="cpu")
    recorded_steps = [picture["step"] for picture in result_of(live, "FP16")]
    assert recorded_steps == [0, 100, 200, 300, 400]
    c = live.forked_run
    c.handle(Button.START)
    c.build()
    assert [picture["step"] for picture in result_of(live, "FP32")] == [0]
    for _ in range(25):
        c.tick()
    assert [picture["step"] for picture in result_of(live, "FP16")] == [20]
    assert live.state()["result"]["wanted"] == vars(TASKS["painted_picture"].wanted_picture())
    json.dumps(live.state(), allow_nan=False)
    live.close()


def test_a_task_without_pictures_has_no_result():
    live = LiveTraining("digits", "FP16", device="cpu")
    assert live.state()["result"] is None
    live.close()


def test_a_short_run_is_compared_with_the_start_of_the_record():
    live = LiveTraining("digits", "FP16", steps=60, device="cpu")
    fp32, fp16 = (recorded("digits", recipe, 0).steps[59].loss for recipe in ("FP32", "FP16"))
    words = f"after 60 of 400 steps FP32's loss was {short(fp32)}, this recipe's {short(fp16)}."
    assert live.sentence.endswith(words)
    assert live.record_sentence.endswith(f"A{words[1:]}")
    live.close()


def result_of(live, name):
    """Return the pictures of a run in the state of a live training."""
    runs = {run["name"]: run["pictures"] for run in live.state()["result"]["runs"]}
    return runs[name]


class Post:
    """A page that records the frames it gets, at times that a test sets."""

    def __init__(self, c):
        self.now = 100.0
        self.frames = []
        self.box, c.clock = c, lambda: self.now
        c.send = lambda content, buffers: self.frames.append((content, buffers))
        c.forget_sent()

    def rows(self):
        return [np.frombuffer(buffers[4], "<f4").reshape(-1, 5) for _, buffers in self.frames]


def test_newcomer_gets_the_whole_curve():
    c = ticked(controller(losses={2: math.nan, 3: math.inf}), 3)
    post = Post(c)
    post.box.post(urgent=True)
    json.dumps(post.frames[0][0], allow_nan=False)
    np.testing.assert_array_equal(post.rows()[0][:, 0], np.float32([1, np.nan, np.inf]))
    np.testing.assert_array_equal(post.rows()[0][:, 3], np.float32([0.25, np.nan, np.nan]))
    post.box.forget_sent()
    post.box.post(urgent=True)
    assert [len(rows) for rows in post.rows()] == [3, 3]


def test_the_frame_after_a_reset_has_the_whole_run_before():
    c = ticked(controller(), 3)
    post = Post(c)
    c.handle(Button.RESET)
    post.box.post(urgent=True)
    content, buffers = post.frames[-1]
    assert content["whole"]
    # The steps of FP32, of the run before, of two records, of the run, and the map.
    assert [len(b) // 4 for b in buffers] == [3, 3, 0, 0, 0, 0]


def test_records_are_shown_until_a_run_begins():
    live = LiveTraining("segmentation_small", "FP16", steps=30, device="cpu")
    c = live.forked_run
    post = Post(live.forked_run)
    fp32, run = (recorded("segmentation_small", recipe, 0) for recipe in ("FP32", "FP16"))
    post.box.post(urgent=True)
    state, (_, _, losses, rows, *_) = post.frames[0]
    assert (
        state["recorded"]
        == f"recorded: {run.device}, torch {run.versions['torch']}, {run.date[:10]}"
    )
    np.testing.assert_array_equal(
        np.frombuffer(losses, "<f4"), np.float32([s.loss for s in fp32.steps[:30]])
    )
    assert np.frombuffer(rows, "<f4").reshape(-1, 5)[:, 0].tolist() == [
        np.float32(s.loss) for s in run.steps[:30]
    ]
    c.handle(Button.START)
    post.box.post(urgent=True)
    state, buffers = post.frames[-1]
    assert (state["recorded"], state["whole"], buffers[2:4]) == ("", True, [b"", b""])
    live.close()


def test_the_record_shown_is_of_the_recipe_that_start_runs():
    live = LiveTraining("segmentation_small", "FP16", steps=30, device="cpu")
    c = live.forked_run
    fp32, static = (recorded("segmentation_small", recipe, 0) for recipe in ("FP32", "FP16 static"))
    c.handle(change(c, scaling=Scaling.STATIC))
    assert c.recorded == (fp32, static)
    c.handle(change(c, log2_scale=3))
    assert c.recorded == (fp32, None)
    live.close()


def test_a_custom_task_has_no_record():
    custom = LiveTraining(replace(TASKS["digits"], batch_size=7), device="cpu")
    assert custom.state()["recorded"] == ""


def shown_for(times, seconds, drawn=True):
    """Return a page after some steps, each of which takes these seconds of its clock.

    Args:
        times: The number of steps.
        seconds: The time of a step.
        drawn: Whether the page answers that it has drawn each frame.
    """
    post = Post(ticked(controller(steps=500), 0))
    for _ in range(times):
        post.box.tick()
        post.now += seconds
        if post.box.post() and drawn:
            post.box.drawn(post.frames[-1][0]["number"])
    return post


def test_fast_steps_are_sent_in_thirty_frames_a_second():
    frames = shown_for(200, 0.005).frames
    assert len(frames) == pytest.approx(1 / FRAME_SECONDS, abs=2)


def test_frames_together_have_each_fast_step():
    post = shown_for(200, 0.005)
    post.box.post(urgent=True)
    assert sum(map(len, post.rows())) == 200


def test_steps_of_25_ms_have_thirty_frames_a_second_on_average():
    # A fixed gap between frames would give 20.
    assert 58 <= len(shown_for(80, 0.025).frames) <= 62


def test_urgent_frames_delay_the_next_frame_as_one_frame_does():
    post = Post(ticked(controller(), 3))
    for _ in range(60):
        post.box.post(urgent=True)
        post.box.drawn(post.frames[-1][0]["number"])
    post.now += FRAME_SECONDS
    assert post.box.post()


def test_a_page_that_does_not_answer_gets_fewer_frames():
    limit = IN_FLIGHT + 2.0 / UNANSWERED_SECONDS + 1
    assert 0 < len(shown_for(400, 0.005, drawn=False).frames) <= limit


class Watched:
    """A controller whose frames wake the test."""

    def __init__(self, c):
        self.frame = threading.Condition()
        self.frames = []
        self.c, c.send = c, self._take

    def _take(self, content, buffers):
        with self.frame:
            self.frames.append(content)
            self.frame.notify_all()

    def wait(self, condition):
        with self.frame:
            assert self.frame.wait_for(
                lambda: self.frames and condition(self.frames[-1]), timeout=120
            ), self.frames[-1:]
            return self.frames[-1]


@pytest.fixture
def watched():
    """Yield a function that watches a controller until the end of the test."""
    made = []

    def watch(c):
        made.append(Watched(c))
        return made[-1]

    yield watch
    for controller_watch in made:
        controller_watch.c.close()
        assert not controller_watch.c.alive


def test_a_training_in_its_thread_ends(watched):
    w = watched(controller(steps=30))
    w.c.ask(Button.START)
    last = w.wait(lambda f: f["phase"] == "finished")
    assert last["step"] == 30
    assert last["metric_name"] == "Dice"
    assert last["fp32_metric"] == "0.300"
    assert last["branches"][0]["metric"] == "0.300"


def test_an_error_of_the_widget_itself_is_told_and_logged(watched, caplog):
    w = watched(controller(steps=30))
    w.c.tick = lambda: 1 / 0
    w.c.ask(Button.START)
    assert "ZeroDivisionError" in w.wait(lambda f: f["phase"] == "failed")["sentence"]
    assert "could not continue" in caplog.text


def test_request_while_a_thread_ends_is_served_by_the_next(watched):
    w = watched(controller(steps=10**6))
    for _ in range(20):
        w.c.ask(Button.START)
        w.c.rest("nobody looks.")
    w.c.ask(Button.STEP, number=7)
    w.wait(lambda f: f["answered"] == 7 and f["step"] >= 1)
    assert sum(thread.name == "labkit live training" for thread in threading.enumerate()) == 1


def test_a_second_live_training_pauses_the_first(watched):
    gate = threading.Event()

    class Slow(FakeRun):
        def step(self):
            gate.wait(120)
            return super().step()

    first = watched(live_bench("FP16", 1000, Slow))
    second = watched(controller(steps=3))
    first.c.ask(Button.START)
    first.wait(lambda f: f["phase"] == "running")
    second.c.ask(Button.START)
    gate.set()
    assert "another live training" in first.wait(lambda f: f["phase"] == "paused")["notice"]
    second.wait(lambda f: f["phase"] == "finished")


def test_hidden_widget_pauses_and_resumes_on_request(watched):
    w = watched(controller(steps=10**6))
    w.c.ask(Button.START)
    w.wait(lambda f: f["step"] > 3)
    thread = w.c._thread
    second = watched(controller(steps=3))
    w.c.rest("nobody looks.")
    # Another live training does not wake the first.
    second.c.ask(Button.START)
    second.wait(lambda f: f["phase"] == "finished")
    thread.join(120)
    assert not w.c.alive
    steps = w.c.run.done
    w.c.call(lambda: None)
    shown = w.wait(lambda f: f["phase"] == "paused")
    assert shown["step"] == steps
    assert shown["notice"] == "Paused, because nobody looks."
    w.c.ask(Button.START)
    w.wait(lambda f: f["step"] > steps)


def test_messages_of_the_browser_are_commands():
    live = LiveTraining("digits", steps=4, device="cpu")
    for message, knobs in (
        ({"knob": "log2_scale", "to": 4}, {"log2_scale": 4}),
        ({"knob": "scaling", "to": "static"}, {"scaling": Scaling.STATIC}),
        ({"knob": "masters", "to": False}, {"masters": "forgotten"}),
        ({"knob": "masters", "to": True}, {"masters": "kept"}),
    ):
        before = live.forked_run.run.wanted
        live.forked_run.handle(live.command({"do": "turn", **message}))
        assert live.forked_run.run.wanted == replace(before, **knobs) != before
    assert live.command({"do": "press", "button": "step"}) is Button.STEP
    live.close()


def test_an_unknown_message_of_the_browser_is_refused():
    live = LiveTraining("digits", steps=4, device="cpu")
    with pytest.raises(ValueError, match="the page asked for"):
        live.command({"do": "dance"})
    live.close()


def test_a_hidden_page_lets_the_training_rest():
    live = LiveTraining("digits", steps=4, device="cpu")
    rests: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live.controller, "rest", rests.append)
        live._handle_msg(
            {"content": {"data": {"method": "custom", "content": {"do": "unseen"}}}, "buffers": []}
        )
    assert rests == ["its picture had left the page. Nothing is lost: press Continue."]
    live.close()


def test_a_still_has_a_picture_once_a_step_was_done():
    live = LiveTraining("digits", steps=4, device="cpu")
    assert "image/png" not in live.still()
    live.forked_run.handle(Button.STEP)
    live.forked_run.tick()
    assert live.still()["image/png"].startswith(b"\x89PNG")
    live.close()


@pytest.fixture
def axes_with_nan():
    """The axes of a figure whose loss is NaN in steps 3 and 4, and infinite in step 5."""
    c = controller(losses={3: math.nan, 4: math.nan, 5: math.inf})
    c.handle(change(c, scaling=Scaling.DYNAMIC))
    return static_training(ticked(c, 5)).axes


def test_a_figure_says_where_the_loss_is_nan(axes_with_nan):
    loss, *_ = axes_with_nan
    assert any("NaN from step 3" in text.get_text() for text in loss.texts)


def test_the_axis_of_a_loss_with_nan_has_finite_ends(axes_with_nan):
    low, high = axes_with_nan[0].get_ylim()
    assert 0 < low < high < math.inf


def test_a_figure_has_the_scale_and_the_underflow_below(axes_with_nan):
    _, scale, underflow = axes_with_nan
    assert scale.get_title("left") == "Loss scale"
    assert underflow.get_xlim() == (0, 20)


def test_a_live_training_equals_a_training_run():
    """A live training and a TrainingRun that change their recipe at one step have equal losses."""
    task = TASKS["digits"]
    recipe = RECIPES["FP16"]
    live = LiveTraining(task, recipe, seed=3, steps=8, device="cpu")
    c = ticked(live.forked_run, 4)
    c.handle(change(c, scaling=Scaling.STATIC, log2_scale=12))
    for _ in range(4):
        c.tick()
    run = TrainingRun(task, recipe, 3)
    expected = [run.step() for _ in range(4)]
    run.change(replace(recipe, scaler=static_scaler(2.0**12)))
    expected += [run.step() for _ in range(4)]
    ours, theirs = (
        [replace(s, underflow=None, swallowed=None) for s in steps]
        for steps in (c.run.steps, expected)
    )
    assert ours == theirs
    assert c.phase == "finished"
    assert live.state()["branches"][0]["metric"] == f"{run.evaluate():.3f}"
