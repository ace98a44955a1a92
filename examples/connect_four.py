"""Connect Four by self-play: PPO with action masks against a pool of its own earlier versions.

    python examples/connect_four.py --steps 200000 --root runs       # again with --resume runs/<run> to go on
    python examples/connect_four.py --load runs/<run> --games 200    # against minimax of depth 4, both colours

Needs `pip install 'pettingzoo[classic]'`.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numba
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

import lockstep
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.trainer import SelfPlay

ROWS, COLUMNS = 6, 7
SQUARES = 1 << (7 * np.arange(COLUMNS) + np.arange(ROWS)[::-1, None])
CENTRE_FIRST = np.array([3, 2, 4, 1, 5, 0, 6])
WON = 10_000
LOST = 2 * WON
SCRIPTED = ("minimax_2", "minimax_3", "minimax_4")


# -- the opponent: minimax on bitboards, where bit 7 * column + row from below is a stone ---


def _lines() -> np.ndarray:
    """Return the 69 lines of four as bitboards."""
    found = []
    for column, row in np.ndindex(COLUMNS, ROWS):
        for right, up in ((1, 0), (0, 1), (1, 1), (1, -1)):
            cells = [(column + k * right, row + k * up) for k in range(4)]
            if all(c < COLUMNS and 0 <= r < ROWS for c, r in cells):
                found.append(sum(1 << (7 * c + r) for c, r in cells))
    return np.array(found, np.int64)


LINES = _lines()


@numba.njit(cache=True)
def has_won(stones: int) -> bool:
    """Return whether four of these stones are in a line."""
    for shift in (1, 7, 6, 8):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


@numba.njit(cache=True)
def _count(bits: int) -> int:
    number = 0
    while bits:
        bits &= bits - 1
        number += 1
    return number


@numba.njit(cache=True)
def _worth(mine: int, theirs: int, lines: np.ndarray) -> int:
    """Return what a position is worth to who has `mine`: open lines with two and three stones, and the centre."""
    total = 3 * (_count(mine & (127 << 21)) - _count(theirs & (127 << 21)))
    for line in lines:
        if not line & theirs:
            number = _count(line & mine)
            total += 5 if number == 3 else 2 if number == 2 else 0
        elif not line & mine:
            number = _count(line & theirs)
            total -= 5 if number == 3 else 2 if number == 2 else 0
    return total


@numba.njit(cache=True)
def _value(mine: int, theirs: int, depth: int, alpha: int, beta: int, lines: np.ndarray, order: np.ndarray) -> int:
    """Return the value of a position to who is to move and has `mine`, by alpha-beta search."""
    if has_won(theirs):
        return -WON - depth
    both = mine | theirs
    if _count(both) == ROWS * COLUMNS:
        return 0
    if depth == 0:
        return _worth(mine, theirs, lines)
    for column in order:
        stone = ((both >> (7 * column)) & 127) + 1
        if stone < 64:
            after = mine | (stone << (7 * column))
            alpha = max(alpha, -_value(theirs, after, depth - 1, -beta, -alpha, lines, order))
            if alpha >= beta:
                break
    return alpha


def move_values(boards: np.ndarray, depth: int) -> np.ndarray:
    """Return values `[N, 7]` of the moves, looking `depth` ahead; -20,000 for full columns.

    Boards are `[N, 6, 7, 2]` as PettingZoo shows them: own stones first, top row first.
    """
    values = np.full((len(boards), COLUMNS), -LOST)
    for i, (mine, theirs) in enumerate(np.tensordot(SQUARES, boards.astype(np.int64), ((0, 1), (1, 2))).tolist()):
        for column in range(COLUMNS):
            stone = (((mine | theirs) >> (7 * column)) & 127) + 1
            if stone < 64:
                after = mine | (stone << (7 * column))
                values[i, column] = -_value(theirs, after, depth - 1, -LOST, LOST, LINES, CENTRE_FIRST)
    return values


def minimax_move(board: np.ndarray, depth: int, rng: np.random.Generator) -> int:
    """Return one of the best moves on a board `[6, 7, 2]`."""
    values = move_values(board[None], depth)[0]
    return int(rng.choice(np.flatnonzero(values == values.max())))


# -- the game ---


class ConnectFour:
    """PettingZoo's connect_four_v3 with dicts by agent, to the last number, about ten times as fast.

    Args:
        random_moves: half of the games begin with 1 to so many random moves.
    """

    possible_agents = ("player_0", "player_1")
    state_attributes = ("board", "stones", "player")

    def __init__(self, random_moves: int = 0) -> None:
        space = spaces.Dict(
            observation=spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.int8), action_mask=spaces.Box(0, 1, (COLUMNS,), np.int8)
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(COLUMNS))
        self.random_moves = random_moves
        self.np_random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a game; return what the player to move sees."""
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._clear()
        if self.random_moves and self.np_random.random() < 0.5:
            for _ in range(self.np_random.integers(1, self.random_moves + 1)):
                self._drop(int(self.np_random.choice(np.flatnonzero(self.board[0].sum(-1) == 0))))
                if has_won(self.stones[1 - self.player]):
                    self._clear()
        return {self.possible_agents[self.player]: self._seen_by(self.player)}, {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Drop a stone of the player to move; return what the other one sees, or both at the end."""
        (agent,) = actions
        other = self.possible_agents[1 - self.player]
        self._drop(actions[agent])
        if has_won(self.stones[1 - self.player]):
            rewards = {agent: 1.0, other: -1.0}
        elif self.board.any(-1).all():
            rewards = {agent: 0.0, other: 0.0}
        else:
            seen = {other: self._seen_by(self.player)}
            return seen, {agent: 0.0, other: 0.0}, {"__all__": False}, {"__all__": False}, {}
        seen = {player: self._seen_by(number) for number, player in enumerate(self.possible_agents)}
        return seen, rewards, {"__all__": True}, {"__all__": False}, {}

    def _clear(self) -> None:
        self.board, self.stones, self.player = np.zeros((ROWS, COLUMNS, 2), np.int8), [0, 0], 0

    def _drop(self, column: int) -> None:
        stone = (((self.stones[0] | self.stones[1]) >> (7 * column)) & 127) + 1  # a filled column, and one
        self.stones[self.player] |= stone << (7 * column)
        self.board[ROWS - stone.bit_length(), column, self.player] = 1
        self.player = 1 - self.player

    def _seen_by(self, player: int) -> dict[str, np.ndarray]:
        """Return own stones before the other's, and the columns with room where it is the player's turn."""
        board = self.board if player == 0 else self.board[..., ::-1]
        free = 1 - self.board[0].max(-1) if player == self.player else np.zeros(COLUMNS, np.int8)
        return {"observation": board.copy(), "action_mask": free}


# -- the network ---


class Lines(nn.Module):
    """Sees stones, lines of four that are half full and still open, and squares that complete one.

    The output has 42 numbers for each kind and player, 69 for the lines and 7 for squares that can be taken at once and
    for those above them.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        lines = torch.from_numpy(LINES[:, None] & SQUARES.reshape(-1) > 0)
        self.register_buffer("lines", lines.float(), persistent=False)
        self.output_size = 2 * (2 * ROWS * COLUMNS + len(lines) + 2 * COLUMNS)

    def forward(self, obs: Tensor) -> Tensor:
        stones = obs.permute(*range(obs.dim() - 3), -1, -3, -2)  # [..., 2, 6, 7]
        flat = stones.flatten(-2)
        in_line = flat @ self.lines.T  # [..., 2, 69]
        is_open = in_line.flip(-2) == 0
        completes = (((in_line == 3) & is_open).float() @ self.lines > 0).float().view_as(stones)
        taken = stones.sum(-3, keepdim=True)
        completes = completes * (1 - taken)
        below = torch.cat([taken[..., 1:, :], torch.ones_like(taken[..., :1, :])], -2)
        can_take = below - taken  # [..., 1, 6, 7]
        above = torch.cat([can_take[..., 1:, :], torch.zeros_like(can_take[..., :1, :])], -2)
        parts = [
            flat,
            ((in_line == 2) & is_open).float(),
            completes.flatten(-2),
            (completes * can_take).sum(-2),
            (completes * above).sum(-2),
        ]
        return torch.cat(parts, -1).flatten(-2)


class Minimax(RLModule):
    """Plays one of the best moves of minimax, `model_config={"depth": 2}`; learns nothing."""

    def _forward(self, batch: Any) -> dict[str, Tensor]:
        values = move_values(batch["obs"]["observation"].numpy(), self.model_config["depth"])
        best = values == values.max(-1, keepdims=True)
        return {"action_dist_inputs": torch.from_numpy(np.where(best, 0.0, -1e9).astype(np.float32))}


# -- training ---


def make_env() -> Any:
    """Make PettingZoo's game."""
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.env()


def to_main(agent: str, episode: Any) -> str:
    """Map everybody to the learner, until `SelfPlay` maps opponents."""
    return "main"


def make_config(steps: int, seed: int) -> Any:
    """Return the configuration of a run."""
    config = lockstep.PPOConfig().environment(ConnectFour, env_config={"random_moves": 6})
    scripted = {
        name: RLModuleSpec(Minimax, model_config={"depth": int(name[-1])}, inference_only=True) for name in SCRIPTED
    }
    config.multi_agent(policies={"main": RLModuleSpec(), **scripted}, policy_mapping_fn=to_main)
    config.env_runners(num_envs_per_env_runner=128)
    config.rl_module(
        model_config={"encoder": Lines, "hiddens": (256, 256), "activation": "relu", "vf_share_layers": True}
    )
    config.training(
        lr=[[0, 5e-4], [steps, 5e-5]],
        gamma=0.99,
        lambda_=0.9,
        train_batch_size=8192,
        minibatch_size=1024,
        num_epochs=3,
        entropy_coeff=[[0, 0.04], [steps, 0.01]],
    )
    config.evaluation(evaluation_interval=0)
    config.reporting(total_steps=steps)
    return config.debugging(seed=seed)


def make_self_play(scripted: bool = False) -> SelfPlay:
    """Return the pool: the learner as it is, earlier versions and, with `scripted`, minimax of depths 2, 3 and 4."""
    return SelfPlay(
        "main",
        win_rate_threshold=0.6,
        window=400,
        max_pool_size=6,
        draw="prioritized",
        opponents=["main", *SCRIPTED] if scripted else ["main"],
    )


def play_minimax(policy: Any, games: int, depth: int = 4, seed: int = 0, random_moves: int = 0) -> dict[str, Any]:
    """Play PettingZoo's game against minimax; each side begins half of the games.

    Returns shares of games won in all and as the first and the second player, and of draws, and the number of different
    games: both sides play nearly without chance. `random_moves` random ones begin each game.
    """
    rng, part = np.random.default_rng(seed), policy.acting["main"]
    outcomes: list[int] = []
    played = set()
    env = make_env()
    for game in range(games):
        env.reset()
        ours, moves = env.possible_agents[game % 2], []
        while env.agents:
            observation, _, terminated, _, _ = env.last()
            if terminated:
                break
            if len(moves) < random_moves:
                move = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            elif env.agent_selection == ours:
                move = int(part.compute_single_action(observation))
            else:
                move = minimax_move(observation["observation"], depth, rng)
            moves.append(move)
            env.step(move)
        outcomes.append(int(env.rewards[ours]))
        played.add(tuple(moves))
    won, drawn = np.array(outcomes) == 1, np.array(outcomes) == 0
    return {
        "depth": depth,
        "random_moves": random_moves,
        "games": games,
        "won": float(won.mean()),
        "won_as_first": float(won[::2].mean()),
        "won_as_second": float(won[1::2].mean()),
        "drawn": float(drawn.mean()),
        "different_games": len(played),
    }


def main() -> None:
    """Train, go on with a run, or play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", default="runs")
    parser.add_argument(
        "--scripted", action="store_true", help="minimax of depths 2, 3 and 4 in the pool; say so again to resume"
    )
    parser.add_argument("--resume")
    parser.add_argument("--load")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--results", help="a file that results are added to, a line of JSON each")
    given = parser.parse_args()
    began = time.process_time()
    self_play = make_self_play(given.scripted)
    if given.load:
        policy = lockstep.load_policy(given.load)
    elif given.resume:
        policy = lockstep.runs.run.resume(given.resume, callbacks=[self_play]).policy
    else:
        run = lockstep.runs.run.prepare_run(make_config(given.steps, given.seed), given.root, callbacks=[self_play])
        policy = run.finish().policy
    took = time.process_time() - began
    for depth, random_moves in ((1, 0), (2, 0), (4, 0), (4, 4)):
        found = play_minimax(policy, given.games, depth, random_moves=random_moves)
        line = json.dumps({**vars(given), "processor_seconds": round(took), **found})
        print(line, flush=True)
        if given.results:
            with open(given.results, "a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    import connect_four  # so that a run's configuration names what is here by a module that can be imported

    connect_four.main()
