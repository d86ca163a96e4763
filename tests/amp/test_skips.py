"""Skipped steps: what a report says, and when and how a run in trouble is told so."""

import pytest

from labkit.amp import (
    DYNAMIC,
    NO_SCALING,
    PRESETS,
    ScalerConfig,
    ScalerState,
    StepReport,
    advance,
    diagnosis,
    initial,
    static,
    step_report,
)


def reports(found: list[bool], config: ScalerConfig, culprits: tuple[str, ...] = ()) -> list[StepReport]:
    state, skips, told = initial(config), 0, []
    for found_inf in found:
        told.append(step_report(state, found_inf, config, culprits if found_inf else (), skips))
        state, skips = advance(state, found_inf, config), told[-1].skips_in_a_row
    return told


def test_worked_example() -> None:
    clean, bad, bad_again, clean_again = reports([False, True, True, False], DYNAMIC, ("fc.weight",))
    assert clean == StepReport(True, False, 2.0**16, "taken: every gradient is finite")
    assert bad.why == "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^16 to 2^15"
    assert (bad.stepped, bad.found_inf, bad.scale, bad.culprits) == (False, True, 2.0**16, ("fc.weight",))
    assert [r.skips_in_a_row for r in (clean, bad, bad_again, clean_again)] == [0, 1, 2, 0]


def test_a_scale_that_stays_is_said_to_stay() -> None:
    forgiven, backed_off = reports([True, True], PRESETS["Megatron"])
    assert forgiven.why == "skipped for inf or NaN in some gradient; the scale stays"
    assert backed_off.why.endswith("the scale goes from 2^32 to 2^31")
    assert step_report(ScalerState(1000.0), True, ScalerConfig(backoff_factor=0.3)).why.endswith("from 1000 to 300")


def test_a_step_with_inf_that_is_taken_is_no_secret() -> None:
    (blind,) = reports([True], static(8.0, skip_on_inf=False), ("a",))
    assert (blind.stepped, blind.found_inf, blind.skips_in_a_row) == (True, True, 0)
    assert blind.why == "taken in spite of inf or NaN in 'a': nobody looks"
    assert [r.stepped for r in reports([True] * 18, PRESETS["fastai"])] == [False] * 16 + [True] * 2


def test_coming_down_to_where_it_fits_says_nothing() -> None:
    # Megatron starts at 2^32; 17 skips to 2^16 are its ordinary first minute.
    for report in reports([True] * 33, PRESETS["Megatron"]):
        assert diagnosis(report, PRESETS["Megatron"]) is None


@pytest.mark.parametrize(("name", "skips"), [("torch", 17), ("Megatron", 34), ("DeepSpeed", 18), ("OneFlow", 17)])
def test_a_run_in_trouble_is_told_so_once_the_scale_has_come_down_to_1(name: str, skips: int) -> None:
    config = PRESETS[name]
    told = [diagnosis(report, config) is not None for report in reports([True] * 40, config)]
    assert told.index(True) == skips - 1
    assert [diagnosis(count, config) is not None for count in range(1, 41)] == told, "the count alone says the same"


def test_a_dynamic_scaler_that_grew_far_above_its_start_may_come_all_the_way_down() -> None:
    config = ScalerConfig(init_scale=1.0)
    assert diagnosis(StepReport(False, True, 2.0**8, "", (), 12), config) is None
    assert diagnosis(StepReport(False, True, 1.0, "", (), 20), config) is not None


def test_the_diagnosis_names_the_culprits_and_what_to_do() -> None:
    last = reports([True] * 17, DYNAMIC, ("encoder.0.weight", "head.bias"))[-1]
    said = diagnosis(last, DYNAMIC)
    assert said is not None
    assert said.startswith("17 steps in a row were skipped for inf or NaN in 'encoder.0.weight', 'head.bias'.")
    assert all(remedy in said for remedy in ("set_detect_anomaly", "learning rate", "clip", "BF16"))


def test_many_culprits_are_counted_not_listed() -> None:
    names = tuple(f"w{i}" for i in range(9))
    said = diagnosis(StepReport(False, True, 1.0, "", names, 30), DYNAMIC)
    assert said is not None
    assert "'w4' and 4 more." in said


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (static(2.0**26), "static, 2^26, and does not move: take a smaller one, or a dynamic scaler"),
        (ScalerConfig(floor=2.0**10), "at its floor, 2^10: take a lower floor"),
        (NO_SCALING, "no longer the cause, it is 1 or less"),
    ],
)
def test_each_cause_has_its_remedy(config: ScalerConfig, remedy: str) -> None:
    *_, last = reports([True] * 50, config)
    said = diagnosis(last, config)
    assert said is not None
    assert remedy in said
    assert diagnosis(4, config) is None
