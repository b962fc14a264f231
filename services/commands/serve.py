"""``kvboost serve``: cache, runtime and gateway on this machine, with one command."""

from __future__ import annotations

import argparse
from pathlib import Path

from .config import add_config_arguments, load_from_arguments
from .serve_gateway import add_gateway_arguments, gateway_options

HELP = "serve a model over OpenAI's API on this machine: cache, runtime and gateway with one command"
EXAMPLE = "kvboost serve --port 8000"
EXTRA = "all"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; each goes over its setting in the configuration."""
    add_config_arguments(parser)
    parser.add_argument("--port", metavar="N", type=_port, help="of 127.0.0.1; 0 takes a free one (default: 8000)")
    parser.add_argument("--model", metavar="NAME", help="hub id or local directory (default: the demo model)")
    parser.add_argument("--dtype", help="of weights and K/V: auto, float32, float16 or bfloat16")
    parser.add_argument("--device", help="where the model runs, as torch names it, or auto")
    parser.add_argument("--max-bytes", metavar="SIZE", help="byte budget for K/V, such as 2GiB")
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads that compute (default: one a core)")
    parser.add_argument(
        "--logs", metavar="DIR", type=Path, help="where the servers' logs go (default: a folder removed at the end)"
    )
    add_gateway_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from ..processes import ended_like_ctrl_c
    from ..together import Wanted, running_together

    config = load_from_arguments(
        args,
        server__gateway_address=None if args.port is None else f"127.0.0.1:{args.port}",
        model__name_or_path=args.model,
        model__dtype=args.dtype,
        model__device=args.device,
        cache__max_bytes=args.max_bytes,
    ).config
    wanted = Wanted(config, args.threads, gateway_options(args), args.logs)
    with ended_like_ctrl_c(), running_together(wanted) as servers:
        print(servers.welcome(), flush=True)
        servers.watch()
    return 0


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{number} must lie in [0, 65535]")
    return number
