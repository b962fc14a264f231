"""``kvboost warm``: documents into the cache before the first question about them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from kvboost.errors import InputError, RuntimeBusyError, RuntimeUnavailableError

from ..progress import bar
from .config import add_config_arguments, load_from_arguments

if TYPE_CHECKING:
    from kvboost.client import RuntimeClient
    from kvboost.client.runtime_types import WarmReceipt

    from ..documents import Document

HELP = "put documents into the cache through a running runtime, before the first question about them"
EXAMPLE = "kvboost warm docs/ notes.txt passages.jsonl --runtime 127.0.0.1:7462"
EXTRA = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="text file, folder, pattern such as 'docs/**/*.md', or .jsonl with a field text on each line",
    )
    parser.add_argument(
        "--runtime",
        metavar="ADDRESS",
        help="host:port or unix:/path; kvboost serve prints its own (default: server.runtime_address)",
    )
    parser.add_argument(
        "--prefix", metavar="FILE", type=Path, help="text that each document stands behind, such as the system prompt"
    )
    parser.add_argument("--publish", action="store_true", help="for all tenants that read cache.published")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Warm the documents one by one, in their order, and print a summary.

    The cache of a command that ends would end with it, so documents are only warmed in a runtime that stays.
    """
    from kvboost.client import RuntimeClient
    from kvboost.texts import read_text

    from ..documents import read_documents

    config = load_from_arguments(args).config
    documents = read_documents(args.files)
    prefix = read_text(args.prefix) if args.prefix else ""
    with closing(RuntimeClient(args.runtime or config.server.runtime_address)) as client:
        model = _model(client)
        receipts = [
            _warm(client, document, prefix, args.publish) for document in bar(documents, "Warming", unit="document")
        ]
        summary = {"runtime": client.address, "model": model, **_figures(receipts)}
    print(json.dumps(summary, indent=2) if args.json else _as_text(summary))
    return 0


def _model(client: RuntimeClient) -> str:
    """Return the name of the model that runs there."""
    try:
        return client.describe().model
    except RuntimeBusyError:
        raise
    except RuntimeUnavailableError as error:
        raise RuntimeUnavailableError(
            f"no runtime answers at {client.address}; start one with kvboost serve or kvboost serve-runtime, "
            "and give --runtime the address that it prints"
        ) from error


def _warm(client: RuntimeClient, document: Document, prefix: str, publish: bool) -> WarmReceipt:
    """Warm one document; what is wrong with it is told by its own name."""
    try:
        (receipt,) = client.warm([document.text], prefix=prefix, publish=publish)
    except InputError as error:
        raise type(error)(str(error).replace("documents[0]", document.name)) from error
    return receipt


def _figures(receipts: Sequence[WarmReceipt]) -> dict[str, int | float]:
    return {
        "documents": len(receipts),
        "already_cached": sum(not (one.stored_chunks or one.refused_chunks) for one in receipts),
        "tokens": sum(one.tokens for one in receipts),
        "reused_tokens": sum(one.reused_tokens for one in receipts),
        "stored_chunks": sum(one.stored_chunks for one in receipts),
        "refused_chunks": sum(one.refused_chunks for one in receipts),
        "seconds": sum(one.seconds for one in receipts),
    }


def _as_text(summary: dict[str, str | int | float]) -> str:
    text = (
        f"{summary['documents']:,} documents of {summary['tokens']:,} tokens are in the cache of {summary['model']} "
        f"at {summary['runtime']}\n{summary['already_cached']:,} were there already; {summary['stored_chunks']:,} "
        f"chunks are new; took {summary['seconds']:.1f} s"
    )
    if summary["refused_chunks"]:
        text += (
            f"\n{summary['refused_chunks']:,} chunks were not kept: stored after enough other texts already "
            "(cache.max_variants), or larger than the cache (cache.max_bytes)"
        )
    return text
