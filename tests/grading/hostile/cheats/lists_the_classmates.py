import os

names = os.listdir(os.path.dirname(CLASSMATE))
