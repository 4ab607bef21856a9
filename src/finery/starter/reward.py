"""A reward of your own: named in pipeline.yaml as `{kind: python, file: ./reward.py, function: worked_out}`."""

import re


def worked_out(prompts, completions, **columns):
    """1.0 for a completion that shows each step on a line of its own, else 0.0.

    finery calls it with lists of one length: `prompts`, `completions`, `completion_ids`, `truncated`, and every column
    of the rows by its name (`answer`, `meta`, ...). Return a number for each completion, or None to abstain.
    """
    step = re.compile(r"\d+[+-]\d+=\d+")
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        lines = completion.removeprefix("A:").splitlines()
        steps = [line for line in lines if step.fullmatch(line)]
        scores.append(float(len(steps) == len(re.findall(r"[+-]", prompt)) and len(lines) == len(steps) + 1))
    return scores
