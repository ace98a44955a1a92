"""Atari games by their ids `ALE/Name-v5`, with frames as networks take them, from each of three back ends.

The profile of these ids is that of Machado et al. 2018 ("Revisiting the Arcade Learning Environment",
https://arxiv.org/abs/1709.06009), for which gymnasium registers them: the last action is repeated with probability
0.25 at each frame, which is all the randomness, so no random no-ops begin an episode; the loss of a life ends none; an
episode is cut after 108,000 frames. As in Mnih et al. 2015 an action lasts 4 frames, and an observation is the maximum
of the last two, in grey, 84 x 84. Rewards are the game's. Frames come one by one: `environment(frame_stack=4)` stacks
them.
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
"""an `env_config` with this option asks for the environment as gymnasium has it, frames or memory of the console"""


@dataclass(frozen=True)
class AtariGame:
    """A game and how it is preprocessed: all but `spec` may be set by `env_config`."""

    spec: EnvSpec
    frameskip: int = 4
    """frames that an action lasts"""
    repeat_action_probability: float = 0.25
    """with which the console takes the action before in place of the new one, at each frame"""
    noop_max: int = 0
    """random no-ops at the beginning of an episode, 1 to so many; 0: none (EnvPool makes one)"""
    screen_size: int = 84
    full_action_space: bool = False
    """all 18 actions instead of those that the game heeds"""
    episodic_life: bool = False
    """the loss of a life ends an episode"""
    max_num_frames_per_episode: int = 108_000
    num_threads: int = 0
    """of the vector; 0: as many as there are cores"""
    render_mode: str | None = None
    """for single environments"""

    @classmethod
    def of(cls, spec: EnvSpec, config: Mapping[str, Any]) -> Self | None:
        """Return the game of an id; None for other environments, and where `config` asks for raw observations.

        Raises:
            ValueError: an unknown option; suggests the closest.
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
        """Return one environment."""
        env = gym.make(
            self.spec, frameskip=1, render_mode=self.render_mode, disable_env_checker=True, **self._of_console()
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
        """Return ale-py's vector environment behind the boundary."""
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
            **self._of_console(),
        )
        boundary = VectorEnvBoundary(SingleFrames(env, seeds_rows=True))  # type: ignore[arg-type]
        boundary.single_env_spec = replace(self.spec, max_episode_steps=self.max_episode_steps)
        return boundary

    def pool(self, num_envs: int) -> VectorBoundary:
        """Return a pool of EnvPool behind the boundary. `ValueError` where EnvPool is missing or lacks the game."""
        options = {
            "stack_num": 1,
            "frame_skip": self.frameskip,
            "img_height": self.screen_size,
            "img_width": self.screen_size,
            "noop_max": max(1, self.noop_max),
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
        """The longest episode in actions; the console, which counts frames, ends none later."""
        return -(-self.max_num_frames_per_episode // self.frameskip)

    def _of_console(self) -> dict[str, Any]:
        names = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
        return {name: getattr(self, name) for name in names}


class SingleFrames:
    """A vector environment whose observations are stacks of one frame, without the axis of the stack.

    `seeds_rows`: its reset takes an array with a seed for each row.
    """

    def __init__(self, env: Any, *, seeds_rows: bool = False) -> None:
        self.env, self.seeds_rows = env, seeds_rows
        space = env.single_observation_space
        self.single_observation_space = spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: object) -> tuple[Any, Any]:
        """Reset; return frames `[B, height, width]` and infos."""
        obs, infos = self.env.reset(**options)
        return obs[:, 0], infos

    def step(self, actions: Tree) -> tuple[Any, ...]:
        """Step; observations are frames `[B, height, width]`."""
        obs, *rest, infos = self.env.step(np.asarray(actions))
        if "final_obs" in infos:
            infos["final_obs"] = infos["final_obs"][:, 0]
        return obs[:, 0], *rest, infos
