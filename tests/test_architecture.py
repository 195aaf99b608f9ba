"""Who may import whom, and what stays out: read from the source, so that no rule is forgotten."""

import ast
import graphlib
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vitreous

ROOT = Path(vitreous.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")  # which is lazy, and names all

# From the command line down to what knows nothing of us: a part may import from lower lines only.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"train", "serve"},
    {"report", "export"},
    {"explain"},
    {"embedding"},
    {"evaluation"},
    {"prediction", "card"},
    {"weights", "data"},
    {"recipe"},
    {"model", "augment", "doctor", "page"},
    {"preprocess", "metrics", "plots", "device"},
    {"files", "extras"},
    {"messages"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# Heavy or optional packages, and the only files that may import them, at all or at module level
ONLY_IN = {
    "accelerate": {"train/engine.py"},
    "starlette": {"serve.py"},
    "uvicorn": {"serve.py"},
    "matplotlib": {f"plots/{name}.py" for name in ("canvas", "insight", "run")},
}
NEVER_AT_START = {"sklearn", "pyarrow", "huggingface_hub", "onnx", "onnxruntime", "onnxscript"}
NEVER = {"torchvision", "timm", "transformers", "datasets", "keras", "tensorflow"}


def name_of(path: Path) -> str:
    """The dotted name of a module of ours, from `data.images` to `data` for its `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, start_only: bool = False) -> set[str]:
    """Absolute names of all that a file imports; start_only: of what importing the file imports."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}:{node.lineno} imports relatively"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if start_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if start_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def ours(names: set[str]) -> set[str]:
    """The modules of ours among imported names, without the package's own name."""
    modules = {name_of(path) for path in FILES}
    return {name.removeprefix("vitreous.") for name in names if name.removeprefix("vitreous.") in modules}


def part_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_reader_sees_imports_wherever_they_stand(tmp_path):
    file = ROOT / "x.py"
    text = "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\ntry:\n    import f\nexcept E:\n    pass\n"
    text += "def g():\n    from h import i\nclass J:\n    import k\n"
    everywhere, at_start = {"a.b", "c", "c.d", "e", "f", "h", "h.i", "k"}, {"a.b", "c", "c.d", "f", "k"}

    class Written(type(file)):
        def read_text(self):
            return text

    assert imports_of(Written(file)) == everywhere and imports_of(Written(file), start_only=True) == at_start


def test_every_part_has_a_place():
    parts = {part_of(name_of(path)) for path in FILES}
    assert len(FILES) > 30 and parts <= LEVEL.keys(), f"give {parts - LEVEL.keys()} a place in LAYERS"


@pytest.mark.parametrize("path", FILES, ids=[name_of(path) for path in FILES])
def test_imports_point_down(path):
    part = part_of(name_of(path))
    for module in ours(imports_of(path)):
        other = part_of(module)
        assert other == part or LEVEL[other] > LEVEL[part], f"{name_of(path)} may not import {module}"


def test_modules_do_not_import_each_other_in_circles():
    graph = {name_of(path): ours(imports_of(path, start_only=True)) - {name_of(path)} for path in FILES}
    for module, needed in graph.items():  # that a folder's __init__ names its modules is no circle
        needed -= {part_of(module)} if "." in module else set()
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_the_model_knows_nothing_of_us():
    for path in (ROOT / "model").glob("*.py"):
        assert {part_of(module) for module in ours(imports_of(path))} <= {"model"}, path.name


@pytest.mark.parametrize(("package", "allowed"), ONLY_IN.items())
def test_one_file_alone_knows_it(package, allowed):
    found = {
        path.relative_to(ROOT).as_posix() for path in FILES if any(part_of(n) == package for n in imports_of(path))
    }
    assert found == allowed


@pytest.mark.parametrize("path", FILES, ids=[name_of(path) for path in FILES])
def test_what_is_rarely_needed_is_imported_where_it_is_used(path):
    assert not {part_of(name) for name in imports_of(path, start_only=True)} & NEVER_AT_START


@pytest.mark.parametrize("path", FILES, ids=[name_of(path) for path in FILES])
def test_peers_are_no_dependencies(path):
    if name_of(path) == "doctor":  # which tries whether torchvision imports
        return
    assert not {part_of(name) for name in imports_of(path)} & NEVER


def test_all_that_an_installation_brings_is_pinned():
    lines = (ROOT.parents[1] / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    todo, brought = [Requirement("vitreous[export,heic,serve,track,dev]")], {}
    while todo:
        package = todo.pop()
        for extra in {"", *package.extras} - brought.get(package.name, set()):
            brought.setdefault(package.name, set()).add(extra)
            needs = map(Requirement, requires(package.name) or [])
            todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    gpu = "nvidia-", "cuda-", "triton"  # which torch brings for a GPU, in versions of its own choice
    names = {canonicalize_name(name) for name in brought if not name.startswith(gpu)}
    assert names - pinned == {"vitreous"}


def test_no_file_is_a_drawer():
    assert not [path.name for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")]


def test_importing_the_package_starts_nothing():
    assert {part_of(name) for name in imports_of(ROOT / "__init__.py", start_only=True)} <= {"importlib", "typing"}


def test_public_names_are_what_they_say_and_no_module_takes_their_place():
    assert {part_of(name_of(path)) for path in FILES}.isdisjoint(vitreous.__all__)
    assert sorted(vitreous.__all__) == sorted(vitreous._HOMES)
    for name in vitreous.__all__:
        value = getattr(vitreous, name)
        home, attribute = vitreous._HOMES[name]
        assert value.__module__ == home and value.__name__ == attribute and not isinstance(value, ModuleType)
    with pytest.raises(AttributeError, match="module 'vitreous' has no attribute 'fitt'"):
        vitreous.fitt  # noqa: B018


def test_public_names_are_listed_before_they_are_used():
    code = "import vitreous; print(sorted(set(vitreous.__all__) - set(dir(vitreous))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def test_lazy_names_are_those_that_type_checkers_see():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(a.asname or a.name): (node.module, a.name) for node in lines for a in node.names}
    assert seen == vitreous._HOMES
