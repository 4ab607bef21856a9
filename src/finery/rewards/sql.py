"""The `sql` reward: does the completion's query give the rows that the gold query gives? See docs/sql.md."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from finery.errors import InputError, StageError
from finery.rewards.rewardset import RowError as Unjudged
from finery.rewards.rewardset import text_of
from finery.rewards.worker import STARVED, TooLong, VerifierError, Worker
from finery.schemas.rewards import SqlReward

if TYPE_CHECKING:  # named, so that the digest of a stage's code covers what runs in the process
    from finery.rewards import sql_compare, sql_engines, sql_main, sql_text  # noqa: F401

SCRIPT = Path(__file__).with_name("sql_main.py")
LONGEST = 100_000
"""Characters of a query."""
GRACE = 1.0
"""Seconds beyond the limit after which a query that cannot be interrupted ends with its process."""
MEMORY = {"sqlite": 1 << 30, "duckdb": 4 << 30}
"""Bytes of address space of the process; DuckDB reserves more than it uses."""
SUFFIXES = {"sqlite": (".sqlite", ".sqlite3", ".db"), "duckdb": (".duckdb", ".db")}
BATCH = 32
"""Queries in one request."""
_FORM = 'the gold query as text, or {"query": str} with "db" (a database of the folder) or "schema" (a script)'
_KEYS = {"query", "gold", "db", "schema"}
_HELD = 4096
_FENCE = re.compile(
    r"```[ \t]*(?:(?P<sql>sql|sqlite3?|duckdb|postgres(?:ql)?|mysql)\b|(?P<other>[\w+#.-]+)[ \t]*(?=\n)|)"
    r"(?P<body>.*?)(?:```|\Z)",
    re.DOTALL | re.IGNORECASE,
)


class Task(NamedTuple):
    """The gold query of a row and the database that it is put to: {"path": str} or {"schema": str}."""

    query: str
    source: dict[str, str]


class Verdict(NamedTuple):
    """A score, None where the row cannot be judged, and why."""

    score: float | None
    why: str


class RowError(Exception):
    """The row's `sql` is not of an accepted form, or names no database that is there."""


