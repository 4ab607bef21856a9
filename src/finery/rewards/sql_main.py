"""The operations of the `sql` reward, run by worker_main in a process of their own.

    gold(source, query, settings)         -> {"rows": int, "columns": [str]}   runs it, and keeps what it gave
    judge(source, query, given, settings) -> {"same": bool, "why": str}        `query` is the gold one
    batch(sources, items, settings)       -> [what judge replies]   items: [index of its source, query, given];
                                             stops early once it has taken BATCH seconds

or {"ask": "gold"} from judge when it does not hold that result (any more); {"slow": seconds} or {"problem": str} when
the query asked about fails; {"fault": str} when the database cannot be used. `source` is {"path": str} or
{"schema": str}.
Imports nothing of finery; its neighbours are loaded by path, as their names (numbers.py) must not hide Python's own.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from types import ModuleType
from typing import Any

MOST_ROWS = 100_000
"""Rows of a gold result."""
MOST_BYTES = 64 << 20
"""Bytes of its values, about."""
HELD_BYTES = 256 << 20
"""Bytes of the gold results that are kept; the one used longest ago goes first."""
BATCH = 0.25
"""Seconds of CPU time after which a batch is handed back, so that its last query has all of the process's deadline."""
HELD_DATABASES = 8
"""Databases kept open."""


def _neighbour(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"finery_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compare = _neighbour("sql_compare")
engines = _neighbour("sql_engines")
text = _neighbour("sql_text")


class Gold:
    """A gold query's result, its order, and about how many bytes it takes."""

    def __init__(self, table: Any, order: list[int] | None) -> None:
        self.table = table
        self.order = order
        self.bytes = sum(64 + sum(_size(value) for value in row) for row in table.rows)


_databases: OrderedDict[Hashable, Any] = OrderedDict()
_golds: OrderedDict[Hashable, Gold] = OrderedDict()


def gold(source: dict[str, str], query: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a gold query and keep its result."""

    def work() -> dict[str, Any]:
        identity = _identity(source, settings["engine"])
        database = _database(identity, source, settings)
        if (known := _golds.get((identity, query))) is None:
            result = _run(database, query, settings, MOST_ROWS + 1)
            known = Gold(_table(result), text.order_columns(query, settings["engine"], result.names))
            if len(result.rows) > MOST_ROWS or known.bytes > MOST_BYTES:
                raise engines.Refused(f"gives too much: more than {MOST_ROWS} rows or {MOST_BYTES >> 20} MiB")
            _golds[identity, query] = known
            while len(_golds) > 1 and sum(one.bytes for one in _golds.values()) > HELD_BYTES:
                _golds.popitem(last=False)
        return {"rows": len(known.table.rows), "columns": known.table.names}

    return _answered(work, settings)


def judge(source: dict[str, str], query: str, given: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Compare what a query gives with what the gold one gave."""

    def work() -> dict[str, Any]:
        identity = _identity(source, settings["engine"])
        right = _golds.get((identity, query))
        database = _databases.get(identity)
        if right is None or database is None:
            return {"ask": "gold"}
        _golds.move_to_end((identity, query))
        # one row more than gold has shows that there are too many
        result = _run(database, given, settings, len(right.table.rows) + 1)
        why = compare.difference(
            right.table, _table(result), right.order, settings["tolerance"], permute=settings["permute"]
        )
        return {"same": why is None, "why": why or _agreed(right)}

    return _answered(work, settings)


def batch(sources: list[dict[str, str]], items: list[tuple[int, str, str]], settings: dict[str, Any]) -> list[Any]:
    """`judge` for the first of the items, one at least."""
    until = time.process_time() + BATCH
    replies: list[Any] = []
    for index, query, given in items:
        replies.append(judge(sources[index], query, given, settings))
        if time.process_time() > until:
            break
    return replies


def _run(database: Any, query: str, settings: dict[str, Any], most: int) -> Any:
    statement = text.trimmed(query, settings["engine"])
    if not statement:
        raise engines.Refused("is empty")
    return database.run(statement, settings["timeout"], most)


def _answered(work: Callable[[], dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    try:
        return work()
    except engines.Refused as error:
        return {"problem": str(error)}
    except engines.TooSlow:
        return {"slow": settings["timeout"]}
    except engines.Unusable as error:
        return {"fault": str(error)}


def _identity(source: dict[str, str], engine: str) -> Hashable:
    """What tells a database from others; a file that changes is another one."""
    if "path" not in source:
        return engine, source["schema"]
    try:
        found = os.stat(source["path"])
    except OSError as error:
        raise engines.Unusable(f"cannot be read: {error.strerror}") from None
    return engine, source["path"], found.st_ino, found.st_size, found.st_mtime_ns


def _database(identity: Hashable, source: dict[str, str], settings: dict[str, Any]) -> Any:
    if identity not in _databases:
        if len(_databases) >= HELD_DATABASES:
            _databases.popitem(last=False)[1].close()
        path = Path(source["path"]) if "path" in source else None
        make = engines.ENGINES[settings["engine"]]
        try:
            _databases[identity] = make(path, source.get("schema", ""), settings["timeout"])
        except engines.Refused as error:
            raise engines.Refused(f"cannot run: its schema {error}") from None
        except engines.TooSlow:
            raise engines.Refused(f"cannot run: its schema took longer than {settings['timeout']:g} s") from None
    _databases.move_to_end(identity)
    return _databases[identity]


def _table(result: Any) -> Any:
    rows = [tuple(map(compare.cell, row)) for row in result.rows]
    return compare.Table(result.names, rows)


def _agreed(right: Gold) -> str:
    count = len(right.table.rows)
    ordered = "" if right.order is None else ", in the same order"
    return f"the same {count} row{'' if count == 1 else 's'} as gold{ordered}"


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 32


def prepare(op: str) -> None:
    """No file may grow by what runs here."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


OPERATIONS: dict[str, Callable[..., Any]] = {"gold": gold, "judge": judge, "batch": batch}
