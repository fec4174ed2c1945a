"""Endpoints for operators: loaded models, health and metrics, with their response schemas."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from bert.errors import NotReadyError, UnknownModelError
from bert.tasks.registry import TASKS
from bert.tasks.tags import TagScheme
from bert.tasks.zero_shot import takes_labels
from service.engine.models import Model, SkippedBundle
from service.exports.progress import read_progress
from service.http import openapi
from service.http.lifecycle import Service, service_of
from service.http.problems import ProblemError
from service.tasks.schema import Example, Schema
from service.tasks.table import FIRST

operations = APIRouter(tags=["service"], route_class=openapi.DirectRoute)


class ExportInfo(Schema):
    """Progress of the export that is to replace a model's float32 graph by one in 8 bits."""

    step: str
    done: float | None = Field(description="Share that is done, 0 to 1; null if that is not known.")
    seconds_left: float | None
    error: str | None = Field(description="Reason why it failed; the next start tries again.")


class ModelInfo(Schema):
    """A loaded model."""

    name: str
    version: str
    task: str
    default: bool = Field(description="True if it answers requests for its task that name no model.")
    labels: list[str]
    entity_types: list[str] = Field(
        description="NER only: types of its entities, without the roles of tags (B-)."
    )
    problem: str | None = Field(description="Classification only: single_label, multi_label or regression.")
    pair: bool | None = Field(
        description="True if it reads pairs of texts, false if it reads single texts, null if it takes either."
    )
    takes_labels: bool = Field(description="True if a request may bring the labels to choose from.")
    embedding_size: int | None = Field(
        description="Embeddings only: numbers of a vector, the most that `dimensions` may ask for."
    )
    embedding_ranges: dict[str, list[float]] | None = Field(
        description="Embeddings only: `low` and `high` of each number as int8 and uint8, both divided by `lengths[D - 1]` "
        "where `dimensions` D keeps fewer than all, within -1 and 1; `lengths` is empty for vectors of any length. null: "
        "these types are refused."
    )
    prompts: dict[str, str] = Field(description="Embeddings only: name and text of each prompt.")
    default_prompt_name: str | None = Field(description="Embeddings only: prompt of requests that name none.")
    examples: list[dict[str, Any]] = Field(
        description="Requests to try it with: its own (`examples` of its task.json), or texts that its labels ask for; "
        "empty where any text of its task will do."
    )
    max_tokens: int = Field(description="Longest input in tokens, including special tokens.")
    stride: int = Field(description="Tokens shared by neighbouring windows of a long text.")
    precision: str
    why_fallback: str | None = Field(
        description="Reason why the float32 graph is served instead of the int8 graph; null if it is not."
    )
    provider: str
    batch_tokens: int = Field(description="Maximum tokens in a batch, configured or measured.")
    dev_score: dict[str, Any]
    parity: dict[str, Any]
    export: ExportInfo | None = Field(
        description="With `--model`: the export of its 8-bit graph, while the float32 one is served; null if there is none."
    )
    ready: bool = Field(description="True while /health/ready?model=NAME responds with 200.")
    why_not_ready: str | None


class ModelsResponse(Schema):
    """All loaded models, and the bundles that were left out."""

    example: ClassVar[Example] = {
        "models": [
            {
                "name": "sentiment",
                "version": "1",
                "task": "classification",
                "default": True,
                "labels": ["negative", "positive"],
                "entity_types": [],
                "problem": "single_label",
                "pair": False,
                "embedding_size": None,
                "embedding_ranges": None,
                "prompts": {},
                "default_prompt_name": None,
                "examples": [{"text": "A warm, funny film that I would gladly see again."}],
                "max_tokens": 256,
                "stride": 0,
                "precision": "fp32",
                "why_fallback": None,
                "provider": "CPUExecutionProvider",
                "batch_tokens": 128,
                "dev_score": {"accuracy": 0.91},
                "parity": {},
                "export": None,
                "ready": True,
                "why_not_ready": None,
            }
        ],
        "left_out": [],
        "failed_loads": [],
        "unloaded": [],
    }
    models: list[ModelInfo]
    left_out: list[SkippedBundle] = Field(
        description="Bundles that could not be loaded, and what to do. Requests for their models get a 503."
    )
    failed_loads: list[SkippedBundle] = Field(
        description="Bundles that came while the service ran and cannot be served, and why. What was served before goes on."
    )
    unloaded: list[SkippedBundle] = Field(
        description="Models that were unloaded on request. Requests for them get a 404."
    )


