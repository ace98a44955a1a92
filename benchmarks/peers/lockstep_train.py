"""Train with Lockstep through its public path: configuration, trainer, collector, learner.

Takes every algorithm of ``protocol.SETTINGS``, ``compile``, ``half`` (products in bfloat16) and ``native`` (PPO on
gymnasium's native vector, whose own rate is measured first, alone and behind Lockstep's boundary). After PPO on
``ALE/*`` the network and the environment are timed alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

import lockstep  # noqa: E402
from lockstep.envs import make_vector  # noqa: E402
from lockstep.recipes.families import sign_of_rewards  # noqa: E402
from lockstep.trainer import Callback, CollectEnd, RunStart, UpdateEnd  # noqa: E402

NATIVE = getattr(w, "native", False)
FRAMES = protocol.has_frames(w)


class Marks(Callback):
    """Marks the clock after each update; sums the seconds of each stage."""

    def __init__(self, clock: protocol.Clock) -> None:
        self.clock = clock
        self.seconds = {"environment": 0.0, "acting": 0.0, "other_collecting": 0.0, "update": 0.0}

    def on_run_start(self, event: RunStart) -> None:
        self.trainer: Any = event.trainer

    def on_collect_end(self, event: CollectEnd) -> None:
        if not NATIVE:
            for episode_return in event.stats.returns:
                self.clock.episode(episode_return)
            return
        stats = event.stats
        self.seconds["environment"] += stats.env_time
        self.seconds["acting"] += stats.act_time
        self.seconds["other_collecting"] += stats.collect_time - stats.env_time - stats.act_time
        for episode_return in stats.returns:
            self.clock.episode(episode_return)

    def on_update_end(self, event: UpdateEnd) -> str | None:
        if w.seconds is not None:
            self.stats = self.trainer.train_collector.get_stats()
            return "time" if self.clock.mark(event.env_step, self.stats["num_steps_sampled"]) else None
        if NATIVE:
            self.seconds["update"] += event.stats.train_time
        self.clock.mark(event.env_step)
        return None


def build_config() -> Any:
    """Return the common setting in Lockstep's words."""
    config = lockstep.get_config(w.algorithm).environment(w.environment).env_runners(num_envs_per_env_runner=w.num_envs)
    config.evaluation(evaluation_interval=0).debugging(seed=w.seed)
    model = {"hiddens": w.hiddens}
    if w.algorithm in ("impala", "appo"):
        config.env_runners(num_env_runners=w.runners, rollout_fragment_length=w.fragment)
        config.training(lr=w.lr, train_batch_size=w.batch).rl_module(model_config={**model, "activation": "tanh"})
        return config.reporting(total_steps=10**9, steps_per_epoch=10**8)
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
        if NATIVE:
            config.env_runners(vectorize_mode="vector", rollout_fragment_length=w.steps_per_env)
            config.reporting(steps_per_epoch=w.steps)
    elif w.algorithm == "dqn":
        config.env_runners(rollout_fragment_length=w.vector_steps)
        config.training(
            epsilon=[[0, 1.0], [w.steps // 2, w.last_epsilon]],
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
    config.rl_module(model_config=model).reporting(total_steps=w.steps)
    return config.framework(compile=w.compile, compile_after=0, num_threads=w.threads)


def rate(step: Callable[[Any], Any], num_steps: int = 2000) -> float:
    """Return the environment steps per second of ``step`` with random actions drawn beforehand."""
    actions = np.random.default_rng(w.seed).integers(0, 2, (num_steps, w.num_envs))
    for action in actions[:100]:
        step(action)
    began = time.perf_counter()
    for action in actions:
        step(action)
    return round(num_steps * w.num_envs / (time.perf_counter() - began), 1)


def environment_rates() -> dict[str, float]:
    """Measure gymnasium's native vector alone, and behind the boundary."""
    vector = gym.make_vec(w.environment, num_envs=w.num_envs, vectorization_mode="vector_entry_point")
    vector.reset(seed=w.seed)
    alone = rate(vector.step)
    vector.close()
    boundary = make_vector(w.environment, num_envs=w.num_envs, mode="vector")
    boundary.reset([w.seed + row for row in range(w.num_envs)])
    behind = rate(boundary.step)
    boundary.close()
    return {"environment_steps_per_s": alone, "boundary_steps_per_s": behind}


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
    facts: dict[str, Any] = environment_rates() if NATIVE else {}
    clock = protocol.Clock(w)
    marks = Marks(clock)
    trainer = build_config().build_trainer(callbacks=[marks])
    clock.start()
    trainer.run()
    if w.seconds is not None:
        trainer.train_collector.close()
        results = trainer.policy.last_results["default_policy"]
        facts = {"dropped": marks.stats["num_steps_dropped"], "lag": results["diff_num_grad_updates_vs_sampler_policy"]}
    elif NATIVE:
        seconds = {stage: round(spent, 4) for stage, spent in marks.seconds.items()}
        seconds["rest"] = round(clock.marks[-1][1] - clock.marks[0][1] - sum(marks.seconds.values()), 4)
        facts |= {"minibatch": w.minibatch, "seconds": seconds}
    elif FRAMES:
        facts = {"steps_of_update": w.batch, "seconds_alone": seconds_alone(trainer)}
    elif w.algorithm != "ppo":
        facts = {"gradient_steps": trainer.gradient_step}
    clock.report("lockstep", lockstep.__version__, **facts)


if __name__ == "__main__":
    main()
