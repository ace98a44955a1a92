"""Train with Lockstep through its public path: configuration, trainer, collector, learner.

Takes every algorithm of ``protocol.SETTINGS``, ``compile`` (null: the library's default), ``half`` (products in
bfloat16), and ``planned``: the steps of the run that the settings are for, of which it makes the first ``steps``. After
PPO on ``ALE/*`` the network and the environment are timed alone.
"""

from __future__ import annotations

from typing import Any

import protocol

w = protocol.read(__doc__)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import lockstep  # noqa: E402
from lockstep.recipes.families import sign_of_rewards  # noqa: E402
from lockstep.trainer import Callback, CollectEnd, UpdateEnd  # noqa: E402

FRAMES = protocol.has_frames(w)


class Marks(Callback):
    """Marks the clock after each update, and ends the run after its measured steps."""

    def __init__(self, clock: protocol.Clock) -> None:
        self.clock = clock

    def on_collect_end(self, event: CollectEnd) -> None:
        for episode_return in event.stats.returns:
            self.clock.episode(episode_return)

    def on_update_end(self, event: UpdateEnd) -> str | None:
        self.clock.mark(event.env_step)
        return "measured" if event.env_step >= w.steps else None


def build_config() -> Any:
    """Return the common setting in Lockstep's words."""
    config = lockstep.get_config(w.algorithm).environment(w.environment).env_runners(num_envs_per_env_runner=w.num_envs)
    config.evaluation(evaluation_interval=0).debugging(seed=w.seed)
    model = {"hiddens": w.hiddens}
    config.training(lr=w.lr, gamma=w.gamma, train_batch_size=w.batch)
    if w.algorithm == "ppo":
        config.training(
            lambda_=w.lambda_,
            clip_param=w.clip,
            entropy_coeff=w.entropy_coeff,
            vf_loss_coeff=w.value_coeff,
            grad_clip=w.max_grad_norm,
            adam_epsilon=w.adam_epsilon,
            minibatch_size=w.minibatch,
            num_epochs=w.num_epochs,
        )
        model["activation"] = "tanh"
        if FRAMES:
            config.environment(env_config={"num_threads": w.threads}, frame_stack=4)
            config.training(learner_connector=sign_of_rewards)
            model = {"vf_share_layers": True}
    elif w.algorithm == "dqn":
        config.env_runners(rollout_fragment_length=w.vector_steps)
        config.training(
            epsilon=[[0, w.first_epsilon], [w.steps // 2, w.last_epsilon]],
            double_q=False,
            huber_delta=None,
            target_update_interval=w.rounds_per_target * w.updates,
            grad_clip=w.max_grad_norm,
        )
        config.replay(capacity=w.capacity, learning_starts=w.random_steps, update_per_step=w.updates / w.round_steps)
        model |= {"activation": "relu", "orthogonal_init": False}
    else:
        config.training(tau=w.tau).replay(capacity=w.capacity, learning_starts=w.random_steps, update_per_step=1.0)
        if w.algorithm == "td3":
            config.training(
                exploration_noise=w.noise,
                target_noise=w.target_noise,
                noise_clip=w.noise_clip,
                policy_delay=w.policy_delay,
            )
    config.framework(mixed_precision=w.half)
    config.rl_module(model_config=model).reporting(total_steps=w.planned).framework(num_threads=w.threads)
    if w.compile is not None:
        config.framework(compile=w.compile)
    return config


def seconds_alone(trainer: Any) -> dict[str, float]:
    """Return the processor's seconds that network and environment take alone for the steps of one update."""
    encoder = trainer.policy.module.encoder
    frames = torch.randint(0, 256, (w.minibatch, *encoder.space.shape), dtype=torch.uint8)

    def train() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=w.half):
            features = encoder(frames, torch.float32)
        features.sum().backward()

    @torch.inference_mode()
    def see(rows: int) -> None:
        encoder(frames[:rows], torch.float32)

    pieces, vector = w.batch // w.minibatch, trainer.train_collector.env
    network = w.num_epochs * pieces * protocol.least_seconds(train)
    network += pieces * protocol.least_seconds(lambda: see(w.minibatch))
    network += w.steps_per_env * protocol.least_seconds(lambda: see(w.num_envs))
    step = protocol.least_seconds(lambda: vector.step(np.zeros(w.num_envs, np.int64)))
    return {"network": round(network, 4), "environment": round(w.steps_per_env * step, 4)}


def main() -> None:
    """Train and report."""
    clock = protocol.Clock(w)
    trainer = build_config().build_trainer(callbacks=[Marks(clock)])
    clock.start()
    trainer.run()
    facts: dict[str, Any] = {"compiled": trainer.policy.config.framework.compile}
    if FRAMES:
        facts |= {"steps_of_update": w.batch, "seconds_alone": seconds_alone(trainer)}
    elif w.algorithm != "ppo":
        facts |= {"gradient_steps": trainer.gradient_step}
    clock.report("lockstep", lockstep.__version__, **facts)


if __name__ == "__main__":
    main()
