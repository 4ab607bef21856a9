"""Where judged Python code runs, and what it can reach there; docs/confinement.md has the whole of it.

A zygote (`zygote`, a clean interpreter) forks two processes for each check: the judge (`judge`), which holds the tests,
and the candidate (`candidate`), which runs the judged code. Only plain data passes between them (`wire`). `pool` is the
side of whoever asks. Everything but `pool` runs in the zygote's interpreter, where finery need not be importable: those
modules import the standard library and each other only, by relative imports.
"""
