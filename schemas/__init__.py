"""What the YAML may say: one pydantic model a stage kind; pydantic and the standard library only."""

if __name__ != "finery.schemas":
    raise ImportError("import finery.schemas, not schemas: the folder at the top is a link's target")