class HealthResponse(Schema):
    """State of the service."""

    status: str


@operations.get(
    "/models",
    response_model=ModelsResponse,
    responses=openapi.success(ModelsResponse.example) | openapi.problems(401, 503),
)
async def models(request: Request) -> Response:
    """List the loaded models."""
    service = service_of(request)
    registry, budgets = service.loaded.registry, service.loaded.budgets
    infos = [
        _info(name, model, service, registry.defaults, budgets, await _export_of(model, service))
        for name, model in registry.models.items()
    ]
    skipped = {"left_out": registry.left_out, "failed_loads": registry.failed, "unloaded": registry.unloaded}
    lists = {name: list(each) for name, each in skipped.items()}
    return JSONResponse(ModelsResponse(models=infos, **lists).model_dump())


@operations.get(
    "/health/live",
    response_model=HealthResponse,
    responses=openapi.success({"status": "live"}) | openapi.problems(503),
)
async def live(request: Request) -> Response:
    """Respond while the process runs, whatever the state of its models, unless only a restart of the service helps."""
    service_of(request).check_live()
    return JSONResponse({"status": "live"})


@operations.get(
    "/health/ready",
    response_model=HealthResponse,
    responses=openapi.success({"status": "ready"}) | openapi.problems(404, 503),
    openapi_extra={"parameters": [openapi.READY_MODEL]},
)
async def ready(request: Request) -> Response:
    """Tell whether the service, or with `?model=NAME` one model, can answer requests now."""
    service, name = service_of(request), request.query_params.get("model")
    service.probe_soon()
    if name is None:
        why_not = service.why_not_ready()
    else:
        try:
            why_not = service.why_model_not_ready(service.loaded.registry.find(name, None))
        except UnknownModelError as error:  # its text lists all models, and this path needs no API key
            detail = f"there is no model {error.model!r}; /models lists those that are loaded"
            raise ProblemError(404, "unknown-model", detail) from None
    if why_not is None:
        return JSONResponse({"status": "ready"})
    raise NotReadyError(f"the service is {why_not}")


@operations.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=openapi.success("bert_ready 1.0\n", "text/plain"),
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format; with `admin_port` on that port only."""
    exposition = await service_of(request).metrics.scrape()
    return Response(exposition, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _export_of(model: Model, service: Service) -> ExportInfo | None:
    better = service.settings.better_bundles.get(model.bundle.folder)
    if better is None or (state := await asyncio.to_thread(read_progress, better)) is None:
        return None
    step = "failed" if "error" in state else state.get("step") or "exporting"
    return ExportInfo(
        step=step, done=state.get("done"), seconds_left=state.get("seconds_left"), error=state.get("error")
    )


def _info(
    name: str,
    model: Model,
    service: Service,
    defaults: Mapping[str, str],
    budgets: Mapping[str, int],
    export: ExportInfo | None,
) -> ModelInfo:
    manifest, spec = model.bundle.manifest, model.spec
    why_not_ready = service.why_model_not_ready(model)
    return ModelInfo(
        name=name,
        version=manifest.version,
        task=spec.task,
        default=defaults.get(spec.task) == name,
        labels=list(spec.labels),
        entity_types=list(TagScheme.of(spec.labels).types) if TASKS[spec.task].has_tags else [],
        problem=spec.problem_type if TASKS[spec.task].has_problems else None,
        pair=spec.pair,
        takes_labels=takes_labels(spec),
        embedding_size=model.embedding_size,
        embedding_ranges=dict(manifest.embedding_ranges) or None,
        prompts=spec.prompts,
        default_prompt_name=spec.default_prompt_name or None,
        examples=[dict(each) for each in FIRST[spec.task].examples_of(spec)],
        max_tokens=spec.max_tokens,
        stride=spec.stride,
        precision=manifest.precision,
        why_fallback=model.why_fallback or None,
        provider=model.provider,
        batch_tokens=budgets[model.id],
        dev_score=dict(manifest.dev_score),
        parity=dict(manifest.parity),
        export=export,
        ready=why_not_ready is None,
        why_not_ready=why_not_ready,
    )
