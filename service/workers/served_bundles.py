"""What is served of the bundles, and how that changes while the service runs.

There is one way for a model to come, to be replaced or to come back: its bundle is opened and measured beside what is
served, then the scheduler takes it under an id of its own, and requests that begin from then on go to it. Those that began
before keep the version that read them; it leaves once none is left.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from bert.bundle import manifest_sha256, read_bundle
from bert.errors import BertError, BundleError, LoadError, NotReadyError, UnknownModelError
from service.access.keys import has_admin
from service.engine.bundle_folders import FileStates, file_states, find_bundles, readable_part, settled
from service.engine.bundle_loader import BundleLoader, duplicate_error
from service.engine.cost_curve import Measurement
from service.engine.measure import measure
from service.engine.models import Model, OpenedModel, Registry, SkippedBundle
from service.exports.store import fetch_all, stores_of
from service.logs import LOGGER
from service.scheduling.scheduler import Scheduler
from service.scheduling.scheduler_protocol import LOAD, LOOK_AGAIN, ROLLBACK, UNLOAD, ServedModels
from service.system import free_memory, release_free_memory
from service.workers.generations import Generations, Record
from service.workers.scheduled_models import ScheduledModels

RETRY_EVERY_S = 1.0
"""Seconds between two looks at the files of bundles that cannot be served."""
RETIRE_EVERY_S = 0.1
"""Seconds between two looks whether a replaced version is still in use."""
TAKE_OVER_S = 10.0
"""Seconds given to the processes that speak HTTP to take over what is served."""
KEEP_AFTER_S = 2.0
"""Seconds after the start until what is served is copied: the first requests come first."""
UNLOADED = "it was unloaded on request; load it to bring it back"


@dataclass(frozen=True, slots=True)
class Order:
    """Something to do with the models, and who waits for its end."""

    run: Callable[[], Awaitable[None]]
    done: "asyncio.Future[None] | None" = None

    def answer(self, error: Exception | None) -> None:
        """Tell who waits that it is done, or why it failed."""
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class ServedBundles:
    """The bundles that a service knows, and what is served of them."""

    def __init__(
        self,
        loaded: Mapping[Path, OpenedModel | SkippedBundle],
        loader: BundleLoader,
        scheduled: ScheduledModels,
        scheduler: Scheduler,
        *,
        keep_tokenizers: bool = True,
        record: Record | None = None,
    ) -> None:
        """Take what was loaded, and what runs it. Without `keep_tokenizers` only other processes tokenise.

        In `record` is what was served before, and what is served is written there.
        """
        record = Record() if record is None else record
        self._loader, self._scheduled, self.scheduler = loader, scheduled, scheduler
        self._settings, self._keep_tokenizers = scheduled.settings, keep_tokenizers
        self._references = WeakValueDictionary[str, Model]()
        self.is_held: Callable[[str], bool] = self._references.__contains__
        """Tells whether a request that is not in the scheduler yet holds the model of an id that was replaced."""
        # Without engines: multi-slot sessions that are not faster are freed with `loaded`.
        self._bundles: dict[Path, Model | SkippedBundle] = {
            folder: self._kept(each) if isinstance(each, OpenedModel) else each
            for folder, each in loaded.items()
        }
        self._live = {
            folder: loader.hashes[folder] for folder, each in self._bundles.items() if isinstance(each, Model)
        }
        """Hash of the manifest of what is served, by the folder in whose place it is."""
        better_bundles = self._settings.better_bundles.items()
        self._better = {
            better: folder for folder, better in better_bundles if record.sources.get(folder) != better
        }
        """Bundles that are waited for: folder → the folder whose place in `_bundles` it takes."""
        self._sources = dict(record.sources)
        """Folders in whose place another one is served → that one."""
        self._previous = {folder: list(hashes) for folder, hashes in record.previous.items()}
        """Hashes of the versions before, the newest last, by the folder in whose place they were."""
        self._unloaded, self._failed = set(record.unloaded), dict[Path, SkippedBundle]()
        self._record, self._generations = record, Generations.of(self._settings)
        self._keeps = record.keeps or bool(self._settings.watch_bundles_s) or has_admin(self._settings)
        """What is served is copied, to be able to come back to it."""
        self._retired: dict[str, float] = {}
        """Ids of models that were replaced → time at which no request can hold them any more."""
        self._stores, self._fetching = stores_of(self._settings), asyncio.Lock()
        self._unfetched = dict[Path, str]()
        """Bundles that could not be fetched from their object store: folder → reason."""
        self._orders, self._changed = asyncio.Queue[Order](), False
        self._seen = self._tried = loader.tried
        self._tried |= {folder: {} for folder in self._better}
        self._seen = dict(self._tried)
        self._retry_at = self._watch_at = 0.0

    def _kept(self, model: OpenedModel) -> Model:
        kept = model.without_engine(keep_tokenizer=self._keep_tokenizers)
        self._references[kept.id] = kept
        return kept

    def now(self) -> ServedModels:
        """Return what is served."""
        tokens, slots = self._scheduled.running_tokens, self._scheduled.layout.slots
        registry = self._registry(self._bundles)
        for name, version in self._settings.default_versions.items():
            model = registry.models.get(name)
            if model is not None and (served := model.bundle.manifest.version) != version:
                what = "version %s of %s is not loaded (default_versions): version %s answers for the name"
                LOGGER.warning(what, version, name, served)
        return ServedModels(registry, self.scheduler, dict(self._scheduled.budgets), tokens, slots)

    async def changes(self) -> AsyncIterator[ServedModels]:
        """Carry out what is ordered and what the files ask for, and yield what is served after each change.

        An order is answered once the consumer asks for the next change: it has taken the last one over then.
        """
        await self._write_record()
        if self._keeps:
            keep = Order(self._keep_all)
            asyncio.get_running_loop().call_later(KEEP_AFTER_S, self._orders.put_nowait, keep)
        try:
            while True:
                if (order := await self._next_order()) is None:
                    continue
                error: Exception | None = None
                limit_s = self._settings.load_timeout_s
                try:
                    async with asyncio.timeout(limit_s):
                        await order.run()
                except TimeoutError:  # a disk that hangs must not keep other models from changing
                    error = LoadError(f"it was not done after {limit_s} s (load_timeout_s)")
                    LOGGER.error("a change of the models was given up: %s", error)
                except BertError as raised:
                    error = raised
                except Exception as raised:  # a fault of ours must not end the changes
                    LOGGER.exception("the models could not be changed")
                    error = LoadError(repr(raised))
                if self._changed:
                    self._changed = False
                    await self._write_record()
                    yield self.now()
                order.answer(error)
        finally:
            while not self._orders.empty():
                self._orders.get_nowait().answer(NotReadyError("the service is stopping"))

    async def manage(self, action: str, name: str = "") -> None:
        """Do what `Manage` describes; return once it is taken over."""
        actions = {LOAD: self._load, UNLOAD: self._unload, ROLLBACK: self._roll_back}
        run = self._look_again if action == LOOK_AGAIN else partial(actions[action], name)
        order = Order(run, asyncio.get_running_loop().create_future())
        self._orders.put_nowait(order)
        assert order.done is not None
        await order.done

    async def _next_order(self) -> Order | None:
        """Return the next order; None after a look at the files that are watched."""
        await self._remove_retired()
        troubled = [*self._skipped(), *self._failed, *self._better]
        watch_s, now = self._settings.watch_bundles_s, time.monotonic()
        looks = [self._retry_at] * bool(troubled) + [self._watch_at] * bool(watch_s)
        pauses = [max(0.0, at - now) for at in looks] + [RETIRE_EVERY_S] * bool(self._retired)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pauses, default=None)):
                return await self._orders.get()
        now, folders = time.monotonic(), list[Path]()
        if now >= self._retry_at:
            self._retry_at = now + RETRY_EVERY_S
            folders += troubled
        if watch_s and now >= self._watch_at:
            self._watch_at = now + watch_s
            if self._stores and not self._fetching.locked():
                # Not awaited: a store that is away holds up nothing.
                self._poll = asyncio.create_task(self._fetch())
            folders += [*self._known(), *await self._new_folders()]
        return Order(partial(self._look, folders)) if folders else None

    async def _look(self, folders: Iterable[Path]) -> None:
        """Order an update of the folders whose files have changed, but not since the last look."""
        now = await asyncio.to_thread(_states, folders)
        for folder in settled(now, self._seen, self._tried):
            self._orders.put_nowait(Order(partial(self._update, folder)))
        self._seen |= now

    async def _fetch(self) -> None:
        """Bring the copies of object stores up to date, and note what could not be fetched."""
        async with self._fetching:
            found = await fetch_all(self._stores)
        for folder in found.keys() - self._unfetched.keys():
            LOGGER.error("what is served of %s goes on: %s", folder.name, found[folder])
        self._changed |= found != self._unfetched  # told after the order that runs, or the next one
        self._unfetched = found

    def _known(self) -> list[Path]:
        """Return the folders of what is served, or is to be."""
        return [self._sources.get(folder, folder) for folder in self._bundles if folder not in self._unloaded]

    def _skipped(self) -> list[Path]:
        """Return the folders of bundles that were left out."""
        skipped = (folder for folder, each in self._bundles.items() if isinstance(each, SkippedBundle))
        return [folder for folder in skipped if folder not in self._unloaded]

    async def _look_again(self) -> None:
        """Order an update of each folder whose files have changed since it was tried, and of each new one."""
        if not self._keeps:  # as far as it is still there
            self._keeps = True
            await self._keep_all()
        await self._fetch()
        now = await asyncio.to_thread(_states, [*self._known(), *self._failed, *await self._new_folders()])
        for folder in [folder for folder, files in now.items() if files != self._tried.get(folder)]:
            self._orders.put_nowait(Order(partial(self._update, folder)))

    async def _new_folders(self) -> list[Path]:
        """Return the folders that were added since the service looked last."""

        def find() -> list[Path]:
            found = dict[Path, object]()
            for path in self._settings.bundles:
                with suppress(BundleError):  # what was there may be gone, and is served all the same
                    found |= find_bundles([path])
            return [folder for folder in found if folder not in self._bundles]

        return await asyncio.to_thread(find)

    async def _load(self, name: str) -> None:
        """Serve what lies in the folders of a model, or of a version, now; raises LoadError or UnknownModelError."""
        await self._fetch()
        folders = [self._sources.get(place, place) for place in self._named(name)]
        # What is not served may be of that version by now: its files say so.
        skipped = [place for place, each in self._bundles.items() if isinstance(each, SkippedBundle)]
        others = [self._sources.get(place, place) for place in skipped] + await self._new_folders()
        called = await asyncio.to_thread(
            lambda: [each for each in others if readable_part(each).is_called(name)]
        )
        folders += [folder for folder in called if folder not in folders]
        for folder in folders:
            if reason := self._unfetched.get(folder):
                raise LoadError(reason)
            await self._update(folder)
        if not folders:
            raise self._unknown(name)

    async def _unload(self, name: str) -> None:
        """Serve a model no more; raises UnknownModelError."""
        if not (folders := self._named(name)):
            raise self._unknown(name)
        for folder in folders:
            before = self._bundles[folder]
            self._bundles[folder] = SkippedBundle(before.name, before.task, UNLOADED)
            self._unloaded.add(folder)
            self._failed.pop(self._sources.get(folder, folder), None)
            self._live.pop(folder, None)
            self._changed = True
            if isinstance(before, Model):
                self._retire(before)
            LOGGER.info("model %s was unloaded on request", name)

    async def _roll_back(self, name: str) -> None:
        """Serve the version of a model before the one that is served; raises LoadError and UnknownModelError."""
        if not (places := self._named(name)):
            raise self._unknown(name)
        if len(places) > 1:
            raise LoadError(f"{name!r} has several versions: say which, as NAME@VERSION")
        previous = self._previous.get(places[0], [])
        if not previous or not self._generations.has(previous[-1]):
            raise LoadError(
                f"no version of {name!r} before the one that is served is kept (keep_generations)"
            )
        self._changed, reason, sha256 = True, "", previous[-1]
        try:
            await self._replace(places[0], self._generations.place(sha256), self._bundles[places[0]])
        except Exception as error:
            reason = f"the version before of {name!r} cannot be served: {error}"
            traceback.clear_frames(error.__traceback__)
        if reason:
            raise LoadError(reason)
        self._previous[places[0]] = previous[:-1]
        LOGGER.info("model %s was rolled back to the version before", name)

    async def _keep_all(self) -> None:
        """Copy what is served, unless there is a copy, and remove the copies that are not needed any more."""

        def keep() -> None:
            needed = set[str]()
            for place, sha256 in self._live.items():
                self._generations.keep(self._sources.get(place, place), sha256)
                needed |= {sha256, *self._previous.get(place, [])}
            for sha256 in filter(self._generations.has, needed):
                self._generations.keep(self._generations.place(sha256), sha256)
            self._generations.drop_others(needed)

        await asyncio.to_thread(keep)

    async def _write_record(self) -> None:
        """Write what is served, for the process that takes this one's place."""
        names = {folder: (each.name, each.task) for folder, each in self._bundles.items()}
        tried = {folder: self._tried.get(self._sources.get(folder, folder), {}) for folder in self._bundles}
        record = replace(
            self._record,
            names=names,
            hashes=self._live,
            sources={folder: self._sources.get(folder, folder) for folder in self._bundles},
            previous=self._previous,
            unloaded=frozenset(self._unloaded),
            tried=tried,
            keeps=self._keeps,
        )
        await asyncio.to_thread(record.write)

    def _unknown(self, name: str) -> UnknownModelError:
        return UnknownModelError(name, sorted(self._registry(self._bundles).models))

    def _named(self, name: str) -> list[Path]:
        """Return the folders of all versions of a model, or of one: NAME@VERSION."""

        def is_named(each: Model | SkippedBundle) -> bool:
            version = each.bundle.manifest.version if isinstance(each, Model) else ""
            return name in (each.name, f"{each.name}@{version}")

        return [folder for folder, each in self._bundles.items() if is_named(each)]

    async def _update(self, source: Path) -> None:
        """Serve the bundle that lies in a folder now. Raises LoadError; what was served of it then goes on."""
        replaced = (place for place, other in self._sources.items() if other == source)
        place = self._better.get(source) or next(replaced, source)
        before = self._bundles.get(place)
        files = await asyncio.to_thread(file_states, source)
        if before is None and not files:  # it was added, failed, and is gone
            self._changed |= self._failed.pop(source, None) is not None
            return
        sha256 = await asyncio.to_thread(manifest_sha256, source)
        if sha256 and sha256 == self._live.get(place) and source not in self._better:
            self._tried[source] = files
            self._changed |= self._failed.pop(source, None) is not None
            return
        self._changed, reason = True, ""
        self._tried[source] = files  # also where it fails before it is opened
        try:
            await self._replace(place, source, before)
        except Exception as error:
            reason = self._note_failure(place, source, before, error)
            traceback.clear_frames(error.__traceback__)
        before = None  # no frame of an error may hold the model, as a request would
        if reason:
            raise LoadError(reason)
        self._failed.pop(source, None)

    async def _replace(self, place: Path, source: Path, before: Model | SkippedBundle | None) -> None:
        """Let a bundle run in place of the one before; raises what prevents that."""
        model, measured = await asyncio.to_thread(self._open, source, place)
        is_better = source in self._better
        if isinstance(before, Model):
            if is_better and (model.origin != before.origin):
                raise BundleError(f"{source} is of another checkpoint than {place}; start the service again")
            if model.name != before.name:
                raise BundleError(
                    f"{source} holds {model.name!r} now, and {before.name!r} is served from it: put it into another folder"
                )
        # Raises if it cannot be the default that was chosen.
        self._registry({**self._bundles, place: model})
        if is_better:
            del self._better[source]
            if (
                isinstance(before, Model)
                and model.bundle.manifest.precision == before.bundle.manifest.precision
            ):
                reason = model.why_fallback or model.bundle.manifest.choice.get("why", "")
                # That 8 bits are refused was found by the export, and asks nothing of anybody.
                level = logging.WARNING if model.why_fallback else logging.INFO
                LOGGER.log(
                    level, "model %s goes on in %s: %s", model.name, model.bundle.manifest.precision, reason
                )
                return
        self._retired.pop(model.id, None)
        self._scheduled.add(model, measured)
        sha256 = self._loader.hashes[source]
        if source != self._generations.place(sha256):
            self._sources[place] = source
            self._note_previous(place)
        self._bundles[place], self._live[place] = self._kept(model), sha256
        self._unloaded.discard(place)
        if isinstance(before, Model) and before.id != model.id:
            self._retire(before)
        manifest = model.bundle.manifest
        LOGGER.info(
            "model %s is served now: version %s in %s, from %s",
            model.name,
            manifest.version,
            manifest.precision,
            source,
        )

    def _note_previous(self, place: Path) -> None:
        """Record what was served in place of a folder until now, and have what is served from now on copied."""
        sha256 = self._live.get(place, "")
        if self._keeps and self._generations.has(sha256):
            kept = [*self._previous.get(place, []), sha256]
            self._previous[place] = kept[max(0, len(kept) - self._settings.keep_generations) :]
        if self._keeps:
            self._orders.put_nowait(Order(self._keep_all))

    def _note_failure(
        self, place: Path, source: Path, before: Model | SkippedBundle | None, error: Exception
    ) -> str:
        """Record why a bundle cannot be served, and return it."""
        skipped = self._loader.skipped(source, error)
        if source in self._better:
            LOGGER.error(
                "%s goes on as it is: its bundle in 8 bits cannot be served: %s", skipped.name, skipped.reason
            )
        elif isinstance(before, SkippedBundle) and place not in self._unloaded:
            self._bundles[place] = SkippedBundle(before.name, before.task, skipped.reason)
            LOGGER.error("model %s is still left out: %s", before.name, skipped.reason)
        else:
            name = before.name if before is not None else skipped.name
            self._failed[source] = SkippedBundle(name, skipped.task, skipped.reason)
            goes_on = "goes on as it is" if isinstance(before, Model) else "is not served"
            LOGGER.error(
                "model %s %s, as what is in %s now cannot be served: %s",
                name,
                goes_on,
                source,
                skipped.reason,
            )
        return skipped.reason

    def _open(self, folder: Path, replaced: Path) -> tuple[OpenedModel, Measurement]:
        """Open and measure a bundle beside the others; raises what prevents that."""
        check_memory(folder, self._bundles.values())
        model = self._loader.open(folder)
        others = [each for place, each in self._bundles.items() if place != replaced]
        if (error := duplicate_error(model, others)) is not None:
            raise error
        layout, batch_tokens = self._scheduled.layout, self._settings.batch_tokens
        measured = measure([model], layout, batch_tokens, use_cache=self._settings.keep_tuning)
        return model, measured[model.id]

    def _retire(self, model: Model) -> None:
        """Let a model go once no request needs it."""
        self._retired[model.id] = time.monotonic() + TAKE_OVER_S + self._settings.request_timeout_ms / 1000

    async def _remove_retired(self) -> None:
        """Free the replaced models that no request needs any more."""
        now = time.monotonic()
        ended = [
            model
            for model, until in self._retired.items()
            if not self.scheduler.uses(model) and (now > until or not self.is_held(model))
        ]
        for model in ended:
            del self._retired[model]
            self._scheduled.remove(model)
            self.scheduler.forget(model)
        if ended:
            await asyncio.to_thread(release_free_memory)

    def _registry(self, bundles: Mapping[Path, Model | SkippedBundle]) -> Registry:
        every = [*bundles.values(), *self._loader.failed]
        unloaded = [
            each
            for folder, each in bundles.items()
            if folder in self._unloaded and isinstance(each, SkippedBundle)
        ]
        parts = ((readable_part(folder), reason) for folder, reason in self._unfetched.items())
        unfetched = (SkippedBundle(part.name, part.task, reason) for part, reason in parts)
        failed, versions = [*self._failed.values(), *unfetched], self._settings.default_versions
        return Registry.of(every, self._settings.default_models, unloaded, failed, versions)


def check_memory(folder: Path, served: Iterable[Model | SkippedBundle]) -> None:
    """Raise BundleError if the memory that is free surely does not hold a bundle beside what is served.

    Its graph is in memory at least once, and so are tables that no served model shares.
    """
    models = (each for each in served if isinstance(each, Model))
    shared = {sha256 for model in models for sha256 in model.bundle.manifest.files.values()}
    bundle = read_bundle(folder, verify_hashes=False)
    tables = [file for file in bundle.tables.values() if bundle.manifest.files[file] not in shared]
    needed = sum((folder / file).stat().st_size for file in (bundle.graph, *tables))
    free = free_memory()
    if free is not None and needed > free:
        raise BundleError(
            f"{folder} takes at least {needed / 2**20:,.0f} MiB of memory beside what is served, and "
            f"{free / 2**20:,.0f} MiB are free: raise the memory limit, or stop the service and start it with the new bundle"
        )


def _states(folders: Iterable[Path]) -> dict[Path, FileStates]:
    return {folder: file_states(folder) for folder in folders}
