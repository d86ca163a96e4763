"""Skipped steps: what a report says, and when and how a run in trouble is told so."""

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


def test_a_scale_that_stays_and_a_step_with_inf_that_is_taken_are_said() -> None:
    forgiven, backed_off = reports([True, True], PRESETS["Megatron"])
    assert forgiven.why == "skipped for inf or NaN in some gradient; the scale stays"
    assert backed_off.why.endswith("the scale goes from 2^32 to 2^31")
    assert step_report(ScalerState(1000.0), True, ScalerConfig(backoff_factor=0.3)).why.endswith("from 1000 to 300")
    (blind,) = reports([True], static(8.0, skip_on_inf=False), ("a",))
    assert (blind.stepped, blind.found_inf, blind.skips_in_a_row) == (True, True, 0)
    assert blind.why == "taken in spite of inf or NaN in 'a': nobody looks"
    assert [r.stepped for r in reports([True] * 18, PRESETS["fastai"])] == [False] * 16 + [True] * 2


def test_a_run_in_trouble_is_told_so_once_the_scale_has_come_down_to_1() -> None:
    """Not before: Megatron starts at 2^32, and 17 skips to 2^16 are its ordinary first minute."""
    for name, skips in (("torch", 17), ("Megatron", 34), ("DeepSpeed", 18), ("OneFlow", 17)):
        config = PRESETS[name]
        told = [diagnosis(report, config) is not None for report in reports([True] * 40, config)]
        assert told.index(True) == skips - 1, name
        assert [diagnosis(count, config) is not None for count in range(1, 41)] == told, "the count alone says the same"
    far_above = ScalerConfig(init_scale=1.0)  # a scale that grew far above its start may come all the way down
    assert diagnosis(StepReport(False, True, 2.0**8, "", (), 12), far_above) is None
    assert diagnosis(StepReport(False, True, 1.0, "", (), 20), far_above) is not None


def test_the_diagnosis_names_the_culprits_and_what_to_do() -> None:
    last = reports([True] * 17, DYNAMIC, ("encoder.0.weight", "head.bias"))[-1]
    said = diagnosis(last, DYNAMIC) or ""
    assert said.startswith("17 steps in a row were skipped for inf or NaN in 'encoder.0.weight', 'head.bias'.")
    assert all(remedy in said for remedy in ("set_detect_anomaly", "learning rate", "clip", "BF16"))
    nine = tuple(f"w{i}" for i in range(9))
    assert "'w4' and 4 more." in (diagnosis(StepReport(False, True, 1.0, "", nine, 30), DYNAMIC) or "")


def test_each_cause_has_its_remedy() -> None:
    for config, remedy in (
        (static(2.0**26), "static, 2^26, and does not move: take a smaller one, or a dynamic scaler"),
        (ScalerConfig(floor=2.0**10), "at its floor, 2^10: take a lower floor"),
        (NO_SCALING, "no longer the cause, it is 1 or less"),
    ):
        *_, last = reports([True] * 50, config)
        assert remedy in (diagnosis(last, config) or "")
        assert diagnosis(4, config) is None
