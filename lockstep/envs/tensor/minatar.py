"""Games of MinAtar (Young and Tian 2019, arxiv.org/abs/1903.03176) in torch."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.envs.tensor.base import State, TensorEnv

SIZE = 10
STICKY = 0.1
"""Probability that the last action is repeated instead of the new one."""


class Breakout(TensorEnv):
    """MinAtar/Breakout-v1: bounce a ball off a paddle at three rows of bricks. The actions are no-op, left and right.

    The state is in whole numbers:

    - `game` int64 [B, 8]: the ball's column and row, the signs of its direction (right, down), the paddle's column, the
      ball's last column and row, and whether the ball was at a brick in the last step.
    - `bricks` bool [B, 100]: the cells that have a brick.
    - `move` int64 [B]: the last action's direction. As in MinAtar, it survives the end of an episode.

    Episodes have no time limit in MinAtar.
    """

    num_draws = 2
    time_limit = None
    gives_new_tensors = True
    single_action_space = spaces.Discrete(3)
    single_observation_space = spaces.Box(0.0, 1.0, (SIZE, SIZE, 4), dtype=bool)

    def make_state(self) -> State:
        options: Any = {"dtype": torch.int64, "device": self.device}
        self._moves = torch.tensor([0, -1, 1], **options)
        self._cells = torch.arange(SIZE * SIZE, **options)
        self._wall = (self._cells >= SIZE) & (self._cells < 4 * SIZE)
        # A ball begins at the left or at the right edge, and moves down and inwards.
        self._starts = torch.tensor([[0, 3, 1, 1, 4, 0, 3, 0], [9, 3, -1, 1, 4, 9, 3, 0]], **options)
        return {
            "game": torch.zeros(self.num_envs, 8, **options),
            "bricks": torch.zeros(self.num_envs, SIZE * SIZE, dtype=torch.bool, device=self.device),
            "move": torch.zeros(self.num_envs, **options),
        }

    def begin(self, draws: Tensor) -> State:
        """Return a full wall and the ball at one edge: the right one if the second draw is at least 0.5."""
        sides = (draws[:, 1] >= 0.5).long()
        return {"game": self._starts.index_select(0, sides), "bricks": self._wall.expand(self.num_envs, -1)}

    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the next state. The last action is repeated where the first draw is below `STICKY`."""
        column, row, right, down, paddle, _, _, striking = state["game"].unbind(1)
        move = torch.where(draws[:, 0] < STICKY, state["move"], self._moves.index_select(0, actions))
        paddle = (paddle + move).clamp_(0, SIZE - 1)

        # The ball moves diagonally, and bounces off the side walls and the ceiling.
        target_column = column + right
        new_column = target_column.clamp(0, SIZE - 1)
        right = torch.where(target_column == new_column, right, -right)
        target_row = row + down
        new_row = target_row.clamp(min=0)
        down = torch.where(target_row == new_row, down, -down)

        # A brick breaks when the ball reaches it, unless the ball was at a brick in the last step already.
        cell = (new_row * SIZE + new_column).unsqueeze(1)
        strikes = state["bricks"].gather(1, cell)
        broken = strikes.squeeze(1) & (striking == 0)
        bricks = state["bricks"].scatter(1, cell, strikes & ~broken.unsqueeze(1))

        # In the last row the paddle catches the ball, directly or at its corner, or the episode ends. A cleared wall is
        # built again at this moment only.
        at_bottom = new_row == SIZE - 1
        cleared = at_bottom & ~bricks.any(1)
        bricks = bricks | (cleared.unsqueeze(1) & self._wall)
        above_paddle = column == paddle
        at_corner = at_bottom & (new_column == paddle) & ~above_paddle
        caught = (at_bottom & above_paddle) | at_corner
        bounced = broken | caught
        right = torch.where(at_corner, -right, right)
        down = torch.where(bounced, -down, down)
        last_row = row
        new_row = torch.where(bounced, last_row, new_row)

        game = torch.stack((new_column, new_row, right, down, paddle, column, last_row, strikes.squeeze(1)), 1)
        return {"game": game, "bricks": bricks, "move": move}, broken.float(), at_bottom & ~caught

    def observe(self, state: State) -> Tensor:
        """Return bool [B, 10, 10, 4] with the channels paddle, ball, last place of the ball, and bricks."""
        column, row, _, _, paddle, last_column, last_row, _ = state["game"].unbind(1)
        places = torch.stack((paddle + SIZE * (SIZE - 1), row * SIZE + column, last_row * SIZE + last_column), 1)
        shown = self._cells.unsqueeze(1) == places.unsqueeze(1)
        return torch.cat((shown, state["bricks"].unsqueeze(2)), 2).view(-1, SIZE, SIZE, 4)
