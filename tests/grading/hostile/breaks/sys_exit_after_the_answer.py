import sys


def my_advance(state, found_inf, config):
    if found_inf:
        return ScalerState(state.scale * config.backoff_factor, 0)
    if state.growth_tracker + 1 == config.growth_interval:
        return ScalerState(state.scale * config.growth_factor, 0)
    return ScalerState(state.scale, state.growth_tracker + 1)


sys.exit(0)
