"""The forms that a row's `tests` may have, made into jobs for the judge.

{"prefix": str, "entry_point": str, "test": str}      HumanEval: `test` defines check(candidate)
["assert ...", ...]                                   MBPP; or {"setup": str, "asserts": [...]}
"def test_add(): ..."                                 test code: asserts, test_ functions, unittest's cases
{"inputs": [str], "outputs": [str]}                   a program's input and output; or [{"input", "output"}, ...]
{"function": str, "cases": [{"args": [...], "output": ...}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .testcode import TestCode, Unfit, helpers, imports, root

FORMS = (
    'a list of asserts, {"setup", "asserts"}, test code, {"prefix", "entry_point", "test"}, {"inputs", "outputs"}, '
    'a list of {"input", "output"}, {"function", "cases"}'
)
_KEYS = {
    "test": {"test", "prefix", "entry_point", "setup"},
    "asserts": {"asserts", "prefix", "entry_point", "setup"},
    "inputs": {"inputs", "outputs", "tolerance", "empty_output"},
    "function": {"function", "cases", "tolerance"},
}


@dataclass(frozen=True)
class Tests:
    """What a completion is judged by.

    Attributes:
        jobs: one for each fresh process, without the completion; all must pass.
        order: what the candidate's process is told beside the completion.
    """

    jobs: list[dict[str, Any]]
    order: dict[str, Any] = field(default_factory=dict)

    def job(self, place: int, text: str, extract: str, seconds: float) -> dict[str, Any]:
        """The job of one process for a completion."""
        return {**self.jobs[place], "order": {**self.order, "text": text, "extract": extract}, "seconds": seconds}


def read(tests: Any) -> Tests:
    """The tests of a row.

    Raises:
        Unfit: they have none of the forms, or nothing could ever pass or fail them.
    """
    if isinstance(tests, str):
        return _code([("", tests)], {})
    if isinstance(tests, list) and tests and all(isinstance(item, str) for item in tests):
        return _code(_labelled(tests), {})
    if isinstance(tests, list) and tests and all(isinstance(item, Mapping) for item in tests):
        return _listed(tests, {})
    if not isinstance(tests, Mapping):
        raise Unfit(f"has none of the forms {FORMS}")
    for key, known in _KEYS.items():
        if key in tests:
            odd = sorted(set(tests) - known)
            if odd:
                raise Unfit(f"has {', '.join(odd)} beside {key}, which may have {', '.join(sorted(known - {key}))}")
            return _mapping(key, tests)
    raise Unfit(f"has the keys {', '.join(map(str, sorted(tests)))} and none of the forms {FORMS}")


def _mapping(key: str, tests: Mapping[str, Any]) -> Tests:
    for name in ("prefix", "entry_point", "setup", "test", "function"):
        if not isinstance(tests.get(name, ""), str):
            raise Unfit(f"{name} is not text")
    if key == "test":
        return _code([("", tests["test"])], tests)
    if key == "asserts":
        asserts = tests["asserts"]
        if not isinstance(asserts, list) or not asserts or not all(isinstance(item, str) for item in asserts):
            raise Unfit("asserts is not a list of assert statements")
        return _code(_labelled(asserts), tests)
    if key == "function":
        return _cases(tests)
    inputs, outputs = tests["inputs"], tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise Unfit("inputs and outputs are not two lists of the same length")
    return _listed([{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)], tests)


def _labelled(asserts: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"assert {place} of {len(asserts)}: ", text) for place, text in enumerate(asserts, 1)]


def _code(parts: list[tuple[str, str]], tests: Mapping[str, Any]) -> Tests:
    """Tests that are Python: each part is run in turn, in one space of names."""
    prefix, setup, entry = (tests.get(name) or "" for name in ("prefix", "setup", "entry_point"))
    if setup:
        parts = [("setup: ", setup), *parts]
    for label, text in parts:
        TestCode.parse(text, label)
    code = TestCode("\n".join(text for _, text in parts), entry)
    job = {
        "code": parts,
        "calls": code.calls,
        "names": code.names,
        "required": code.required,
        "modules": code.modules,
        "entry": entry,
        "helpers": helpers(prefix, root(entry)),
        "cases": None,
        "tolerance": 0.0,
    }
    order = {"prefix": prefix, "entry": code.target, "imports": imports(setup), "main": False}
    return Tests([job], order)


def _cases(tests: Mapping[str, Any]) -> Tests:
    """Calls of one function with JSON arguments, and the JSON results that are due."""
    name, cases = tests["function"], tests.get("cases")
    if not name.isidentifier():
        raise Unfit(f"function {name!r} is no name")
    if not isinstance(cases, list) or not cases or not all(isinstance(case, Mapping) for case in cases):
        raise Unfit("cases is not a list of {args, output}")
    job = {
        "code": [],
        "calls": [],
        "names": [name],
        "required": [name],
        "modules": [],
        "entry": name,
        "helpers": "",
        "cases": [_case(case) for case in cases],
        "tolerance": _tolerance(tests),
    }
    return Tests([job], {"prefix": "", "entry": name, "imports": "", "main": False})


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    if "output" not in case or not ({"args", "kwargs", "input"} & set(case)) or ("args" in case and "input" in case):
        raise Unfit("a case has output, and args and kwargs, or input (a list of arguments, or the only one)")
    odd = sorted(set(case) - {"args", "kwargs", "input", "output"})
    if odd:
        raise Unfit(f"a case has {', '.join(odd)}; it may have args, kwargs, input, output")
    single = case.get("input", [])
    positional = case["args"] if "args" in case else single if isinstance(single, list) else [single]
    named = case.get("kwargs", {})
    if not isinstance(positional, list) or not isinstance(named, Mapping):
        raise Unfit("args is a list and kwargs a mapping")
    return {"args": positional, "kwargs": dict(named), "output": case["output"]}


def _listed(cases: Sequence[Mapping[str, Any]], tests: Mapping[str, Any]) -> Tests:
    """Programs that read standard input and print; each case runs in a process of its own."""
    for case in cases:
        if not {"input", "output"} <= set(case):
            raise Unfit(f"a case has {', '.join(map(str, sorted(case)))}; input and output are due")
        if set(case) != {"input", "output"} or not all(isinstance(value, str) for value in case.values()):
            raise Unfit(
                "a program's input and output are text and stand alone; the arguments and results of a function are "
                'written {"function": name, "cases": [...]}'
            )
    if not cases:
        raise Unfit("there is no case")
    if not any(case["output"].strip() for case in cases) and not tests.get("empty_output"):
        raise Unfit(
            "every output is empty, so that a program that does nothing would pass; if that is meant, add "
            '"empty_output": true'
        )
    tolerance = _tolerance(tests)
    jobs = [{"stdin": case["input"], "expected": case["output"], "tolerance": tolerance} for case in cases]
    return Tests(jobs, {"prefix": "", "entry": None, "imports": "", "main": True})


def _tolerance(tests: Mapping[str, Any]) -> float:
    value = tests.get("tolerance", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Unfit(f"tolerance {json.dumps(value)} is no number from 0 to 1")
    return float(value)
