def my_advance(state, found_inf, config):
    import threading
    import time

    while True:
        threading.Thread(target=time.sleep, args=(99,)).start()
