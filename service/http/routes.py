"""The endpoints.

Body → pipeline → answer, each in a few lines. What they look like from outside is in endpoints.py and openapi.py.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bert.errors import FieldError, InvalidRequestError, NotReadyError, UnknownModelError
from bert.tasks.registry import TASKS
from service.engine.loaded_model import Model
from service.http import responses, schemas
from service.http.lifecycle import Service
from service.http.problems import ProblemError
from service.http.request_body import INLINE_BYTES, parse, read_body
from service.http.request_body import Model as Body
from service.http.timeouts import CancelOnDisconnect, timeout_ms
from service.pipeline.inputs import Texts, check_count, pair_count
from service.pipeline.pipeline import INLINE_VECTORS, Pipeline
from service.pipeline.request_context import RequestContext


async def classify(request: Request) -> Response:
    """Classify texts or pairs of texts."""
    call, pipeline, body = await _begin(request, schemas.ClassifyRequest)
    model = _choose(request, call, body.model, "classification")
    text = Texts.of("text", body.text)
    pair = Texts.of("text_pair", body.text_pair) if body.text_pair is not None else None
    _check_pair(model, text, pair)
    _check_count(request, text, *([pair] if pair is not None else []))
    with CancelOnDisconnect(request, call):
        results, truncated = await pipeline.classify(
            call, model, text, pair, top_k=body.top_k, truncate=body.truncate
        )
        count = sum(len(result.scores) for result in results)
        return await pipeline.write(
            count, lambda: responses.answer(call, responses.classified(results, truncated))
        )


async def ner(request: Request) -> Response:
    """Find the entities of texts."""
    call, pipeline, body = await _begin(request, schemas.NerRequest)
    model, text = _choose(request, call, body.model, "ner"), Texts.of("text", body.text)
    _check_count(request, text)
    with CancelOnDisconnect(request, call):
        entities = await pipeline.entities(call, model, text)
        count = len(text) + sum(map(len, entities))
        return await pipeline.write(count, lambda: responses.answer(call, responses.recognised(entities)))


async def similarity(request: Request) -> Response:
    """Rank candidates by how near their meaning is to a text's."""
    call, pipeline, body = await _begin(request, schemas.SimilarityRequest)
    model, text = _choose(request, call, body.model, "similarity"), Texts.of("text", body.text)
    candidates = Texts.of("candidates", body.candidates)
    _check_count(request, text, candidates)
    with CancelOnDisconnect(request, call):
        embedded = await pipeline.embed_all(call, model, [text, candidates], truncate=body.truncate)

        def ranked() -> Response:
            rankings = pipeline.rank(embedded, len(text), body.top_k)
            with call.timed("decode"):
                return responses.answer(call, responses.ranked(rankings, embedded, len(text)))

        return await pipeline.write(len(text) * len(candidates), ranked)


async def qa(request: Request) -> Response:
    """Answer questions from their contexts."""
    call, pipeline, body = await _begin(request, schemas.QaRequest)
    model, question = _choose(request, call, body.model, "qa"), Texts.of("question", body.question)
    context = Texts.of("context", body.context)
    _check_count(request, question, context)
    with CancelOnDisconnect(request, call):
        found = await pipeline.answers(
            call, model, question, context, top_k=body.top_k, max_answer_tokens=body.max_answer_tokens
        )
        count = sum(1 + len(each.alternatives) for each in found)
        return await pipeline.write(count, lambda: responses.answer(call, responses.answered(found)))


async def embed(request: Request) -> Response:
    """Turn texts into vectors."""
    call, pipeline, body = await _begin(request, schemas.EmbedRequest)
    model, text = _choose(request, call, body.model, "similarity"), Texts.of("text", body.text)
    _check_count(request, text)
    with CancelOnDisconnect(request, call):
        embedded = await pipeline.embed(call, model, text, truncate=body.truncate)
        return await pipeline.write(
            len(text),
            lambda: responses.answer(call, responses.embeddings(embedded)),
            max_inline=INLINE_VECTORS,
        )


async def fill_mask(request: Request) -> Response:
    """Say what may stand in the place of each [MASK]."""
    call, pipeline, body = await _begin(request, schemas.FillMaskRequest)
    model, text = _choose(request, call, body.model, "fill_mask"), Texts.of("text", body.text)
    _check_count(request, text)
    with CancelOnDisconnect(request, call):
        masks = await pipeline.fill_masks(call, model, text, top_k=body.top_k)
        with call.timed("decode"):  # what is written is decoded a mask at a time
            return await pipeline.write(
                masks.results, lambda: responses.answer(call, responses.filled(masks.texts))
            )


