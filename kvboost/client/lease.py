"""A lease: the right to read K/V where the cache server keeps them, for as long as a stream lasts.

Every handle that the server sends is a pin: it gives these bytes to nobody else until the client says that it has
read them. Here that is said when the last buffer over the bytes is garbage, so a reader need not know of pins.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from kvboost.client.segments import SegmentMaps, generation
from kvboost.errors import CacheUnavailableError, DataLossError
from kvboost.types import ChunkKV, Handover
from kvboost.v1 import cache_pb2 as pb

_END, _WAKE = 0, -1  # the server counts pins from 1
_BATCH_S = 0.005
_PROOF_BYTES = 256  # more than any server writes

_REFUSALS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)

Opener = Callable[[Iterator[pb.LeaseRequest]], Any]


class LeaseRefusedError(CacheUnavailableError):
    """The server is there and shared memory is not; asking again soon will not help."""


class Lease:
    """One lease. Safe to use from several threads.

    Parameters
    ----------
    opener
        Starts the call with an iterator of requests.
    timeout_s
        How long to wait for the server's message.

    Raises
    ------
    CacheUnavailableError
        If the server does not answer.
    LeaseRefusedError
        If it grants none, or its files are not those of this host.
    """

    def __init__(self, opener: Opener, timeout_s: float) -> None:
        self._words: SimpleQueue[int] = SimpleQueue()
        self._held: set[int] = set()
        self._lock = threading.Lock()
        self._hello: pb.LeaseResponse | None = None
        self._answered = threading.Event()
        self._ended = self._retired = False
        self._renew_s = 1.0
        self._maps = SegmentMaps(Path())  # none are mapped before the server says where they are
        self._call = opener(self._requests())
        threading.Thread(target=self._listen, name="kvboost-lease", daemon=True).start()
        try:
            hello = self._greeted(timeout_s)
            self.name: str = hello.lease
            self._maps = SegmentMaps(_proven(hello))
        except CacheUnavailableError:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether its stream lasts. Bytes that were mapped stay readable after it."""
        return not self._ended

    def chunks(self, handles: Sequence[pb.Handle]) -> Iterator[ChunkKV]:
        """Yield the chunks that ``handles`` name; all are found before the first is given out.

        Raises
        ------
        SegmentError
            Before the first chunk, if one cannot be read where its handle says.
        DataLossError
            After a chunk, if its bytes were given to another while it was read: this process slept for longer
            than the server lets a pin live, or the lease's stream broke.
        """
        with self._lock:
            self._maps.forget_gone()
            waiting = deque(self._found(handle) for handle in handles)
        while waiting:
            handle, memory, chunk = waiting.popleft()
            yield chunk
            if generation(memory, handle) != handle.generation:
                raise DataLossError(
                    f"the memory of chunk {handle.chunk} was given to another while it was read; fetch it again"
                )

    def warm(self, namespace: str) -> None:
        """Map what the server has of a namespace by now, and touch it: the first touch of mapped memory takes as long
        as copying it, and here nobody waits."""
        found: list[npt.NDArray[np.uint8]] = []
        with self._lock, suppress(CacheUnavailableError):  # a segment that just went is not missed
            self._maps.forget_gone()
            found = self._maps.new(namespace)
        for memory in found:
            memory[:: mmap.PAGESIZE].max()

    def retire(self) -> None:
        """End the stream once nothing that it pins is read any more; until then it speaks for what is."""
        self._retired = True
        self._words.put(_WAKE)

    def close(self) -> None:
        """End the stream, and with it every pin."""
        self._ended = True
        self._words.put(_END)
        self._call.cancel()

    def _found(self, handle: pb.Handle) -> tuple[pb.Handle, memoryview, ChunkKV]:
        view, memory = self._maps.view(handle)
        self._held.add(handle.pin)
        weakref.finalize(view, _let_go, self._held, self._words, handle.pin).atexit = False
        return handle, memory, ChunkKV(handle.chunk, view.data, handle.checksum, Handover.SHARED_MEMORY)

    def _requests(self) -> Iterator[pb.LeaseRequest]:
        """Tell the server what was read, in batches, and from time to time what still is.

        From time to time also let go of files that are gone: a client that is idle would keep their memory.
        """
        renewed_s = time.monotonic()
        while True:
            released: list[int] = []
            try:
                released.append(self._words.get(timeout=self._renew_s))
                time.sleep(_BATCH_S)
                while True:
                    released.append(self._words.get_nowait())
            except Empty:
                pass
            if self._ended or _END in released or (self._retired and not self._held):
                return
            released = [pin for pin in released if pin != _WAKE]
            held: list[int] = []
            if time.monotonic() - renewed_s >= self._renew_s:
                held = list(self._held.copy())
                renewed_s = time.monotonic()
                with self._lock:
                    self._maps.forget_gone()
            if released or held:
                yield pb.LeaseRequest(released=released, held=held)

    def _listen(self) -> None:
        """Take the server's message, then wait for the end of the stream."""
        try:
            for message in self._call:
                if self._hello is None:
                    self._hello = message
                    self._renew_s = message.pin_s / 4
                    self._answered.set()
        except grpc.RpcError:
            pass  # its status is kept by the call
        finally:
            self._ended = True
            self._words.put(_END)
            self._answered.set()
            with self._lock:
                self._maps.clear()

    def _greeted(self, timeout_s: float) -> pb.LeaseResponse:
        if not self._answered.wait(timeout_s):
            raise CacheUnavailableError("the server did not answer the call for a lease in time")
        if self._hello is not None:
            return self._hello
        kind = LeaseRefusedError if self._call.code() in _REFUSALS else CacheUnavailableError
        raise kind(f"the server grants no lease: {self._call.details()}")


def _let_go(held: set[int], words: SimpleQueue[int], pin: int) -> None:
    """Note that a pin is no longer read. May run inside any other call: it takes no lock."""
    held.discard(pin)
    words.put(pin)


def _proven(hello: pb.LeaseResponse) -> Path:
    """Return the directory of segments, once it is known to be the server's own."""
    directory = Path(hello.directory)
    proof = directory / hello.proof_file
    try:
        with proof.open("rb") as file:
            same = file.read(_PROOF_BYTES) == hello.proof
    except OSError as error:
        raise LeaseRefusedError(f"the server's segments cannot be read here: {error}") from error
    if not same:
        raise LeaseRefusedError(f"{proof} is not the server's: it runs on another host")
    return directory
