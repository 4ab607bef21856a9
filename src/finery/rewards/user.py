"""The `python` reward: a function of the user's own, loaded from a file."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from finery.errors import InputError
from finery.rewards.rewardset import its_own

_LOCK = threading.RLock()


class UserFunction:
    """A function of a user's file; modules beside the file can be imported by it and are seen by nothing else.

    Raises:
        InputError: the file is absent or raises on import, or has no such function.
    """

    def __init__(self, file: Path, function: str) -> None:
        self.folder = file.resolve().parent
        self._modules: dict[str, ModuleType] = {}
        if not file.is_file():
            raise InputError(f"{file}: no such file; a python reward names the file that holds its function")
        with self._at_home():
            module = _load(file)
        found = getattr(module, function, None)
        if not callable(found):
            names = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
            raise InputError(f"{file}: has no function {function}; it has {', '.join(names) or 'none'}")
        self.function: Callable[..., Any] = found

    def bound(self) -> Callable[..., Any]:
        """The function, with its own folder importable while it runs; its signature is kept for inspection."""

        def call(**arguments: Any) -> Any:
            with self._at_home():
                return self.function(**arguments)

        call.__wrapped__ = self.function  # type: ignore[attr-defined]
        return call

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        """Put the file's folder on sys.path, with the modules it brought before; leave neither behind."""
        with _LOCK:
            before = dict(sys.modules)
            hidden = {name: module for name, module in self._modules.items() if name not in before}
            sys.modules.update(hidden)
            sys.path.insert(0, str(self.folder))
            try:
                yield
            finally:
                sys.path.remove(str(self.folder))
                for name, module in list(sys.modules.items()):
                    if name not in before and _within(module, self.folder):
                        self._modules[name] = sys.modules.pop(name)


def _load(file: Path) -> ModuleType:
    name = f"finery_reward_{file.stem}_{abs(hash(str(file.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() in the file is its mistake as well
        del sys.modules[name]
        if not its_own(error):
            raise
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{file}{line}: cannot be loaded: {type(error).__name__}: {error}".rstrip(": ")) from error
    return module


def _within(module: ModuleType | None, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder)
