"""What test code needs and defines, read from its syntax; nothing of it is run here."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import symtable
import sys
import warnings
from collections.abc import Iterator

_BUILTINS = frozenset(vars(builtins)) | {"__name__", "__file__", "__doc__"}
_SHORT = {"np": "numpy", "pd": "pandas"}
_RUNS = {
    "eval": "",
    "exec": "",
    "compile": "",
    "__import__": "",
    "load": "pickle marshal joblib dill torch",
    "loads": "pickle marshal dill",
}
_OURS = "solution"


class Unfit(Exception):
    """Tests that cannot judge; the text says why, as what the column `tests` does."""


class TestCode:
    """Test code of one row.

    Args:
        text: all of it.
        entry: the function to test, or an expression for it (`Solution().solve`); empty when the tests name it.

    Attributes:
        names: names it uses and does not define; what the judged code defines of them is the judged code's.
        modules: names it uses as modules without importing them, with the module's own name.
        required: names that the judged code must define.
        calls: what is to be called once the code has run: (check | function | class, name), less what it calls itself.
        target: the name by which judged code is recognised, or None.

    Raises:
        Unfit: it cannot be run, or nothing could fail it.
    """

    def __init__(self, text: str, entry: str) -> None:
        self.tree = self.parse(text)
        self._refuse_what_cannot_cross()
        self._entry = entry
        if entry:
            self.parse(entry, "entry_point: ")
        self.calls = self._calls()
        own, free = _scopes(symtable.symtable(text, _OURS, "exec"))
        called = [
            node.func.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        unknown = [name for name in free if name not in own and name not in _BUILTINS]
        named = sys.stdlib_module_names | set(_SHORT)
        modules = [name for name in unknown if name in named and name not in called and name != root(entry)]
        self.modules = [(name, _SHORT.get(name, name)) for name in modules]
        self.names = [name for name in unknown if name not in modules]
        self.required = [root(entry)] if entry else []
        if root(entry) in free and root(entry) not in self.names:
            self.names.append(root(entry))
        if not self.names and not entry and not self._imports_solution():
            self.names = self.required = self._shadowing(called)
        first = next((name for name in called if name in self.names), None)
        self.target = root(entry) or first or next(iter(self.names), None)
        self._refuse_what_proves_nothing()

    @staticmethod
    def parse(text: str, label: str = "") -> ast.Module:
        """The syntax tree of test code.

        Raises:
            Unfit: it is no Python.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
                compile(tree, _OURS, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise Unfit(f"{label}is no Python{place}: {getattr(error, 'msg', error)}") from None
        return tree

    def _calls(self) -> list[tuple[str, str]]:
        done = {
            node.value.func.id
            for node in self.tree.body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        }
        found = []
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases):
                found.append(("class", node.name))
            elif isinstance(node, ast.FunctionDef) and node.name not in done:
                if node.name == "check" and _arity(node) == 1:
                    found.append(("check", node.name))
                elif node.name.startswith("test"):
                    found.append(("function", node.name))
                    if _arity(node):
                        raise Unfit(f"{node.name} takes arguments; fixtures and parametrize are not supported")
        if ("check", "check") in found and not self._entry:
            raise Unfit("defines check(candidate), and there is no entry_point to hand it")
        return found

    def _shadowing(self, called: list[str]) -> list[str]:
        """The one built-in name that each statement calls: MBPP has tasks whose function is called `sum`."""
        statements = [
            {node.func.id for node in ast.walk(part) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
            for part in self.tree.body
            if isinstance(part, ast.Assert)
        ]
        shared = set.intersection(*statements) & set(called) if statements else set()
        if len(shared) != 1:
            raise Unfit("names nothing that the completion could define; give the function's name as entry_point")
        return list(shared)

    def _imports_solution(self) -> bool:
        return any(name == _OURS for name, _ in _imported(self.tree))

    def _refuse_what_cannot_cross(self) -> None:
        for name, whole in _imported(self.tree):
            if whole.startswith("unittest.mock") or whole == "mock":
                raise Unfit("replaces parts of the judged code (mock); it runs in another process, out of reach")
            if name != _OURS and not _installed(name):
                raise Unfit(f"imports {name}, which is not installed here (the judged code's own module is {_OURS})")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await) or (
                isinstance(node, ast.Name) and node.id == "asyncio"
            ):
                raise Unfit("is asynchronous; a coroutine cannot cross from the judged code's process")
            if isinstance(node, ast.Call) and _runs_code(node.func):
                raise Unfit(f"calls {ast.unparse(node.func)}: what the judged code gives could run as the judge")

    def _refuse_what_proves_nothing(self) -> None:
        proofs = [proof for node in ast.walk(self.tree) for proof in _proofs(node)]
        for node, tested in proofs:
            if tested is not None and not isinstance(tested, ast.Constant) and _always(tested):
                why = "a tuple with items is always true" if isinstance(tested, ast.Tuple) else "it is always true"
                raise Unfit(f"line {node.lineno}: `{ast.unparse(node)[:200]}` cannot fail: {why}")
        if not proofs:
            raise Unfit("holds no assert, so that anything would pass")
        if all(tested is not None and _always(tested) for _, tested in proofs):
            raise Unfit("holds no assert that could fail, so that anything would pass")