class SqlFunction:
    """1.0 or 0.0 for each completion; None where the row's `sql` cannot be used or its gold query fails.

    Args:
        reward: its settings.
        database: the file, or the folder of files, that `reward.database` stands for.

    Raises:
        InputError: `database` is not there.
    """

    column = "sql"

    def __init__(self, reward: SqlReward, database: Path | None) -> None:
        if database is not None and not database.exists():
            raise InputError(
                f"{database}: no such file or folder; `database` of a sql reward names a database, or a folder of them"
            )
        self.reward = reward
        self.database = database
        self.settings = {
            "engine": reward.engine,
            "timeout": reward.timeout,
            "tolerance": reward.tolerance,
            "permute": reward.permute_columns,
        }
        self.worker = Worker(
            SCRIPT,
            reward.timeout + GRACE,
            memory=MEMORY[reward.engine],
            wall=STARVED * reward.timeout + GRACE,
        )
        self._known: OrderedDict[tuple[str, ...], str | None] = OrderedDict()

    def __call__(
        self,
        completions: list[Any],
        sql: list[Any] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Scores of N completions.

        Raises:
            StageError: the rows have no `sql`, a database is gone or cannot be opened, the process cannot start.
        """
        if sql is None:
            raise StageError("the reward sql needs rows with a `sql`; these have none")
        cut = truncated or [False] * len(completions)
        asked = [
            self._asked(gold, text_of(completion), short)
            for completion, gold, short in zip(completions, sql, cut, strict=True)
        ]
        pending = [(index, *one) for index, one in enumerate(asked) if not isinstance(one, Verdict)]
        scores = {index: one.score for index, one in enumerate(asked) if isinstance(one, Verdict)}
        # one of DuckDB that cannot be interrupted ends its process: in a batch it would be found by a second run
        most = BATCH if self.reward.engine == "sqlite" else 1
        while pending:
            part, rest = pending[:most], pending[most:]
            found = self._batch([(task, query) for _, task, query in part])
            scores.update((index, one.score) for (index, _, _), one in zip(part, found, strict=False))
            pending = part[len(found) :] + rest
        return [scores[index] for index in range(len(completions))]

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion of the row can be judged: its form, its database, or a gold query that fails."""
        try:
            task = self._task(row.get("sql"))
            return self._gold(task)
        except RowError as error:
            return str(error)

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """Why a completion scored as it did, in a line."""
        return self.verdict(row.get("sql"), completion, truncated).why

    def verdict(self, sql: Any, completion: str, truncated: bool = False) -> Verdict:
        """The score of one completion of a row, and why."""
        asked = self._asked(sql, completion, truncated)
        return asked if isinstance(asked, Verdict) else self._judged(*asked)

    def _asked(self, sql: Any, completion: str, truncated: bool) -> Verdict | tuple[Task, str]:
        """What the process must be asked about a completion, or the verdict when it need not be."""
        try:
            task = self._task(sql)
        except RowError as error:
            return Verdict(None, f"cannot be judged: {error}")
        if problem := self._gold(task):
            return Verdict(None, f"cannot be judged: {problem}")
        if truncated:
            return Verdict(0.0, "the completion was cut off")
        query = extract(completion, self.reward.extract)
        if query is None or len(query) > LONGEST:
            return Verdict(0.0, "no query found" if query is None else f"its query is longer than {LONGEST} characters")
        return task, query

    def _batch(self, asked: list[tuple[Task, str]]) -> list[Verdict]:
        """The verdicts on the first of some queries, one at least."""
        if len(asked) == 1:
            return [self._judged(*asked[0])]
        sources = list(dict.fromkeys(tuple(task.source.items()) for task, _ in asked))
        items = [(sources.index(tuple(task.source.items())), task.query, query) for task, query in asked]
        try:
            replies = self.worker.ask(
                "batch", sources=[dict(source) for source in sources], items=items, settings=self.settings
            )
        except (TooLong, VerifierError):  # one of them took the process with it
            return [self._judged(task, query) for task, query in asked]
        return [
            self._judged(task, query) if "ask" in reply else self._read(reply, task, query)
            for (task, query), reply in zip(asked, replies, strict=False)
        ]

    def _judged(self, task: Task, query: str) -> Verdict:
        for _ in range(3):
            try:
                reply = self.worker.ask(
                    "judge", source=task.source, query=task.query, given=query, settings=self.settings
                )
            except (TooLong, VerifierError) as error:
                return Verdict(0.0, f"{_shown(query)} {_stopped(error)}")
            if "ask" not in reply:
                return self._read(reply, task, query)
            self._known.pop(_key(task), None)  # a new process, or one that keeps others
            if problem := self._gold(task):
                return Verdict(None, f"cannot be judged: {problem}")
        return Verdict(0.0, f"{_shown(query)} was stopped: its process died (out of memory?)")

    def _read(self, reply: Mapping[str, Any], task: Task, query: str) -> Verdict:
        if "fault" in reply:
            raise Unjudged(self.column, _fault(reply, task))
        if "same" in reply:
            return Verdict(float(reply["same"]), f"{_shown(query)}: {reply['why']}")
        return Verdict(0.0, f"{_shown(query)} {_failure(reply)}")

    def _gold(self, task: Task) -> str | None:
        """Run the gold query, unless it is known; why it fails, or None."""
        key = _key(task)
        if key not in self._known:
            try:
                reply = self.worker.ask("gold", source=task.source, query=task.query, settings=self.settings)
            except (TooLong, VerifierError) as error:
                reply = {"problem": _stopped(error)}
            if "fault" in reply:
                raise Unjudged(self.column, _fault(reply, task))
            self._known[key] = None if "rows" in reply else f"the gold query {_failure(reply)}"
            if len(self._known) > _HELD:
                self._known.popitem(last=False)
        return self._known[key]

    def _task(self, sql: Any) -> Task:
        """What the row asks for."""
        if isinstance(sql, str):
            sql = {"query": sql}
        if not isinstance(sql, dict):
            raise RowError(f"sql is {'missing' if sql is None else type(sql).__name__}; {_FORM} is due")
        if unknown := sorted(set(sql) - _KEYS):
            raise RowError(f"sql has the key {unknown[0]!r}; {_FORM} is due")
        if wrong := [key for key, value in sql.items() if value is not None and not isinstance(value, str)]:
            raise RowError(f"sql.{wrong[0]} is {type(sql[wrong[0]]).__name__}, not text")
        given = {key: value for key, value in sql.items() if value is not None}
        queries = [given[key] for key in ("query", "gold") if key in given]
        if len(queries) != 1 or not queries[0].strip():
            raise RowError(
                f"sql has {'two queries, query and gold' if len(queries) > 1 else 'no query'}; {_FORM} is due"
            )
        if len(queries[0]) > LONGEST:
            raise RowError(f"sql: the gold query is longer than {LONGEST} characters")
        if "schema" in given:
            if "db" in given:
                raise RowError("sql has both db and schema; one of them says what the query is put to")
            return Task(queries[0], {"schema": given["schema"]})
        return Task(queries[0], {"path": str(self._file(given.get("db")))})

    def _file(self, name: str | None) -> Path:
        base = self.database
        if base is None:
            raise RowError("sql names no schema, and the reward has no `database`")
        if name is None:
            if base.is_dir():
                raise RowError(f"sql names no db, and the reward's database is the folder {base.name}")
            return base
        if base.is_file():
            raise RowError(
                f"sql names the db {name!r}, but the reward's database is the file {base.name}; name a folder"
            )
        if name.startswith("/") or ".." in PurePosixPath(name).parts or "\0" in name:
            raise RowError(f"sql.db {name!r} is not inside the folder {base.name}")
        tails = ["", *SUFFIXES[self.reward.engine]]
        names = [name + tail for tail in tails] + [f"{name}/{PurePosixPath(name).name}{tail}" for tail in tails[1:]]
        for candidate in names:
            if (base / candidate).is_file():
                return base / candidate
        raise RowError(f"sql names the db {name!r}, but the folder {base.name} has no {', '.join(names)}")


def extract(text: str, how: str) -> str | None:
    """The query in a completion, or None.

    Args:
        how: `fence`: the last ```sql block, or, if there is none, the last block that names no language; `whole`;
            `auto`: a block if there is one, else the whole text.
    """
    if how != "whole":
        blocks = list(_FENCE.finditer(text))
        named = [block for block in blocks if block["sql"]] or [block for block in blocks if not block["other"]]
        if named:
            return named[-1]["body"].strip() or None
        if how == "fence" or blocks:
            return None
    return text.strip() or None


def _key(task: Task) -> tuple[str, ...]:
    return task.query, *next(iter(task.source.items()))


def _fault(reply: Mapping[str, Any], task: Task) -> str:
    return f"database {task.source.get('path', 'in memory')}: {reply['fault']}"


def _stopped(error: Exception) -> str:
    return f"was stopped: {error}" if isinstance(error, TooLong) else f"fails: {error}"


def _failure(reply: Mapping[str, Any]) -> str:
    return f"took longer than {reply['slow']:g} s" if "slow" in reply else str(reply["problem"])


def _shown(query: str) -> str:
    line = " ".join(query.split())
    return line if len(line) <= 80 else line[:77] + "..."
