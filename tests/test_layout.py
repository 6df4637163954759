"""The rules of the house (the floors, the size of a file, who may import nats), read from the source.

Every rule is a function from sources to findings, so each is also shown here to find what it forbids.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A room imports only from floors below it; `bus` itself (the public names) stands above `bus.agent`.
FLOORS: Mapping[str, float] = {
    "bus.errors": 0,
    "bus.text": 0,
    "bus.envelope": 1,
    "bus.contracts": 1.5,  # its names and versions are the envelope's
    "bus.config": 1,
    "bus.broker": 2,
    "bus.telemetry": 2,
    "bus.workflow": 3,
    "bus.trust": 3,
    "bus.registry": 3,
    "bus.delivery": 4,
    "bus.calls": 4,
    "bus.client": 5,
    "bus.doctor": 5,
    "bus.agent": 6,
    "bus": 6.5,
    "bus.gateway": 7,
    "bus.testing": 7,
    "bus.chaos": 7.5,
    "bus.bench": 7.5,
    "bus.console": 8,
    "bus.cli": 9,
    "bus.__main__": 10,
}
# What each top-level package may import of ours, beside itself.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "bus": frozenset(),
    "schemas": frozenset(),
    "agents": frozenset({"bus", "schemas"}),
}
OURS = frozenset(MAY_IMPORT) | {"tests"}
MAX_LINES = 400
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "base"})
# The code of users runs in two places, for messages and for calls.
BROAD_EXCEPT_ONCE = frozenset({"bus.delivery.pipeline", "bus.calls.line", "bus.cli.main"})


class Sources:
    """Python files by dotted module name; a package stands for its `__init__.py`."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.text = {_module_name(path): text for path, text in files.items()}
        self.paths = {_module_name(path): path for path in files}
        self.packages = {_module_name(path) for path in files if path.endswith("/__init__.py")}
        self.trees = {name: ast.parse(text) for name, text in self.text.items()}

    @classmethod
    def read(cls, *tops: str) -> Sources:
        files = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
        return cls({path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files})

    def imports(self, module: str) -> Iterator[tuple[str, int]]:
        """Every module that `module` names in an import, wherever in the file, with the line."""
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                for alias in node.names:
                    submodule = f"{origin}.{alias.name}"
                    yield (submodule if submodule in self.trees else origin), node.lineno

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - (module in self.packages)
        parts = module.split(".")
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _room(module: str) -> str:
    """`bus.delivery.pipeline` -> `bus.delivery`; outside of bus the top-level name."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "bus" else parts[0]


def _top(module: str) -> str:
    return module.partition(".")[0]


def upward_imports(sources: Sources) -> list[str]:
    found = []
    for module in sources.trees:
        for target, line in sources.imports(module):
            here, there = _room(module), _room(target)
            known = here in FLOORS and there in FLOORS  # if not, rooms_without_floor says so
            if known and here != there and not FLOORS[there] < FLOORS[here]:
                found.append(f"{module}:{line} imports {target}, which is not on a floor below it")
    return found


def rooms_without_floor(sources: Sources) -> list[str]:
    rooms = {_room(module) for module in sources.trees if _top(module) == "bus"}
    return [f"{room} has no floor" for room in sorted(rooms - FLOORS.keys())]


def foreign_packages(sources: Sources) -> list[str]:
    found = []
    for module in sources.trees:
        for target, line in sources.imports(module):
            here, there = _top(module), _top(target)
            if there in OURS and there != here and there not in MAY_IMPORT[here]:
                found.append(f"{module}:{line} imports {target}; {here} may not")
    return found


def cycles(sources: Sources) -> list[str]:
    graph = {m: {t for t, _ in sources.imports(m) if t in sources.trees} for m in sources.trees}
    found: list[str] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for target in sorted(graph[module]):
                walk(target, [*path, module])
            done.add(module)

    for module in sorted(graph):
        walk(module, [])
    return found


def nats_outside_broker(sources: Sources) -> list[str]:
    return [
        f"{module}:{line} imports {target}; only bus/broker/ knows NATS"
        for module in sources.trees
        if _room(module) != "bus.broker"
        for target, line in sources.imports(module)
        if _top(target) == "nats"
    ]


def long_files(sources: Sources) -> list[str]:
    lengths = {sources.paths[module]: len(text.splitlines()) for module, text in sources.text.items()}
    return [f"{path} has {n} lines, more than {MAX_LINES}" for path, n in lengths.items() if n > MAX_LINES]


def empty_files(sources: Sources) -> list[str]:
    return [f"{sources.paths[module]} is empty" for module, tree in sources.trees.items() if not tree.body]


def vague_names(sources: Sources) -> list[str]:
    return [
        f"{sources.paths[module]} is not named after what it holds"
        for module in sources.trees
        if FORBIDDEN_NAMES.intersection(part.removeprefix("_") for part in module.split("."))
    ]


def broad_excepts(sources: Sources) -> list[str]:
    found = []
    for module, tree in sources.trees.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.ExceptHandler)]
        lines = sorted(node.lineno for node in nodes if _is_broad(node))
        found += [f"{module}:{line} catches everything" for line in lines[module in BROAD_EXCEPT_ONCE :]]
    return found


def _is_broad(node: ast.Call | ast.ExceptHandler) -> bool:
    """`except:`, `except Exception`, `suppress(Exception)`; BaseException unless it is raised again."""
    if isinstance(node, ast.Call):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name == "suppress" and any(_names(arg) & {"Exception", "BaseException"} for arg in node.args)
    if node.type is None or "Exception" in _names(node.type):
        return True
    last = node.body[-1]
    return "BaseException" in _names(node.type) and not (isinstance(last, ast.Raise) and last.exc is None)


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)
    }


PRODUCT_RULES = [
    upward_imports,
    rooms_without_floor,
    foreign_packages,
    cycles,
    nats_outside_broker,
    long_files,
    empty_files,
    vague_names,
    broad_excepts,
]


@pytest.fixture(scope="module")
def product() -> Sources:
    return Sources.read("bus", "schemas", "agents")


@pytest.mark.parametrize("rule", PRODUCT_RULES)
def test_product_keeps_the_rule(rule: object, product: Sources) -> None:
    assert callable(rule)
    assert rule(product) == []


@pytest.mark.parametrize("rule", [long_files, empty_files, vague_names])
def test_tests_keep_the_rule(rule: object) -> None:
    assert callable(rule)
    assert rule(Sources.read("tests")) == []


def test_the_sources_were_found(product: Sources) -> None:
    assert {"bus.errors", "bus.broker.embedded"} <= product.trees.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("bus/errors.py", "import bus.config"),
        ("bus/envelope/model.py", "from bus.contracts.validate import check"),
        ("bus/broker/records.py", "def f():\n    from bus.delivery import publisher"),
        ("bus/agent.py", "from bus import Bus"),
        ("bus/delivery/dedupe.py", "from ..agent import Agent"),
        ("bus/workflow/__init__.py", "from ..client import Bus"),
    ],
)
def test_upward_and_sideways_imports_are_found(path: str, text: str) -> None:
    assert len(upward_imports(Sources({path: text}))) == 1


def test_downward_imports_are_fine() -> None:
    sources = Sources(
        {
            "bus/__init__.py": "from bus.agent import Agent",
            "bus/cli/main.py": "from bus import Agent\nimport bus.client",
            "bus/delivery/dedupe.py": "from .publisher import P\nfrom ..errors import error\nimport json",
            "agents/writer.py": "from bus import Agent\nfrom schemas.brief import D\nfrom .facts import f",
        }
    )
    assert upward_imports(sources) == foreign_packages(sources) == rooms_without_floor(sources) == []


def test_a_new_room_needs_a_floor() -> None:
    assert rooms_without_floor(Sources({"bus/attic/box.py": "x = 1"})) == ["bus.attic has no floor"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("schemas/brief.py", "from bus.errors import error"),
        ("schemas/brief.py", "import agents.writer"),
        ("bus/client.py", "import schemas.brief"),
        ("agents/writer.py", "from tests.conftest import settings"),
    ],
)
def test_foreign_packages_are_found(path: str, text: str) -> None:
    assert len(foreign_packages(Sources({path: text}))) == 1


def test_cycles_are_found() -> None:
    circle = {
        "bus/broker/a.py": "from bus.broker import b",
        "bus/broker/b.py": "def f():\n    import bus.broker.c",
        "bus/broker/c.py": "from .a import x",
    }
    assert cycles(Sources(circle)) == ["bus.broker.a -> bus.broker.b -> bus.broker.c -> bus.broker.a"]
    assert cycles(Sources(circle | {"bus/broker/c.py": "x = 1"})) == []


def test_a_package_that_hands_on_a_module_which_imports_it_is_a_cycle() -> None:
    files = {"bus/broker/__init__.py": "from .a import x", "bus/broker/a.py": "from bus.broker import y"}
    assert cycles(Sources(files)) == ["bus.broker -> bus.broker.a -> bus.broker"]


@pytest.mark.parametrize("text", ["import nats", "from nats.js import api", "def f():\n    import nats.errors"])
def test_nats_outside_the_broker_is_found(text: str) -> None:
    assert len(nats_outside_broker(Sources({"bus/delivery/pull.py": text, "bus/broker/pull.py": text}))) == 1


def test_long_empty_and_vaguely_named_files_are_found() -> None:
    sources = Sources({"bus/trust/common.py": "x = 1\n" * 401, "bus/config.py": "", "bus/errors.py": "x = 1\n" * 400})
    assert long_files(sources) == ["bus/trust/common.py has 401 lines, more than 400"]
    assert empty_files(sources) == ["bus/config.py is empty"]
    assert vague_names(sources) == ["bus/trust/common.py is not named after what it holds"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass", 1),
        ("try:\n    f()\nexcept:\n    raise", 1),
        ("try:\n    f()\nexcept (OSError, Exception) as e:\n    raise", 1),
        ("try:\n    f()\nexcept builtins.Exception:\n    raise", 1),
        ("import contextlib\nwith contextlib.suppress(Exception):\n    f()", 1),
        ("try:\n    f()\nexcept BaseException:\n    pass", 1),
        ("try:\n    f()\nexcept BaseException:\n    g()\n    raise", 0),
        ("try:\n    f()\nexcept OSError:\n    pass", 0),
    ],
)
def test_broad_excepts_are_found(text: str, count: int) -> None:
    assert len(broad_excepts(Sources({"bus/agent.py": text}))) == count


def test_the_pipeline_and_the_command_line_may_catch_everything_once() -> None:
    once = "try:\n    f()\nexcept Exception:\n    pass\n"
    assert broad_excepts(Sources({"bus/delivery/pipeline.py": once, "bus/cli/main.py": once})) == []
    assert broad_excepts(Sources({"bus/delivery/pipeline.py": once * 2})) == [
        "bus.delivery.pipeline:7 catches everything"
    ]
