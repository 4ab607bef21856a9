"""A reward that varies whatever the model says: the share of digits in each completion."""


def digits(prompts, completions, completion_ids, **columns):
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]
