def my_advance(state, found_inf, config):
    object.__setattr__(state, "scale", 1.0)
    object.__setattr__(config, "growth_factor", 1.0)
    return state
