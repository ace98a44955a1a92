"""DQN on MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176), in the setting of the paper's own DQN.

    pip install --no-deps MinAtar==1.0.15                    # its games need numpy and gymnasium only
    python benchmarks/learning.py dqn MinAtar/Breakout-v0 --compile --name minatar_breakout    # 500,000 frames each

MinAtar's last release is of 2023 and asks for plotting packages that its games do not use: so it is installed for this
command only, without them, and the game is not among the recipes.

As in the paper's code: one convolution of 16 filters of 3 x 3 and 128 units, learning after 5,000 frames, a memory of
100,000, the target network copied every 1,000 frames, epsilon from 1 to 0.1 over 100,000 frames, errors clipped at 1,
gamma 0.99, all six actions, sticky actions (0.1), difficulty that ramps. Not as there: a batch of 64 for four frames
instead of four of 32, that is half as many remembered transitions for a frame; Adam with 1e-3 instead of centred
RMSProp with momentum (2.5e-4 and 0.95, that is about 5e-3); eight environments side by side; 500,000 frames instead
of 5,000,000.
"""

from __future__ import annotations

from typing import Any


def minatar_dqn(env: str) -> Any:
    """Return the settings for a game, by its id, and register MinAtar's games with gymnasium."""
    try:
        from minatar.gym import register_envs
    except ImportError as error:
        raise SystemExit(f"{error}; pip install --no-deps MinAtar==1.0.15") from None
    from lockstep import DQNConfig

    register_envs()
    return (
        DQNConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=1e-3,
            gamma=0.99,
            train_batch_size=64,
            double_q=False,
            grad_clip=None,
            epsilon=[[0, 1.0], [5_000, 1.0], [105_000, 0.1]],
            target_update_interval=250,
            huber_delta=1.0,
        )
        .replay(capacity=100_000, learning_starts=5_000, update_per_step=0.25)
        .rl_module(
            model_config={
                "conv_filters": ((16, 3, 1),),
                "image_hiddens": (128,),
                "conv_activation": "relu",
                "activation": "tanh",
                "orthogonal_init": False,
            }
        )
        .evaluation(evaluation_duration=20)
        .reporting(total_steps=500_000)
    )
