"""Connect Four by self-play: PPO with action masks against a pool of its own earlier versions.

    python examples/connect_four.py --steps 200000 --root runs       # again with --resume runs/<run> to go on
    python examples/connect_four.py --load runs/<run> --games 200    # against minimax of depth 4, both colours

Needs `pip install 'pettingzoo[classic]'`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numba
import numpy as np

import lockstep
from lockstep.trainer import SelfPlay

ROWS, COLUMNS = 6, 7
CENTRE_FIRST = np.array([3, 2, 4, 1, 5, 0, 6])
WON = 10_000


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


def move_values(mine: int, theirs: int, depth: int) -> dict[int, int]:
    """Return the value of each possible move to who has `mine`, looking `depth` moves ahead."""
    values = {}
    for column in CENTRE_FIRST.tolist():
        stone = (((mine | theirs) >> (7 * column)) & 127) + 1
        if stone < 64:
            after = mine | (stone << (7 * column))
            values[column] = -int(_value(theirs, after, depth - 1, -2 * WON, 2 * WON, LINES, CENTRE_FIRST))
    return values


def minimax_move(board: np.ndarray, depth: int, rng: np.random.Generator) -> int:
    """Return one of the best moves on a board `[6, 7, 2]` as PettingZoo shows it: own stones first, top row first."""
    mine, theirs = (
        sum(1 << (7 * int(c) + ROWS - 1 - int(r)) for r, c in np.argwhere(board[..., side])) for side in (0, 1)
    )
    values = move_values(mine, theirs, depth)
    best = max(values.values())
    return int(rng.choice([column for column, value in values.items() if value == best]))


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
    config = lockstep.PPOConfig().environment(make_env)
    config.multi_agent(policies=["main"], policy_mapping_fn=to_main)
    config.env_runners(num_envs_per_env_runner=32)
    config.rl_module(model_config={"hiddens": (256, 256), "activation": "relu"})
    config.training(
        lr=[[0, 5e-4], [steps, 1e-4]],
        gamma=0.99,
        train_batch_size=4096,
        minibatch_size=512,
        num_epochs=4,
        entropy_coeff=0.01,
    )
    config.evaluation(evaluation_interval=0)
    config.reporting(total_steps=steps)
    return config.debugging(seed=seed)


def play_minimax(policy: Any, games: int, depth: int = 4, seed: int = 0) -> tuple[float, float, float]:
    """Return shares of wins, draws and losses against minimax; each side begins half of the games."""
    rng, part = np.random.default_rng(seed), policy.acting["main"]
    outcomes = {1: 0, 0: 0, -1: 0}
    env = make_env()
    for game in range(games):
        env.reset(seed=seed + game)
        ours = env.possible_agents[game % 2]
        while True:
            observation, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                break
            if env.agent_selection == ours:
                env.step(part.compute_single_action(observation))
            else:
                env.step(minimax_move(observation["observation"], depth, rng))
        outcomes[int(env.rewards[ours])] += 1
    return outcomes[1] / games, outcomes[0] / games, outcomes[-1] / games


def main() -> None:
    """Train, go on with a run, or play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", default="runs")
    parser.add_argument("--resume")
    parser.add_argument("--load")
    parser.add_argument("--games", type=int, default=200)
    given = parser.parse_args()
    self_play = SelfPlay("main", win_rate_threshold=0.65, window=400, max_pool_size=20, draw="prioritized")
    if given.load:
        policy = lockstep.load_policy(given.load)
    elif given.resume:
        policy = lockstep.trainer.run.resume(given.resume, callbacks=[self_play]).policy
    else:
        run = lockstep.trainer.run.prepare_run(make_config(given.steps, given.seed), given.root, callbacks=[self_play])
        policy = run.finish().policy
    wins, draws, losses = play_minimax(policy, given.games)
    print(f"against minimax of depth 4: {wins:.1%} won, {draws:.1%} drawn, {losses:.1%} lost")


if __name__ == "__main__":
    main()
