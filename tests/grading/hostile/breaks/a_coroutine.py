async def my_advance(state, found_inf, config):
    return state
