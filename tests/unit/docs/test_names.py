"""A word means one thing: no two classes of the same name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("pentimento", "services", "lab", "zoo", "benchmarks")


def test_no_class_name_is_used_twice() -> None:
    homes = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.ClassDef):
                        homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
