"""The baselines: how each is started, and the form of its requests and answers."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve.load.answers import BaselineTolerance, Prediction
from benchmarks.serve.load.running import service_command
from benchmarks.serve.load.wire import request_bytes
from benchmarks.serve.load.workloads import DOCUMENT, LIST, TEXT, Job

EIGHT_BITS = BaselineTolerance(score=0.1, labels=0.05)
"""An 8-bit or bfloat16 model is another model: its distance is shown, and only a gross one is called wrong."""
OTHER_RULES = BaselineTolerance(labels=0.25)
"""The pipeline does not prefer the window with most context around a span, so some of its spans differ."""


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Workers of a baseline, and threads of each."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}"


@dataclass(frozen=True, slots=True)
class Place:
    """Folders and interpreters that a baseline is started with."""

    folder: Path
    """The model in Hugging Face's format."""
    bundle: Path
    int8_bundle: Path | None
    python: str
    """Interpreter of the baselines' environment."""
    infinity_python: str
    """Interpreter of the environment with infinity and transformers 4."""
    service: tuple[str, ...] = ()
    """More settings for bert-serve."""
    vllm_python: str | None = None
    """Interpreter of the environment with vLLM, which takes part only where it is given."""

    def bundle_of(self, precision: str) -> Path:
        """Return our bundle of a precision; raises ValueError if it is not there."""
        found = self.int8_bundle if precision == "int8" else self.bundle
        if found is None:
            raise ValueError(f"there is no bundle of precision {precision}")
        return found


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The form of a request and of its answer."""

    path: str
    body: Callable[[Job], object]
    read: Callable[[Any], list[Prediction]]


@dataclass(frozen=True, slots=True)
class ServerBaseline:
    """A server, or the engine alone."""

    title: str
    command: Callable[[Place, CoreSplit, int], Sequence[str]]
    """Command of a server, and its port."""
    forms: Mapping[str, RequestFormat]
    """Kind of job → its format. A baseline without a form for lists gets their texts in as many requests at once."""
    serves: bool = True
    """False for the engine, which loops by itself and is not asked over HTTP."""
    all_shapes: bool = False
    """True: one process with all cores and a process for each core are tried, and the better is kept."""
    tolerance: Mapping[str, BaselineTolerance] | None = None
    """Kind of job → its tolerance, where it is not the usual one."""
    needs_int8: bool = False
    needs_vllm: bool = False

    def takes(self, kind: str) -> bool:
        """Tell whether it can be asked this kind of job."""
        return kind in self.forms or (kind == LIST and TEXT in self.forms)

    def requests(self, url: str, kind: str, jobs: Sequence[Job]) -> list[list[bytes]]:
        """Return the messages of each job."""
        if kind in self.forms:
            form = self.forms[kind]
            return [[request_bytes(url, form.path, form.body(job))] for job in jobs]
        form = self.forms[TEXT]
        return [[request_bytes(url, form.path, form.body((text,))) for text in job] for job in jobs]

    def read(self, kind: str, answers: Sequence[Any]) -> list[Prediction]:
        """Return the answers to a job, from the JSON of each of its messages."""
        form = self.forms.get(kind) or self.forms[TEXT]
        return [answer for each in answers for answer in form.read(each)]

    def tolerated(self, kind: str) -> BaselineTolerance:
        """Return how far its answers may be from the reference's."""
        return (self.tolerance or {}).get(kind, BaselineTolerance())


def shapes(baseline: ServerBaseline, cores: int) -> list[CoreSplit]:
    """Return the shapes to try; where all processes share a model's threads there is one."""
    whole = CoreSplit(1, cores)
    return [whole, CoreSplit(cores, 1)] if baseline.all_shapes and cores > 1 else [whole]


def _server(
    module: str, mode: str, *, python_of: Callable[[Place], str | None] = lambda place: place.python
) -> Callable[[Place, CoreSplit, int], Sequence[str]]:
    def command(place: Place, shape: CoreSplit, port: int) -> Sequence[str]:
        return (
            *(
                python_of(place) or sys.executable,
                "-m",
                f"benchmarks.serve.baselines.{module}",
                "--mode",
                mode,
            ),
            *("--folder", str(place.folder), "--port", str(port)),
            *("--workers", str(shape.workers), "--threads", str(shape.threads)),
        )

    return command


def _ours(precision: str) -> Callable[[Place, CoreSplit, int], Sequence[str]]:
    def command(place: Place, shape: CoreSplit, port: int) -> Sequence[str]:
        return service_command([place.bundle_of(precision)], port, place.service)

    return command


def _engine(precision: str) -> Callable[[Place, CoreSplit, int], Sequence[str]]:
    def command(place: Place, shape: CoreSplit, port: int) -> Sequence[str]:
        module = "benchmarks.serve.baselines.raw_engine"
        return sys.executable, "-m", module, str(place.bundle_of(precision))

    return command


def _padded_engine(place: Place, shape: CoreSplit, port: int) -> Sequence[str]:
    module = "benchmarks.serve.baselines.raw_engine"
    return sys.executable, "-m", module, "--padded", str(place.folder)


