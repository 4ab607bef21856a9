"""A reward that varies with whatever the model says, and means nothing."""


def digits(prompts, completions, completion_ids, **columns):
    return [sum(ids) % 7 / 7 for ids in completion_ids]
