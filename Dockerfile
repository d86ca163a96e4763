# The lab in a container, for a hub or a machine with Docker alone (Binder reads binder/):
#
#   docker build -t fp16-lab . && docker run --rm -p 8888:8888 fp16-lab
#
# Each step is what one would type on Debian; nothing else is needed. The learner is no root and owns the notebooks. Where pip
# brings a torch for GPUs and there are none, its CPU build is a tenth of the size: give pip's options for it with
# `--build-arg TORCH_OPTIONS=...`. A hub adds `--build-arg MORE=jupyterhub==ITS_VERSION`, and for a class the wheel without
# solutions, `--build-arg LAB=handout/learners/fp16_lab-VERSION-py3-none-any.whl` (docker/hub). Grading: docker/grader.

# The checkout, with its solutions, is in no layer of the image: only what this first stage puts into /parts goes on.
FROM python:3.11-slim AS parts
ARG LAB=.
WORKDIR /lab
COPY . .
RUN pip wheel --no-cache-dir -c constraints.txt --no-deps --wheel-dir /parts/wheels "${LAB}"
RUN cp -r constraints.txt labkit/machine/jupyter/config /parts
RUN mkdir /parts/notebooks && cp -r notebooks/*.ipynb notebooks/images /parts/notebooks

FROM python:3.11-slim
ARG NB_USER=learner
ARG NB_UID=1000
ARG TORCH_OPTIONS=
ARG MORE=
ENV USER=${NB_USER}
ENV HOME=/home/${NB_USER}
RUN useradd --create-home --uid ${NB_UID} ${NB_USER}
COPY --from=parts /parts /parts
RUN cp -r /parts/config/. /usr/local/etc/jupyter
RUN pip install --no-cache-dir -c /parts/constraints.txt ${TORCH_OPTIONS} torch
RUN pip install --no-cache-dir -c /parts/constraints.txt "$(echo /parts/wheels/*.whl)[lab]" ${MORE}
RUN cp -r /parts/notebooks ${HOME} && chown -R ${NB_UID} ${HOME} && rm -r /parts
WORKDIR ${HOME}
USER ${NB_USER}
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "notebooks/00_start.ipynb"]
