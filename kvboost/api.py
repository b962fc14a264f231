"""The drop-in: the one place that joins segmenter, cache and runtime in one process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.build import build_cache, build_segmenter
from kvboost.circuit_breaker import guarded
from kvboost.config import Config, load
from kvboost.errors import InputError
from kvboost.policy import ReusePolicy
from kvboost.protocols import ChunkCache, PromptSegmenter
from kvboost.published import PublishedCache, check_tenant
from kvboost.runtime.attention.grouped import use_grouped, use_own
from kvboost.runtime.cost.calibrate import calibrated
from kvboost.runtime.cost.cost_gate import Costs
from kvboost.runtime.cost.meter import path_of
from kvboost.runtime.kv.continued import Continued
from kvboost.runtime.kv.slab_pool import SlabPool
from kvboost.runtime.model.identity import Identity
from kvboost.runtime.model.support import examine
from kvboost.runtime.model.training import evaluating
from kvboost.runtime.model.wrapping import innermost
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.runtime.prepare.startup_check import pass_startup_check
from kvboost.runtime.serve.attached import ENGINE, attach, detach
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.serve.follow import Follower
from kvboost.types import Handover


def boost(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cache: ChunkCache | str | None = None,
    policy: ReusePolicy | None = None,
    *,
    config: Config | str | Path | None = None,
    segmenter: PromptSegmenter | None = None,
    tenant: str | None = None,
) -> PreTrainedModel:
    """Give ``model.generate()`` a chunk cache; arguments and results stay what they were.

    After each call ``model.last_reuse`` (a :class:`~kvboost.reuse.ReuseReport`) tells what was reused.

    Copies of the model, by ``copy.deepcopy``, ``pickle`` or ``torch.save``, are plain models: boost them on their own.
    So is the model itself in a forked child, which is told once and served by full prefill; boost it in the child, or
    start processes with the spawn method.

    Parameters
    ----------
    model
        A decoder-only model of transformers, loaded, or a ``PeftModel`` around one. It is changed in place and
        returned. It may change later: other weights or adapters get a namespace of their own.
    tokenizer
        Its fast tokenizer.
    cache
        None for a cache in this process, ``"unix:/path"`` or ``"host:port"`` of a cache server, or any
        :class:`~kvboost.protocols.ChunkCache`, which stays the caller's to close.
    policy
        What may be reused; default :class:`~kvboost.policy.ReusePolicy`.
    config
        A configuration, or the file it is in; without one ``./kvboost.toml`` and environment variables hold, as
        everywhere. The other arguments go over it.
    segmenter
        Instead of the configured one.
    tenant
        K/V are never shared between tenants.

    Raises
    ------
    ModelSupportError
        If the model's K/V cannot be cached at all. Whatever is raised, model and cache are as they were.
    TokenizerError
        If the tokenizer gives no character offsets.
    ConfigError
        If the configuration does not fit.
    LayoutMismatchError
        If the cache knows this namespace with another layout.
    CacheUnavailableError
        If the cache server does not answer.
    """
    base = innermost(model)
    if hasattr(base, ENGINE):
        raise InputError("the model is boosted already; call kvboost.unboost(model) first")
    settings = config if isinstance(config, Config) else load(config).config
    tenant = settings.cache.tenant if tenant is None else tenant
    check_tenant(tenant)
    with ExitStack() as undo, evaluating(base):
        engine = _engine(base, tokenizer, cache, policy, settings, segmenter, tenant, undo)
        undo.pop_all()
    attach(base, engine)
    return model


def _engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cache: ChunkCache | str | None,
    policy: ReusePolicy | None,
    settings: Config,
    segmenter: PromptSegmenter | None,
    tenant: str,
    undo: ExitStack,
) -> Engine:
    """Return the engine; whatever was done to make it is undone when ``undo`` is closed."""
    chosen = segmenter or build_segmenter(settings.segment, settings.embedder, tokenizer)
    support = examine(model)
    undo.callback(use_own, model)
    use_grouped(model)
    identity = Identity(model, tokenizer, support, tenant)
    namespace = identity.now().namespace
    support = pass_startup_check(model, support, namespace)
    costs = Costs(support, calibrated(model, support, namespace), learns=model.device.type == "cpu")
    store = _store(cache, settings)
    owns = store is not cache
    if path_of(store) is not Handover.IN_PROCESS:
        store, owns = guarded(store, costs.counters.add, owns), True
    if owns:
        undo.callback(store.close)
    if settings.cache.published:
        store = PublishedCache(store, settings.cache.published)
    store.open(namespace)
    rules = policy or settings.policy
    slabs = SlabPool(support.layout, model.device)
    room = settings.cache.continued_max_bytes or settings.cache.max_bytes // 10
    continued = Continued(room, settings.cache.continued_ttl_s)
    preparer = Preparer(
        model, tokenizer, chosen, store, namespace, support, rules, threading.Lock(), costs, slabs, continued
    )
    undo.callback(preparer.hands.close)
    follower = Follower(identity, store, namespace, drops=cache is None and not settings.cache.address)
    return Engine(preparer, follower, model.generate, owns, settings.client.request_timeout_s)


def unboost(model: PreTrainedModel) -> PreTrainedModel:
    """Undo :func:`boost`: store what is pending, restore ``generate()`` and the attention. Returns the model."""
    base = innermost(model)
    engine_of(base).close()
    use_own(base)
    detach(base)
    return model


def engine_of(model: PreTrainedModel) -> Engine:
    """Return the engine of a boosted model: its counters, support and namespace.

    Raises
    ------
    InputError
        If the model is not boosted.
    """
    engine = getattr(innermost(model), ENGINE, None)
    if not isinstance(engine, Engine):
        raise InputError("the model is not boosted; call kvboost.boost(model, tokenizer) first")
    return engine


def _store(cache: ChunkCache | str | None, settings: Config) -> ChunkCache:
    if cache is None or isinstance(cache, str):
        wanted = settings.cache if cache is None else replace(settings.cache, address=cache)
        return build_cache(wanted, settings.client, settings.embedder)
    return cache
