# The lab in a container, for Binder, a hub, or a machine with Docker alone:
#
#   docker build -t fp16-lab . && docker run --rm -p 8888:8888 fp16-lab
#
# Each step is what one would type on Debian; nothing else is needed. The learner is no root and owns the notebooks. Where pip
# brings a torch for GPUs and there are none, its CPU build is a tenth of the size: give pip's options for it with
# `--build-arg TORCH_OPTIONS=...`. A hub adds `--build-arg MORE=jupyterhub==ITS_VERSION`, and for a class the wheel without
# solutions, `--build-arg LAB=handout/learners/fp16_lab-VERSION-py3-none-any.whl` (docker/hub). Grading: docker/grader.
FROM python:3.11-slim
ARG NB_USER=learner
ARG NB_UID=1000
ARG TORCH_OPTIONS=
ARG MORE=
ARG LAB=.
ENV USER=${NB_USER}
ENV HOME=/home/${NB_USER}
RUN useradd --create-home --uid ${NB_UID} ${NB_USER}
WORKDIR /lab
COPY . .
COPY labkit/machine/jupyter/config /usr/local/etc/jupyter
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_OPTIONS} torch
RUN pip install --no-cache-dir -c constraints.txt "${LAB}[lab]" ${MORE}
RUN mkdir ${HOME}/notebooks && cp -r notebooks/*.ipynb notebooks/images ${HOME}/notebooks && chown -R ${NB_UID} ${HOME}
RUN cd / && rm -rf /lab
WORKDIR ${HOME}
USER ${NB_USER}
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "notebooks/00_start.ipynb"]
