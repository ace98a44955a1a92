"""Several env runners in this process, which can be lost at will."""

import copy

from lockstep import PPOConfig
from lockstep.rollout.errors import RunnerLostError


class ManyRunners:
    """A backend of `num_runners` in this process. A call is made when it is waited for; `lost` runners give none."""

    is_local = False

    def __init__(self, build, num_runners):
        self.build, self.num_runners = build, num_runners
        self.runners = [build(index=i, num_runners=num_runners, generation=0) for i in range(num_runners)]
        self.calls, self.ended, self.puts = {}, {}, 0
        self.lost, self.hanging = set(), set()
        self.closed = False

    def __len__(self):
        return self.num_runners

    def put(self, value):
        self.puts += 1
        return copy.deepcopy(value)

    def call(self, index, func, *args, **options):
        number = len(self.calls)
        self.calls[number] = (self.runners[index], index, func, copy.deepcopy(args), options)
        return number

    def wait(self, calls, timeout_s):
        return [call for call in calls if self.calls[call][1] not in self.hanging]

    def result(self, call):
        runner, index, func, args, options = self.calls[call]
        if index in self.lost or self.runners[index] is not runner:
            raise RunnerLostError("lost on purpose")
        return copy.deepcopy(func(runner, *args, **options))

    def replace(self, index, generation):
        self.lost.discard(index)
        self.hanging.discard(index)
        self.runners[index] = self.build(index=index, num_runners=self.num_runners, generation=generation)

    def process_ids(self):
        return []

    def shutdown(self):
        self.closed = True
        for runner in self.runners:
            runner.close()


def sample_when_ready(group, num_timesteps, num_requests=1, timeout_s=60.0):
    """Keep so many requests under way on each runner; return the fragments that have come."""
    for index in range(len(group)):
        for _ in range(num_requests - group.num_asked(index)):
            group.ask(index, num_timesteps)
    return group.ready(timeout_s)


def config_of(env="CartPole-v1", num_envs=2, seed=3, **sections):
    config = (
        PPOConfig()
        .environment(env)
        .training(train_batch_size=64, minibatch_size=32)
        .rl_module(model_config={"hiddens": (8,)})
        .env_runners(num_envs_per_env_runner=num_envs, sample_timeout_s=60.0)
        .debugging(seed=seed)
    )
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config
