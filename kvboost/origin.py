"""Which process something was made in: threads, locks and connections do not live on in a forked child."""

from __future__ import annotations

import os


class Origin:
    """The process that it is made in.

    A child of ``fork()`` has copies of all objects, but none of their threads, and locks as they happened to stand.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    def refusal(self, what: str) -> str:
        """Return an empty string in the process of origin; in a forked child one sentence why ``what`` is no use."""
        if os.getpid() == self._pid:
            return ""
        return (
            f"{what} was made in process {self._pid}, and this is process {os.getpid()}, forked from it; "
            "make a new one here, or start processes with the spawn method"
        )
