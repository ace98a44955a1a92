"""Flags of a row of the replay ring: how the row ends its episode.

A row has flag 0 if the next row of its sub-buffer continues the same episode, or if the row is the newest of an
episode under way. Otherwise it has the sum of the flags below.
"""

TERMINATED = 1
"""The environment terminated the episode after this row: nothing is bootstrapped."""
TRUNCATED = 2
"""The environment truncated the episode after this row: targets bootstrap from the next observation."""
CUT = 4
"""The episode was left in the middle, for example by a reset of the environments or by a gap in recorded rows. The row
is neither terminated nor truncated, but nothing reaches over it."""
LOST = 8
"""The row after this one belongs to an episode whose earlier rows are not stored. It is the largest flag, so that
`flags >= LOST` finds it without a mask."""
