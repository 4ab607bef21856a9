"""`python -m finery` is the command line."""

from finery.cli import main

main()
