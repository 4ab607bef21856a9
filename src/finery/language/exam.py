"""A promotion's conditions must name numbers that its exam really makes."""

from __future__ import annotations

from finery.language.check import Stages
from finery.language.nodes import find, key_place
from finery.language.problems import Keys, Problem, hint
from finery.schemas.evaluate import EvaluateStage, Suite
from finery.schemas.promote import Condition, PromoteStage, metric_parts
from finery.schemas.reference import StageRef, parse_reference


def metrics(suite: Suite) -> list[str]:
    """The numbers an exam reports of a suite."""
    names = [f"pass_at_{k}" for k in suite.k]
    return [*names, *(["greedy"] if suite.greedy else []), "truncated"]


def check_conditions(stages: Stages) -> list[Problem]:
    """Conditions on a model, suite or metric that the exam does not have."""
    problems: list[Problem] = []
    for name, config in stages.configs.items():
        if not isinstance(config, PromoteStage):
            continue
        exam = exam_of(config, stages)
        if exam is None:
            continue
        here: Keys = ("stages", name, "require")
        for key, condition in config.require.items():
            if wrong := _wrong(key, exam):
                problems.append(Problem(key_place(stages.root, (*here, key)), (*here, key), wrong))
            elif bound := _impossible(condition, lowest=0.0 if metric_parts(key)[1] else -1.0):
                where = (*here, key, bound[0])
                source = find(stages.root, where)
                problems.append(Problem(source.place if source else key_place(stages.root, where), where, bound[1]))
            source = find(stages.root, (*here, key, "from"))
            if condition.from_ is not None and condition.from_ not in exam.models and source is not None:
                text = f"{condition.from_} is not in the exam{hint(condition.from_, exam.models, listed='which has')}"
                problems.append(Problem(source.place, (*here, key, "from"), text))
    return problems


def _impossible(condition: Condition, *, lowest: float) -> tuple[str, str] | None:
    """The bound that no number of an exam can keep, and why: they are rates, and forgetting a difference of rates."""
    if condition.min is not None and condition.min > 1:
        return "min", f"{condition.min:g} is never reached: the exam's numbers lie between {lowest:g} and 1"
    if condition.max is not None and condition.max < lowest:
        return "max", f"{condition.max:g} is always passed: the exam's numbers lie between {lowest:g} and 1"
    return None


def exam_of(config: PromoteStage, stages: Stages) -> EvaluateStage | None:
    """The evaluate stage that a promotion reads; None when it is another kind's evaluation, or not known."""
    try:
        reference = parse_reference(config.evaluation)
    except ValueError:
        return None
    found = stages.configs.get(reference.stage) if isinstance(reference, StageRef) else None
    return found if isinstance(found, EvaluateStage) else None


def _wrong(key: str, exam: EvaluateStage) -> str | None:
    """What is wrong with `model.suite.metric`; a model's own reference may hold dots."""
    model, suite, metric = metric_parts(key)
    if model not in exam.models:
        return f"{model} is not in the exam{hint(model, exam.models, listed='which has')}"
    if suite is None:
        if not any(one.general for one in exam.suites.values()):
            return "the exam has no general suite, so nothing says what was forgotten; mark one by general: true"
        return None
    if suite not in exam.suites:
        return f"the exam has no suite {suite}{hint(suite, list(exam.suites), listed='it has')}"
    made = metrics(exam.suites[suite])
    if metric not in made:
        near = hint(metric, made)
        listed = f"{near} It has {', '.join(made)}" if near else f"; it has {', '.join(made)}"
        return f"the suite {suite} has no {metric}{listed}"
    return None
