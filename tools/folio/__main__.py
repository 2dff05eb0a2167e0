"""`python -m folio`: the same as the command."""

from folio.cli import main

main()