async def tokenize(request: Request) -> Response:
    """Show texts as a model reads them."""
    call, pipeline, body = await _begin(request, schemas.TokenizeRequest)
    model, text = _choose(request, call, body.model, None), Texts.of("text", body.text)
    _check_count(request, text)
    with CancelOnDisconnect(request, call):
        tokens = await pipeline.tokens(call, model, text)
        return await pipeline.write(call.tokens, lambda: responses.answer(call, responses.tokenized(tokens)))


async def models(request: Request) -> Response:
    """List the loaded models."""
    service = _service(request)
    loaded, registry = service.loaded, service.loaded.registry
    infos = [
        {
            **_model_info(model, registry.defaults, loaded.budgets),
            "ready": (why_not := service.why_model_not_ready(model.name)) is None,
            "why_not_ready": why_not,
        }
        for model in registry.models.values()
    ]
    left_out = [{"name": each.name, "task": each.task, "reason": each.reason} for each in registry.left_out]
    return JSONResponse({"models": infos, "left_out": left_out})


async def live(_: Request) -> Response:
    """Tell that the process answers, whatever the state of its models."""
    return JSONResponse({"status": "live"})


async def ready(request: Request) -> Response:
    """Tell whether requests can be answered now, with `?model=NAME` those for one model."""
    service, name = _service(request), request.query_params.get("model")
    service.probe_soon()
    if name is None:
        why_not = service.why_not_ready()
    else:
        try:
            why_not = service.why_model_not_ready(service.loaded.registry.find(name, None).name)
        except UnknownModelError as error:  # it names the others, and no API key was asked for
            detail = f"there is no model {error.model!r}; /models lists those that are loaded"
            raise ProblemError(404, "unknown-model", detail) from None
    if why_not is None:
        return JSONResponse({"status": "ready"})
    raise NotReadyError(f"the service is {why_not}")


async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    shown = await _service(request).metrics.scrape()
    return Response(shown, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _begin(request: Request, schema: type[Body]) -> tuple[RequestContext, Pipeline, Body]:
    """Return what each task begins with.

    Its call with the deadline, the pipeline if it is there, the validated body.
    """
    service, call = _service(request), _call(request)
    pipeline = service.loaded.pipeline
    call.timeout_ms = timeout_ms(request, service.settings.request_timeout_ms)
    body, max_texts = await read_body(request, service.settings), service.settings.max_texts_per_request
    if len(body) <= INLINE_BYTES:
        return call, pipeline, parse(schema, body, max_texts)
    with CancelOnDisconnect(request, call):  # while it waits for a thread too
        parsed = await pipeline.run_in_thread(lambda: parse(schema, body, max_texts))
    return call, pipeline, parsed


def _choose(request: Request, call: RequestContext, name: str | None, task: str | None) -> Model:
    """Return the model that answers, and note its name. Raises what `Registry.find` does."""
    model = _service(request).loaded.registry.find(name, task)
    call.model = model.name
    return model


def _check_count(request: Request, *fields: Texts) -> None:
    check_count(_service(request).settings.max_texts_per_request, *fields)


def _check_pair(model: Model, text: Texts, pair: Texts | None) -> None:
    """Refuse a pair for a model of single texts, and the other way round."""
    if pair is not None and not model.spec.pair:
        raise InvalidRequestError([FieldError("text_pair", f"model {model.name!r} reads single texts")])
    if pair is None and model.spec.pair:
        raise InvalidRequestError([FieldError("text_pair", f"is required: model {model.name!r} reads pairs")])
    if pair is not None:
        pair_count(text, pair)


def _service(request: Request) -> Service:
    service = request.scope["app"].service
    assert isinstance(service, Service)
    return service


def _call(request: Request) -> RequestContext:
    call = request.scope["state"]["call"]
    assert isinstance(call, RequestContext)
    return call


def _model_info(model: Model, defaults: Mapping[str, str], budgets: Mapping[str, int]) -> dict[str, object]:
    manifest, spec = model.bundle.manifest, model.spec
    return {
        "name": model.name,
        "version": manifest.version,
        "task": spec.task,
        "default": defaults.get(spec.task) == model.name,
        "labels": list(spec.labels),
        "problem": spec.problem if TASKS[spec.task].has_problems else None,
        "pair": spec.pair,
        "max_tokens": spec.max_tokens,
        "stride": spec.stride,
        "precision": manifest.precision,
        "why_fallback": model.why_fallback or None,
        "provider": model.provider,
        "batch_tokens": budgets[model.name],
        "dev_score": manifest.dev_score,
        "parity": manifest.parity,
    }
