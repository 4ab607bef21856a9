"""What each stage does: one ``run(config, inputs, context)`` a kind."""

if __name__ != "finery.stages":
    raise ImportError("import finery.stages, not stages: the folder at the top is a link's target")
