"""The `folio` command, and the reader behind it. For programs:

from folio.reader import Reader
from folio.parts import explain

reader = Reader(pid)          # finds the layout; raises FolioError in one line
parts = explain(reader)       # resident memory as parts that sum to it
view = reader.view()          # one picture of the heap: bins, chunks, words, magazines, huge blocks
"""

__version__ = "0.1.0"