def _proofs(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr | None]]:
    """What can fail a test, with the condition that is looked at if there is one."""
    if isinstance(node, ast.Assert):
        yield node, node.test
    elif isinstance(node, ast.Raise):
        yield node, None
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name in ("assertTrue", "assert_") and node.args:
            yield node, node.args[0]
        elif name.startswith(("assert", "fail")) or name == "raises":
            yield node, None
    elif isinstance(node, ast.Attribute) and node.attr == "raises":
        yield node, None


def _always(node: ast.expr, truth: bool = True) -> bool:
    """Whether an expression is true (or false) whatever the judged code does, as far as its form shows."""
    match node:
        case ast.Constant():
            return bool(node.value) is truth
        case ast.Tuple() | ast.List() | ast.Set():
            return any(not isinstance(item, ast.Starred) for item in node.elts) if truth else not node.elts
        case ast.Dict():
            return any(key is not None for key in node.keys) if truth else not node.keys
        case ast.Lambda():
            return truth
        case ast.JoinedStr():
            return truth and any(isinstance(part, ast.Constant) and part.value for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return _always(node.operand, not truth)
        case ast.NamedExpr():
            return _always(node.value, truth)
        case ast.IfExp():
            return _always(node.body, truth) and _always(node.orelse, truth)
        case ast.BoolOp():
            enough = any if isinstance(node.op, ast.Or) is truth else all
            return enough(_always(value, truth) for value in node.values)
        case ast.Compare():
            return _constant_comparison(node) is truth
    return False


def _constant_comparison(node: ast.Compare) -> bool | None:
    """What a comparison of literals gives, `1 == 1`; None for any other."""
    if not all(isinstance(part, ast.Constant) for part in (node.left, *node.comparators)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(ast.Expression(node), _OURS, "eval", dont_inherit=True)
    try:
        return bool(eval(code, {"__builtins__": {}}))  # literals and comparisons only
    except TypeError:
        return None


def root(expression: str) -> str:
    """The name an entry point begins with: `Solution` of `Solution().solve`."""
    found = re.match(r"\s*(\w+)", expression)
    return found[1] if found else ""


def helpers(prefix: str, entry: str) -> str:
    """The whole definitions of a prompt, less the function to be written: the judge has its own of them."""
    tree, unfinished = _parsed(f"{prefix.rstrip()}\n    pass\n"), True
    if tree is None:
        tree, unfinished = _parsed(prefix), False
    if tree is None:
        return ""
    body = tree.body[:-1] if unfinished else tree.body
    kept: list[ast.stmt] = [node for node in body if getattr(node, "name", None) != entry]
    return ast.unparse(ast.Module(body=kept, type_ignores=[]))


def imports(setup: str) -> str:
    """The import statements of the set-up, which judged code may count on."""
    tree = _parsed(setup)
    found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)] if tree else []
    return "\n".join(ast.unparse(node) for node in found if getattr(node, "module", None) != "__future__")


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _scopes(table: symtable.SymbolTable) -> tuple[set[str], list[str]]:
    """The names a module defines, and those it or an inner scope takes from the module's or the built-in names."""
    own = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    free: dict[str, None] = {}

    def walk(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is table or symbol.is_global()):
                free[symbol.get_name()] = None
        for child in scope.get_children():
            walk(child)

    walk(table)
    return own, list(free)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(top-level name, whole name) of each module imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.module
            yield from ((node.module.partition(".")[0], f"{node.module}.{alias.name}") for alias in node.names)


def _installed(name: str) -> bool:
    return name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None


def _runs_code(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return _RUNS.get(function.id) == ""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id in _RUNS.get(function.attr, "").split()
    return False


def _arity(node: ast.FunctionDef) -> int:
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - len(node.args.defaults)
