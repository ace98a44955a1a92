"""Atari games by their ids `ALE/Name-v5`, preprocessed in the same way by three back ends.

The defaults are those of Machado et al. 2018 ("Revisiting the Arcade Learning Environment",
https://arxiv.org/abs/1709.06009), for which gymnasium registers these ids. At each frame the last action is repeated
with probability 0.25 ("sticky actions"). That is the only randomness, so episodes do not begin with random no-ops. The
loss of a life does not end an episode, and an episode is cut off after 108,000 frames.

As in Mnih et al. 2015, an action lasts 4 frames, and an observation is the maximum of the last two frames, in grey,
84 x 84. Rewards are the game's, unclipped. Frames are not stacked; `environment(frame_stack=4)` stacks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, TimeLimit

from lockstep.data.trees import Tree
from lockstep.envs.boundary import VectorBoundary
from lockstep.envs.errors import did_you_mean
from lockstep.envs.gymnasium_vectors import VectorEnvBoundary, make_envpool
from lockstep.options.checks import check_whole

NAMESPACE = "ALE"
RAW = "obs_type"
"""Option of `env_config` that selects gymnasium's environment without preprocessing."""


@dataclass(frozen=True)
class AtariGame:
    """Atari game with its preprocessing. `env_config` may set every field except for `spec`."""

    spec: EnvSpec
    """gymnasium's registration of the game's id."""
    frameskip: int = 4
    """Number of frames that an action lasts."""
    repeat_action_probability: float = 0.25
    """Probability, at each frame, that the console repeats the last action instead of taking the new one."""
    noop_max: int = 0
    """Maximum number of random no-ops at the beginning of an episode. 0: none (EnvPool makes one)."""
    screen_size: int = 84
    """Height and width of an observation in pixels."""
    full_action_space: bool = False
    """Use all 18 actions instead of those that have an effect in the game."""
    episodic_life: bool = False
    """End an episode when a life is lost."""
    max_num_frames_per_episode: int = 108_000
    """Number of frames after which an episode is cut off."""
    num_threads: int = 0
    """Number of threads of the vector. 0: one for each core."""
    render_mode: str | None = None
    """Render mode of single environments; native vectors do not render."""

    @classmethod
    def of(cls, spec: EnvSpec, config: Mapping[str, Any]) -> Self | None:
        """Return the game of an id; None for other environments, and if `config` selects raw observations.

        Raises:
            ValueError: An option is unknown or has a value that is not allowed. Suggests the closest option.
        """
        if spec.namespace != NAMESPACE or spec.vector_entry_point is None or RAW in config:
            return None
        names = [field.name for field in fields(cls) if field.name != "spec"]
        for name in config:
            if name not in names:
                raise ValueError(
                    f"environment.env_config has {name!r}, which is no option of {spec.id}.{did_you_mean(name, names)} "
                    f"There are {', '.join(names)}; with {RAW!r} gymnasium's own environment is made, with its options."
                )
        registered = {name: value for name, value in spec.kwargs.items() if name in names}
        game = cls(spec, **{**registered, **config})
        for name, least in (("frameskip", 1), ("noop_max", 0), ("screen_size", 1), ("num_threads", 0)):
            check_whole(f"environment.env_config[{name!r}]", getattr(game, name), least)
        return game

    def single(self) -> gym.Env:
        """Make a single environment."""
        env = gym.make(
            # `AtariPreprocessing` skips the frames, because it needs the last two of them for their maximum.
            self.spec,
            frameskip=1,
            render_mode=self.render_mode,
            disable_env_checker=True,
            **self._console_options(),
        )
        env = AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frameskip,
            screen_size=self.screen_size,
            terminal_on_life_loss=self.episodic_life,
        )
        return TimeLimit(env, self.max_episode_steps)

    def vector(self, num_envs: int) -> VectorBoundary:
        """Make ale-py's native vector environment."""
        env = gym.make_vec(
            self.spec,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            frameskip=self.frameskip,
            stack_num=1,
            img_height=self.screen_size,
            img_width=self.screen_size,
            noop_max=self.noop_max,
            episodic_life=self.episodic_life,
            reward_clipping=False,
            use_fire_reset=False,
            autoreset_mode="SameStep",
            num_threads=self.num_threads,
            **self._console_options(),
        )
        boundary = VectorEnvBoundary(SingleFrames(env, seeds_rows=True))  # type: ignore[arg-type]
        boundary.single_env_spec = replace(self.spec, max_episode_steps=self.max_episode_steps)
        return boundary

    def pool(self, num_envs: int) -> VectorBoundary:
        """Make a pool of EnvPool. `ValueError` if EnvPool is not installed or does not have the game."""
        options = {
            "stack_num": 1,
            "frame_skip": self.frameskip,
            "img_height": self.screen_size,
            "img_width": self.screen_size,
            "noop_max": max(1, self.noop_max),  # at least one in EnvPool
            "episodic_life": self.episodic_life,
            "reward_clip": False,
            "use_fire_reset": False,
            "repeat_action_probability": self.repeat_action_probability,
            "full_action_space": self.full_action_space,
            "max_episode_steps": self.max_episode_steps,
            "num_threads": self.num_threads,
        }
        return make_envpool(f"{self.spec.name}-v5", num_envs, options, SingleFrames)

    @property
    def max_episode_steps(self) -> int:
        """Maximum number of actions in an episode."""
        # Rounded up, so that this limit is never before the limit in frames, which the console counts.
        return -(-self.max_num_frames_per_episode // self.frameskip)

    def _console_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the emulator."""
        names = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
        return {name: getattr(self, name) for name in names}


class SingleFrames:
    """Vector environment without the axis of the frame stack, for native vectors whose stacks have one frame.

    Not a `gymnasium.vector.VectorWrapper`, since pools of EnvPool are not gymnasium vectors.

    Args:
        env: The vector environment. Its attributes are this object's.
        seeds_rows: True if its reset accepts an array with a seed for each row.
    """

    def __init__(self, env: Any, *, seeds_rows: bool = False) -> None:
        self.env = env
        self.seeds_rows = seeds_rows
        space = env.single_observation_space
        self.single_observation_space = spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: object) -> tuple[Any, Any]:
        """Reset and return frames `[B, height, width]` and infos."""
        obs, infos = self.env.reset(**options)
        return obs[:, 0], infos

    def step(self, actions: Tree) -> tuple[Any, ...]:
        """Take a step. Observations are frames `[B, height, width]`."""
        obs, *rewards_and_flags, infos = self.env.step(np.asarray(actions))
        if "final_obs" in infos:
            infos["final_obs"] = infos["final_obs"][:, 0]
        return obs[:, 0], *rewards_and_flags, infos
