"""finery: one YAML file from a base language model to a promoted one."""

__version__ = "0.1.0"
