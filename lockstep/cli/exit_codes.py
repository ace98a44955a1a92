"""Exit codes of the command line, apart from 0."""

WRONG_INPUT = 2
"""The user's input was wrong, and nothing was done."""
FAILED = 1
"""The input was right, but the command has failed."""
