"""Games of MinAtar (Young and Tian 2019, arxiv.org/abs/1903.03176) in torch."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.envs.tensor.base import State, TensorEnv

SIZE = 10
STICKY = 0.1
"""how often the action before is taken again"""


class Breakout(TensorEnv):
    """MinAtar/Breakout-v1: bounce a ball off a paddle at three rows of bricks; nothing, left and right are the actions.

    The state holds whole numbers: `game` int64 [B, 8] (the ball's column and row, the signs of its way, the paddle, the
    ball's last column and row, and whether it struck a brick in the last step), `bricks` bool [B, 100] and `move` int64
    [B], which is the last action and, as in MinAtar, outlasts an episode. Episodes have no time limit there.
    """

    num_draws, time_limit = 2, None
    gives_new_tensors = True
    single_action_space = spaces.Discrete(3)
    single_observation_space = spaces.Box(0.0, 1.0, (SIZE, SIZE, 4), dtype=bool)

    def make_state(self) -> State:
        options: Any = {"dtype": torch.int64, "device": self.device}
        self._moves = torch.tensor([0, -1, 1], **options)
        self._cells = torch.arange(SIZE * SIZE, **options)
        self._wall = (self._cells >= SIZE) & (self._cells < 4 * SIZE)
        # a ball begins at the left or at the right, and flies down and inwards
        self._starts = torch.tensor([[0, 3, 1, 1, 4, 0, 3, 0], [9, 3, -1, 1, 4, 9, 3, 0]], **options)
        return {
            "game": torch.zeros(self.num_envs, 8, **options),
            "bricks": torch.zeros(self.num_envs, SIZE * SIZE, dtype=torch.bool, device=self.device),
            "move": torch.zeros(self.num_envs, **options),
        }

    def begin(self, draws: Tensor) -> State:
        """Return a full wall and the ball at one side: the right one where the second draw is 0.5 and more."""
        sides = (draws[:, 1] >= 0.5).long()
        return {"game": self._starts.index_select(0, sides), "bricks": self._wall.expand(self.num_envs, -1)}

    def advance(self, state: State, actions: Tensor, draws: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return what follows; the last action is taken again where the first draw is below `STICKY`."""
        column, row, right, down, paddle, _, _, striking = state["game"].unbind(1)
        move = torch.where(draws[:, 0] < STICKY, state["move"], self._moves.index_select(0, actions))
        paddle = (paddle + move).clamp_(0, SIZE - 1)

        over = column + right
        new_column = over.clamp(0, SIZE - 1)
        right = torch.where(over == new_column, right, -right)
        beyond = row + down
        new_row = beyond.clamp(min=0)
        down = torch.where(beyond == new_row, down, -down)

        cell = (new_row * SIZE + new_column).unsqueeze(1)
        strikes = state["bricks"].gather(1, cell)
        broken = strikes.squeeze(1) & (striking == 0)
        bricks = state["bricks"].scatter(1, cell, strikes & ~broken.unsqueeze(1))

        low = new_row == SIZE - 1
        cleared = low & ~bricks.any(1)
        bricks = bricks | (cleared.unsqueeze(1) & self._wall)
        below, beside = column == paddle, new_column == paddle
        aside = low & beside & ~below
        caught = low & (below | beside)
        turned = broken | caught
        right = torch.where(aside, -right, right)
        down = torch.where(turned, -down, down)
        last = row
        game = torch.stack(
            (new_column, torch.where(turned, last, new_row), right, down, paddle, column, last, strikes.squeeze(1)), 1
        )
        return {"game": game, "bricks": bricks, "move": move}, broken.float(), low & ~caught

    def observe(self, state: State) -> Tensor:
        """Return bool [B, 10, 10, 4]: paddle, ball, where the ball was, bricks."""
        column, row, _, _, paddle, last_column, last_row, _ = state["game"].unbind(1)
        places = torch.stack((paddle + SIZE * (SIZE - 1), row * SIZE + column, last_row * SIZE + last_column), 1)
        shown = self._cells.unsqueeze(1) == places.unsqueeze(1)
        return torch.cat((shown, state["bricks"].unsqueeze(2)), 2).view(-1, SIZE, SIZE, 4)
