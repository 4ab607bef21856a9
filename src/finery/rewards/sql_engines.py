"""The two databases of the `sql` reward: opened so that a query can only read, and stopped when it takes too long.

Imports nothing of finery; `sql_main` loads it by path, in the process that a query may exhaust.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

LONGEST = 100_000
"""Characters of a query."""
LARGEST = 16 << 20
"""Bytes of one value."""
HEAP = 256 << 20
"""Bytes that SQLite may hold."""
MEMORY = "512MB"
"""What DuckDB may hold."""
STARVED = 4.0
"""Wall time is limited to so many times the CPU time: a busy host is no fault of a query."""
_CHUNK = 256
_STEPS = 1000
"""Instructions of SQLite's machine between two looks at the clock; some 20 microseconds."""
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_ACTIONS = {
    sqlite3.SQLITE_ALTER_TABLE: "alter table",
    sqlite3.SQLITE_ANALYZE: "analyze",
    sqlite3.SQLITE_ATTACH: "attach",
    sqlite3.SQLITE_DELETE: "delete from",
    sqlite3.SQLITE_DETACH: "detach",
    sqlite3.SQLITE_FUNCTION: "the function",
    sqlite3.SQLITE_INSERT: "insert into",
    sqlite3.SQLITE_PRAGMA: "pragma",
    sqlite3.SQLITE_REINDEX: "reindex",
    sqlite3.SQLITE_TRANSACTION: "a transaction,",
    sqlite3.SQLITE_UPDATE: "update",
}
_SCRIPT_PRAGMAS = frozenset({"foreign_keys", "encoding", "defer_foreign_keys", "case_sensitive_like"})
_DUCKDB = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "memory_limit": MEMORY,
    "threads": "1",
    "temp_directory": "",
    "lock_configuration": "true",
}


class Refused(Exception):
    """The query failed, or is none that may run; the message says why."""


class TooSlow(Exception):
    """The query took longer than its limit and was stopped."""


class Unusable(Exception):
    """The database cannot be used: a fault of the system or its owner, not of a query."""


class Result(NamedTuple):
    """Column names and rows, as the engine gave them; at most the rows that were asked for."""

    names: list[str]
    rows: list[tuple[Any, ...]]


class Clock:
    """CPU time of this process and wall time since `start`, against a limit in seconds."""

    def __init__(self, limit: float) -> None:
        self.start(limit)

    def start(self, limit: float) -> None:
        self.limit = limit
        self.cpu = time.process_time()
        self.wall = time.monotonic()

    def over(self) -> bool:
        """Whether the limit is passed."""
        return time.process_time() - self.cpu > self.limit or time.monotonic() - self.wall > STARVED * self.limit


