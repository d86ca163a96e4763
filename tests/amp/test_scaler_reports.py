"""Reports of steps that a loss scaler takes or skips, and diagnoses of many skipped ones."""

from labkit.amp import (
    DYNAMIC,
    NO_SCALING,
    PRESETS,
    ScalerConfig,
    StepReport,
    decide,
    diagnosis,
    initial,
    static,
    step_report,
)


def reports(
    overflows: list[bool], config: ScalerConfig, culprits: tuple[str, ...] = ()
) -> list[StepReport]:
    """Return the report of each step; `culprits` are the parameters blamed for each overflow."""
    state = initial(config)
    skips = 0
    step_reports = []
    for found_inf in overflows:
        decision = decide(state, found_inf, config)
        step_reports.append(step_report(decision, culprits if found_inf else (), skips))
        state = decision.after
        skips = step_reports[-1].skips_in_a_row
    return step_reports


def test_worked_example_of_reports() -> None:
    clean, bad, bad_again, clean_again = reports(
        [False, True, True, False], DYNAMIC, ("fc.weight",)
    )
    assert clean == StepReport(True, False, 2.0**16, "taken: every gradient is finite")
    assert bad.why == "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^16 to 2^15"
    assert not bad.stepped
    assert bad.found_inf
    assert bad.scale == 2.0**16
    assert bad.culprits == ("fc.weight",)
    assert [r.skips_in_a_row for r in (clean, bad, bad_again, clean_again)] == [0, 1, 2, 0]


def test_reports_state_how_the_scale_changes() -> None:
    forgiven, backed_off = reports([True, True], PRESETS["Megatron"])
    assert forgiven.why == "skipped for inf or NaN in some gradient; the scale stays"
    assert backed_off.why.endswith("the scale goes from 2^32 to 2^31")
    (third,) = reports([True], ScalerConfig(init_scale=1000.0, backoff_factor=0.3))
    assert third.why.endswith("from 1000 to 300")


def test_a_step_taken_in_spite_of_inf_is_reported() -> None:
    (blind,) = reports([True], static(8.0, skip_on_inf=False), ("a",))
    assert blind.stepped
    assert blind.found_inf
    assert blind.skips_in_a_row == 0
    assert blind.why == "taken in spite of inf or NaN in 'a': this scaler does not skip"


def test_fastai_steps_at_a_scale_of_1_in_spite_of_inf() -> None:
    # Sixteen skips take 2^16 to 1.
    steps = reports([True] * 18, PRESETS["fastai"])
    assert [step.stepped for step in steps] == [False] * 16 + [True] * 2
    assert steps[-1].why.endswith("this scaler does not skip at its floor")


def test_a_diagnosis_appears_when_the_scale_reaches_1() -> None:
    """There is no diagnosis before.

    Megatron starts at 2^32, and its first minute ordinarily skips more than 16 steps.
    """
    for name, skips in (("torch", 17), ("Megatron", 34), ("DeepSpeed", 18), ("OneFlow", 17)):
        config = PRESETS[name]
        has_diagnosis = [
            diagnosis(report, config) is not None for report in reports([True] * 40, config)
        ]
        assert has_diagnosis.index(True) == skips - 1, name
    # A scale far above its initial value may fall to it by any number of skips.
    far_above = ScalerConfig(init_scale=1.0)
    assert diagnosis(StepReport(False, True, 2.0**8, "", (), 12), far_above) is None


def test_a_diagnosis_names_parameters_and_remedies() -> None:
    names = tuple(f"w{i}" for i in range(9))
    message = diagnosis(StepReport(False, True, 1.0, "", names, 20), ScalerConfig(init_scale=1.0))
    assert message is not None
    assert message.startswith(
        "20 steps in a row were skipped for inf or NaN in 'w0', 'w1', 'w2', 'w3', 'w4' and 4 more."
    )
    for remedy in ("set_detect_anomaly", "learning rate", "clip", "BF16"):
        assert remedy in message


def test_a_diagnosis_fits_the_configuration_of_the_scaler() -> None:
    for config, remedy in (
        (
            static(2.0**26),
            "static, 2^26, and does not change: use a smaller one or a dynamic scaler",
        ),
        (ScalerConfig(floor=2.0**10), "at its floor, 2^10: use a lower floor"),
        (NO_SCALING, "not the cause: it is 1 or less"),
    ):
        *_, last = reports([True] * 50, config)
        assert remedy in (diagnosis(last, config) or "")
        assert diagnosis(reports([True] * 4, config)[-1], config) is None
