"""The kinds of call of the cache service, and how many threads each has."""

from __future__ import annotations

from dataclasses import dataclass

from ..grpc_idle import Limits
from ..grpc_lanes import Lane
from .leases import MAX_LEASES

_WAITING = 8  # calls of a kind that may wait, for each that runs


@dataclass(frozen=True, slots=True)
class CacheLanes:
    """Who shares threads with whom.

    Attributes
    ----------
    figures
        Describe and Stats: what is asked to find out whether the server is well.
    lookups
        Match and Offer: short, but a match may have to embed. Requests wait for it.
    changes
        Evict and Drop.
    large
        Look-ups and the like whose messages come in pieces, up to 64 MiB each.
    puts, fetches
        Streams, as long as their bytes are on their way.
    leases
        Streams that last as long as their clients. One more than there may be leases: the one too many has to be told.
    """

    figures: Lane
    lookups: Lane
    changes: Lane
    large: Lane
    puts: Lane
    fetches: Lane
    leases: Lane


def cache_lanes(
    workers: int = 8, *, idle_s: float = 10.0, stream_s: float = 300.0, max_leases: int = MAX_LEASES
) -> CacheLanes:
    """Return lanes with ``workers`` threads for each kind of call that does the cache's work.

    Parameters
    ----------
    workers
        Look-ups, puts and fetches that run at the same time, each.
    idle_s
        Seconds that the other side may let any call but a lease wait.
    stream_s
        Seconds that a put or a fetch may take in all.
    max_leases
        Clients that may hold a lease.
    """
    short, stream = Limits(idle_s), Limits(idle_s, stream_s)
    return CacheLanes(
        figures=Lane("figures", 2, 2 * _WAITING, short),
        lookups=Lane("lookups", workers, _WAITING * workers, short),
        changes=Lane("changes", 2, 2 * _WAITING, short),
        large=Lane("large", 2, 2 * _WAITING, stream),
        puts=Lane("puts", workers, _WAITING * workers, stream),
        fetches=Lane("fetches", workers, _WAITING * workers, stream),
        leases=Lane("leases", max_leases + 1, 0),
    )