class Sqlite:
    """A SQLite database that can only be read: a file opened with mode=ro, or a script's, built in memory.

    Args:
        path: the file; None for one in memory.
        script: what builds it in memory.
        limit: seconds for the script.

    Raises:
        Unusable: the file cannot be read as a database.
        Refused, TooSlow: the script fails, attaches a file or takes too long.
    """

    def __init__(self, path: Path | None, script: str, limit: float) -> None:
        self.clock = Clock(limit)
        self.denied = ""
        self.connection = _opened(path) if path else sqlite3.connect(":memory:", isolation_level=None)
        run = self.connection.execute
        for pragma in ("temp_store=2", "trusted_schema=0", f"hard_heap_limit={HEAP}", "cell_size_check=1"):
            run(f"PRAGMA {pragma}")
        self.connection.set_progress_handler(self.clock.over, _STEPS)
        if script:
            self.connection.set_authorizer(self._builds)
            with self._errors(limit):
                self.connection.executescript(script)
            if self.connection.in_transaction:
                self.connection.rollback()
                raise Refused("leaves a transaction open")
            self.connection.set_authorizer(None)
        run("PRAGMA query_only=1")
        for name, value in (
            ("LENGTH", LARGEST), ("SQL_LENGTH", 4 * LONGEST), ("EXPR_DEPTH", 500), ("COMPOUND_SELECT", 100),
            ("LIKE_PATTERN_LENGTH", 1000), ("FUNCTION_ARG", 100), ("ATTACHED", 0), ("WORKER_THREADS", 0),
        ):  # fmt: skip
            self.connection.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}"), value)
        self.connection.set_authorizer(self._reads)

    def run(self, query: str, limit: float, most: int) -> Result:
        """The first `most` rows of one statement.

        Raises:
            Refused, TooSlow: as they say.
        """
        with self._errors(limit):
            return self._run(query, most)

    def close(self) -> None:
        self.connection.close()

    def _run(self, query: str, most: int) -> Result:
        cursor = self.connection.cursor()
        try:
            self.connection.text_factory = str
            cursor.execute(query)
            if cursor.description is None:
                raise Refused("is no query: it gives no columns")
            names = [column[0] for column in cursor.description]
            try:
                return Result(names, _fetched(cursor.fetchmany, most))
            except sqlite3.OperationalError as error:
                if "decode" not in str(error):
                    raise
            self.connection.text_factory = _decoded  # some text of the database is not UTF-8
            return Result(names, _fetched(cursor.execute(query).fetchmany, most))
        finally:
            cursor.close()

    @contextlib.contextmanager
    def _errors(self, limit: float) -> Iterator[None]:
        self.denied = ""
        self.clock.start(limit)
        try:
            yield
        except sqlite3.Error as error:
            if str(error) == "interrupted":
                raise TooSlow from None
            if self.denied:
                raise Refused(f"is refused: {self.denied}; it may only read") from None
            raise Refused(f"fails: {error}") from None
        except sqlite3.Warning as error:  # two statements, which Python 3.12 calls a ProgrammingError
            raise Refused(f"fails: {error}") from None
        except (ValueError, UnicodeError, OverflowError) as error:  # a null character, half a surrogate pair
            raise Refused(f"fails: {error}") from None
        except MemoryError:
            raise Refused("fails: out of memory") from None

    def _reads(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        if action in _READS and not (action == sqlite3.SQLITE_FUNCTION and two in {"load_extension", "fts3_tokenizer"}):
            return sqlite3.SQLITE_OK
        self.denied = self.denied or " ".join(filter(None, (_ACTIONS.get(action, "this statement"), one, two)))[:100]
        return sqlite3.SQLITE_DENY

    def _builds(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        pragma = action == sqlite3.SQLITE_PRAGMA and (one or "").lower() not in _SCRIPT_PRAGMAS
        loads = action == sqlite3.SQLITE_FUNCTION and two in {"load_extension", "fts3_tokenizer"}
        if pragma or loads or action in {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}:
            self.denied = " ".join(filter(None, (_ACTIONS.get(action, ""), one, two)))[:100]
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


class Duckdb:
    """A DuckDB database that can only be read: a file opened read-only, or a script's, built in memory.

    No file but its own, no extension, no setting can be reached from a query, which runs in a read-only transaction.
    Arguments and errors as for Sqlite.
    """

    def __init__(self, path: Path | None, script: str, limit: float) -> None:
        import duckdb

        self.errors: tuple[type[Exception], ...] = (duckdb.Error, ValueError, UnicodeError, RuntimeError)
        self.select = duckdb.StatementType.SELECT
        self.interrupted: type[Exception] = duckdb.InterruptException
        self.connection: Any
        try:
            self.connection = duckdb.connect(str(path or ":memory:"), read_only=path is not None, config=_DUCKDB)
        except duckdb.Error as error:
            raise Unusable(f"cannot be opened as a DuckDB database: {_line(error)}") from None
        if script:
            self._guarded(lambda: self.connection.execute(script), limit)

    def run(self, query: str, limit: float, most: int) -> Result:
        """As for Sqlite."""
        result: Result = self._guarded(lambda: self._run(query, most), limit)
        return result

    def close(self) -> None:
        self.connection.close()

    def _run(self, query: str, most: int) -> Result:
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise Refused(f"is {len(statements)} statements; one is due" if statements else "is empty")
        if statements[0].type != self.select:
            raise Refused(f"is refused: {statements[0].type.name.lower()}; it may only read")
        self.connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            self.connection.execute(statements[0])
            names = [column[0] for column in self.connection.description]
            return Result(names, _fetched(self.connection.fetchmany, most))
        finally:
            self.connection.execute("ROLLBACK")

    def _guarded(self, work: Callable[[], Any], limit: float) -> Any:
        """The work, interrupted from another thread when its time is up."""
        clock, done = Clock(limit), threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                if clock.over():
                    self.connection.interrupt()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return work()
        except self.interrupted:
            raise TooSlow from None
        except MemoryError:
            raise Refused("fails: out of memory") from None
        except self.errors as error:
            raise Refused(f"fails: {_line(error)}") from None
        finally:
            done.set()
            watcher.join()


def _opened(path: Path) -> sqlite3.Connection:
    """A connection that cannot write and leaves no file beside the database."""
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        header = path.open("rb").read(20)
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror}") from None
    if header[18:20] == b"\x02\x02":  # write-ahead log: a reader would make PATH-wal and PATH-shm
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise Unusable(
                f"has changes in {log.name} that are not in it yet; end its writers, or write them into it with "
                f"sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )
        address += "&immutable=1"  # without a log beside it nobody writes it
    try:
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except sqlite3.Error as error:
        raise Unusable(f"cannot be opened as a SQLite database: {error}") from None
    return connection


def _fetched(fetch: Callable[[int], list[tuple[Any, ...]]], most: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    while len(rows) < most:
        part = fetch(min(_CHUNK, most - len(rows)))
        if not part:
            break
        rows += part
    return rows


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


ENGINES: dict[str, type[Sqlite] | type[Duckdb]] = {"sqlite": Sqlite, "duckdb": Duckdb}
