"""Process that serves the items of a job: the program of `labkit.gpu.catalogue.worker_command`."""

import sys

from labkit.gpu.catalogue import catalogue
from labkit.gpu.job import Job
from labkit.gpu.worker import serve

if __name__ == "__main__":
    job = Job.from_words(*sys.argv[1:])
    serve(catalogue(job), job.device)
