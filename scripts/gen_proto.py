"""Write the gRPC code of ``proto/`` into ``kvboost/v1``, or check that what is committed is up to date.

python scripts/gen_proto.py           write
python scripts/gen_proto.py --check   exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def generate(out: Path) -> None:
    """Run protoc over every file under ``proto/``; exit with its message if it fails."""
    sources = sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    args = ["protoc", f"-I{PROTO}", f"-I{well_known}"]
    args += [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *sources]
    if protoc.main(args) != 0:
        sys.exit("protoc failed; its message stands above")


def generated_files(root: Path) -> dict[str, bytes]:
    """Return the generated files under ``root/kvboost/v1`` by name."""
    folder = root / "kvboost" / "v1"
    return {p.name: p.read_bytes() for pattern in GENERATED for p in folder.glob(pattern)}


def drift() -> list[str]:
    """Return the names of committed files that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = generated_files(Path(folder))
    committed = generated_files(ROOT)
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    """Write or check, as asked on the command line."""
    parser = argparse.ArgumentParser(description="Generate kvboost/v1 from proto/.")
    parser.add_argument("--check", action="store_true", help="compare with what is committed, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    stale = drift()
    if stale:
        print(f"kvboost/v1 does not match proto/: {', '.join(stale)}; run `make proto` and commit", file=sys.stderr)
        return 1
    print("kvboost/v1 matches proto/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
