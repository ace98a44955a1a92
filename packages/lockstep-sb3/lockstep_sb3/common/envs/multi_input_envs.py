"""`SimpleMultiObsEnv`: a grid whose cells are seen as a vector and an image."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LEFT, DOWN, RIGHT, UP = range(4)
NAMES = ("left", "down", "right", "up")


class SimpleMultiObsEnv(gym.Env):
    """Grid from whose upper left the lower right cell has to be found. Only the cells at the border can be entered.

    Observations are dicts: `vec`, a random vector for each column, and `img`, a random image for each row. A step costs
    0.1, the last one gives 1. Episodes are truncated after 100 steps.

    Args:
        num_col: Number of columns.
        num_row: Number of rows.
        random_start: Whether episodes begin in a random cell at the border.
        discrete_actions: Whether actions are discrete. Otherwise the largest of four numbers is the direction.
        channel_last: Whether the channel is the last dimension of images.
    """

    def __init__(
        self,
        num_col: int = 4,
        num_row: int = 4,
        random_start: bool = True,
        discrete_actions: bool = True,
        channel_last: bool = True,
    ) -> None:
        self.num_col = num_col
        self.num_row = num_row
        self.random_start = random_start
        self.discrete_actions = discrete_actions
        self.vector_size = 5
        self.img_size = (64, 64, 1) if channel_last else (1, 64, 64)
        self.action_space = spaces.Discrete(4) if discrete_actions else spaces.Box(0.0, 1.0, (4,))
        self.observation_space = spaces.Dict(
            {"vec": spaces.Box(0.0, 1.0, (5,), np.float64), "img": spaces.Box(0, 255, self.img_size, np.uint8)}
        )
        rng = np.random.default_rng(0)
        vectors = rng.random((num_col, self.vector_size))
        images = rng.integers(0, 256, (num_row, *self.img_size), dtype=np.uint8)
        self.state_mapping = [
            {"vec": vectors[i % num_col], "img": images[i // num_col]} for i in range(num_col * num_row)
        ]
        self.max_state = num_col * num_row - 1
        self.max_count = 100
        self.count = 0
        self.state = 0
        self.log = ""

    def _is_open(self, row: int, column: int) -> bool:
        """Return whether a cell exists and is at the border."""
        is_inside = 0 <= row < self.num_row and 0 <= column < self.num_col
        return is_inside and (row in (0, self.num_row - 1) or column in (0, self.num_col - 1))

    def get_state_mapping(self) -> dict[str, np.ndarray]:
        """Return the present observation."""
        return self.state_mapping[self.state]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.count = 0
        self.state = 0
        if self.random_start:
            cells = [i for i in range(self.max_state) if self._is_open(*divmod(i, self.num_col))]
            self.state = int(self.np_random.choice(cells))
        return self.get_state_mapping(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go to the next cell in a direction, if it is open."""
        direction = int(action) if self.discrete_actions else int(np.argmax(action))
        row, column = divmod(self.state, self.num_col)
        row += (direction == DOWN) - (direction == UP)
        column += (direction == RIGHT) - (direction == LEFT)
        before = self.state
        if self._is_open(row, column):
            self.state = row * self.num_col + column
        self.count += 1
        got_to_end = self.state == self.max_state
        self.log = f"Went {NAMES[direction]} in state {before}, got to state {self.state}"
        reward = 1.0 if got_to_end else -0.1
        return self.get_state_mapping(), reward, got_to_end, self.count > self.max_count, {"got_to_end": got_to_end}

    def render(self) -> None:
        """Print the last step."""
        sys.stdout.write(f"{self.log}\n")
