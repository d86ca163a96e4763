"""fastai's training loop and mixed-precision callbacks on the lab's engine, on a CPU too.

`from fastai.basics import *` becomes `from labkit.frameworks.fastai.basics import *`, likewise
`callback.fp16` and `test_utils`. It has the loop and mixed precision only: no vision, no text, no
transforms.
"""
