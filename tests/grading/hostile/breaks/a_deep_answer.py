deep = []
for _ in range(10**5):
    deep = [deep]
calls = []


def my_advance(state, found_inf, config):
    calls.append(1)
    return deep if len(calls) == 1 else state
