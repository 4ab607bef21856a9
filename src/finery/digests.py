"""Digests of what enters a key: a user's files, finery's own code, the packages of an interpreter.

The only thing written is a cache, so that `plan` answers at once.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

from finery.content import digest_of, hash_file, write_json
from finery.errors import InputError
from finery.schemas.base import module_name

_PACKAGE = Path(__file__).parent
_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class DigestCache:
    """Digests by path, size and time of change, kept in `<home>/cache/digests.json`."""

    def __init__(self, home: Path) -> None:
        self._path = home / "cache" / "digests.json"
        self._changed = False
        try:
            self._known: dict[str, list[object]] = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            self._known = {}

    def _remember(self, path: Path, what: str, compute: Callable[[Path], str]) -> str:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        name = f"{what}:{path}"
        known = self._known.get(name)
        if known is None or known[:3] != stamp:
            self._known[name] = [*stamp, compute(path)]
            self._changed = True
        return str(self._known[name][3])

    def file(self, path: Path) -> str:
        """sha256 of a file's bytes."""
        return self._remember(path, "file", hash_file)

    def tree(self, path: Path) -> str:
        """The digest of a file, a folder (hidden files left out) or a glob: of names, hashes and sizes.

        Raises:
            InputError: nothing is there.
        """
        return digest_of([[name, self.file(file), file.stat().st_size] for name, file in list_files(path)])

    def code(self, kind: str) -> str:
        """The digest of the code that `stages/<kind>.py` reaches within finery, docstrings and comments aside."""
        files = sorted(self.closure(f"finery.stages.{module_name(kind)}").items())
        return digest_of([[name, self._remember(path, "code", _tree_digest)] for name, path in files])

    def closure(self, module: str) -> dict[str, Path]:
        """finery's modules that `module` reaches by import statements; schemas are left out.

        A schema's meaning is in the config and in `schema_version`, so that a new field with a default changes no key.
        """
        found: dict[str, Path] = {}
        ahead = [module]
        while ahead:
            name = ahead.pop()
            path = _module_file(name)
            if path is None or name in found or name.startswith("finery.schemas"):
                continue
            found[name] = path
            ahead += self._remember(path, "imports", _imports).split()
        return found

    def versions(self, packages: tuple[str, ...], python: str | None) -> dict[str, str]:
        """Versions of distributions in an interpreter, finery's own by default; `absent` for one it lacks."""
        if python is None:
            return {name: _version(name) for name in packages}
        path = Path(python)
        if not path.exists():
            raise InputError(f"the interpreter {python} is not there; make its environment first")
        site = _site(path)
        asked = self._remember(
            site if site.exists() else path, "versions:" + ",".join(packages), lambda _: _ask(python, packages)
        )
        return dict(json.loads(asked))

    def save(self) -> None:
        if self._changed:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, self._known)
            except OSError:
                return  # a read-only project still plans, only slower
            self._changed = False


def list_files(path: Path) -> list[tuple[str, Path]]:
    """The files of a file, a folder or a glob, each with its name below it, sorted.

    Raises:
        InputError: nothing is there.
    """
    if path.is_file():
        return [(path.name if path.suffix in _WEIGHTS else "", path)]
    if path.is_dir():
        found = [(p.relative_to(path).as_posix(), p) for p in path.rglob("*") if p.is_file()]
        found = [(name, p) for name, p in found if not any(part.startswith(".") for part in Path(name).parts)]
    else:
        found = [(os.path.basename(p), Path(p)) for p in glob.glob(str(path), recursive=True) if os.path.isfile(p)]
    if not found:
        raise InputError(f"{path}: no such file, folder or match")
    return sorted(found)


def _imports(path: Path) -> str:
    """finery's modules that a file names in import statements, late ones included, one a line."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name: None for alias in node.names if alias.name.startswith("finery.")}
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            if module.startswith("finery"):
                found |= {module: None} | {f"{module}.{alias.name}": None for alias in node.names}
    return "\n".join(found)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    """The module an import statement of the file `path` names, `from . import x` included."""
    if node.level == 0:
        return node.module or ""
    package = ("finery", *path.relative_to(_PACKAGE).parent.parts)
    return ".".join([*package[: len(package) - node.level + 1], *((node.module,) if node.module else ())])


def _module_file(name: str) -> Path | None:
    base = _PACKAGE.joinpath(*name.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if name != "finery" and path.is_file():
            return path
    return None


def _tree_digest(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # a bare string is a docstring, of a module, class, function or field: it does nothing
            body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


@cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _site(python: Path) -> Path:
    """The folder whose time of change tells that an environment got other packages."""
    return next(iter(sorted(python.parent.parent.glob("lib/python*/site-packages"))), python)


def _ask(python: str, packages: tuple[str, ...]) -> str:
    code = (
        "import json, sys\nfrom importlib import metadata\n"
        "def version(name):\n try: return metadata.version(name)\n"
        " except metadata.PackageNotFoundError: return 'absent'\n"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"the interpreter {python} does not run: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.strip()
