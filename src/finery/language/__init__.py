"""The YAML language: parse with positions, validate, explain every mistake at once."""
