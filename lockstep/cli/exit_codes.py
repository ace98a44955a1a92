"""Exit codes of the command line, beside 0."""

WRONG_INPUT = 2
"""What the user gave is wrong; nothing was done."""
FAILED = 1
"""The command was right and has failed."""