def _one(found: Any) -> list[Prediction]:
    return [Prediction(found["label"], found["score"])]


def _all(found: Any) -> list[Prediction]:
    return [Prediction(each["label"], each["score"]) for each in found]


def _infinity_results(found: Any) -> list[Prediction]:
    best = (max(scores, key=lambda each: float(each["score"])) for scores in found["data"])
    return _all(best)


def _our_results(found: Any) -> list[Prediction]:
    return _all(found["results"])


def _vllm_results(found: Any) -> list[Prediction]:
    return [Prediction(each["label"], max(each["probs"])) for each in found["data"]]


MODEL = "model"
"""Name that infinity and vLLM serve the model by."""
SINGLE = {TEXT: RequestFormat("/inference", lambda job: {"text": job[0]}, _one)}
OURS = {
    TEXT: RequestFormat("/classify", lambda job: {"text": job[0], "truncate": True}, _our_results),
    LIST: RequestFormat("/classify", lambda job: {"text": job, "truncate": True}, _our_results),
    DOCUMENT: RequestFormat(
        "/qa",
        lambda job: {"question": job[0], "context": job[1]},
        lambda found: [Prediction(each["answer"], each["score"]) for each in found["results"]],
    ),
}
INFINITY = {
    kind: RequestFormat("/classify", lambda job: {"model": MODEL, "input": job}, _infinity_results)
    for kind in (TEXT, LIST)
}
VLLM = {
    kind: RequestFormat(
        "/classify",
        lambda job: {"model": MODEL, "input": job, "truncate_prompt_tokens": -1},
        _vllm_results,
    )
    for kind in (TEXT, LIST)
}
PIPELINE = {
    TEXT: RequestFormat("/classify", lambda job: {"text": job[0]}, _all),
    LIST: RequestFormat("/classify", lambda job: {"text": job}, _all),
}
READER = {
    DOCUMENT: RequestFormat(
        "/qa",
        lambda job: {"question": job[0], "context": job[1]},
        lambda found: [Prediction(found["answer"], None)],
    )
}
LITSERVE = {TEXT: RequestFormat("/predict", lambda job: {"text": job[0]}, _one)}

CONTENDERS: dict[str, ServerBaseline] = {
    "engine": ServerBaseline("engine alone", _engine("fp32"), OURS, serves=False),
    "engine-int8": ServerBaseline(
        "engine alone, 8 bits", _engine("int8"), OURS, serves=False, needs_int8=True
    ),
    "engine-padded": ServerBaseline(
        "standard export alone, padded",
        _padded_engine,
        {kind: OURS[kind] for kind in (TEXT, LIST)},
        serves=False,
    ),
    "pipeline": ServerBaseline("FastAPI + pipeline", _server("pipeline_server", "classify"), PIPELINE),
    "reader": ServerBaseline(
        "FastAPI + pipeline",
        _server("pipeline_server", "answer", python_of=lambda place: place.infinity_python),
        READER,
        tolerance={DOCUMENT: OTHER_RULES},
    ),
    "mosec": ServerBaseline("mosec, as documented", _server("mosec_server", "documented"), SINGLE),
    "mosec-unbatched": ServerBaseline(
        "mosec, no batching", _server("mosec_server", "unbatched"), SINGLE, all_shapes=True
    ),
    "mosec-tuned": ServerBaseline(
        "mosec, sorted and split by hand", _server("mosec_server", "tuned"), SINGLE, all_shapes=True
    ),
    "litserve": ServerBaseline("LitServe, as documented", _server("litserve_server", "documented"), LITSERVE),
    "litserve-tuned": ServerBaseline(
        "LitServe, sorted and split by hand", _server("litserve_server", "tuned"), LITSERVE, all_shapes=True
    ),
    "infinity": ServerBaseline(
        "infinity (torch)",
        _server("infinity_server", "torch", python_of=lambda place: place.infinity_python),
        INFINITY,
    ),
    "infinity-optimum": ServerBaseline(
        "infinity (optimum)",
        _server("infinity_server", "optimum", python_of=lambda place: place.infinity_python),
        INFINITY,
    ),
    "vllm": ServerBaseline(
        "vLLM, float32",
        _server("vllm_server", "float32", python_of=lambda place: place.vllm_python),
        VLLM,
        needs_vllm=True,
    ),
    "vllm-bf16": ServerBaseline(
        "vLLM, bfloat16",
        _server("vllm_server", "bfloat16", python_of=lambda place: place.vllm_python),
        VLLM,
        tolerance=dict.fromkeys((TEXT, LIST), EIGHT_BITS),
        needs_vllm=True,
    ),
    "ours": ServerBaseline("ours", _ours("fp32"), OURS),
    "ours-int8": ServerBaseline(
        "ours, 8 bits",
        _ours("int8"),
        OURS,
        tolerance=dict.fromkeys((TEXT, LIST, DOCUMENT), EIGHT_BITS),
        needs_int8=True,
    ),
}
