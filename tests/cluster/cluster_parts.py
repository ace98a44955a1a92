"""Small learners and data, and groups whose processes are started once for all tests of this folder."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium import spaces

from lockstep import LearnerGroup, PPOConfig, SampleBatch
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data.episode import SingleAgentEpisode
from lockstep.modules import DefaultActorCriticModule, ModelConfig, RLModuleSpec
from lockstep.options.restarts import RestartBudget

MODULE, ALL = "default_policy", "__all_modules__"
BOX, THREE = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(3)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def small(config, num_learners=0, action_space=THREE, **training):
    """`config` with networks of 4 units, in float64."""
    return (
        config.environment(observation_space=BOX, action_space=action_space)
        .framework(dtype="float64")
        .rl_module(model_config={"hiddens": (4,), "critic_hiddens": (4,)})
        .training(**training)
        .learners(num_learners=num_learners, learner_timeout_s=60.0)
        .debugging(seed=0)
    )


def ppo(num_learners=0, **training):
    return small(PPOConfig(), num_learners, **{"train_batch_size": 64, "minibatch_size": 8, "lr": 1e-2, **training})


def episodes(seed=0, lengths=(3, 19, 4), module_id=None):
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
            actions=rng.integers(3, size=length),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=number % 3 == 0,
            truncated=number % 3 == 1,
            module_id=module_id,
        )
        for number, length in enumerate(lengths)
    ]


def batch(rows=23, seed=0):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(3, size=rows),
        action_logp=np.log(rng.uniform(0.2, 0.6, size=rows)),
        action_dist_inputs=rng.normal(size=(rows, 3)),
        advantages=rng.normal(size=rows),
        value_targets=rng.normal(size=rows),
    )


def transitions(rows=23, seed=0, action_space=THREE):
    """What an off-policy learner samples, prioritised and of several steps."""
    rng = np.random.default_rng(seed)
    discrete = isinstance(action_space, spaces.Discrete)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(3, size=rows) if discrete else rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        new_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        terminateds=rng.random(rows) < 0.2,
        discounts=0.99 ** rng.integers(1, 4, size=rows),
        weights=rng.uniform(0.2, 1.0, size=rows),
    )


def another_module():
    return RLModuleSpec(DefaultActorCriticModule, BOX, THREE, model_config=ModelConfig(hiddens=(4,)))


def weights_of(learner):
    return {mid: module.get_state() for mid, module in learner.module.items()}


def numbers(tree, path=""):
    """Every number in a tree, by path."""
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in numbers(part, f"{path}/{name}").items()}
    if isinstance(tree, list | tuple):
        return numbers(dict(enumerate(tree)), path)
    return {} if tree is None or isinstance(tree, str) else {path: np.asarray(tree, np.float64)}


def assert_near(first, second, tolerance=1e-12):
    one, other = numbers(first), numbers(second)
    assert one.keys() == other.keys()
    for path, value in one.items():
        np.testing.assert_allclose(other[path], value, rtol=tolerance, atol=tolerance, err_msg=path)


def assert_all_are(group, other, tolerance=1e-12):
    """Every learner of `group` has the weights of the group `other`."""
    expected = other.get_weights()
    for weights in group.foreach_learner(weights_of):
        assert_near(expected, weights, tolerance)


def without_seconds(results):
    """What is the same in each run."""
    return {
        mid: {name: value for name, value in part.items() if not name.startswith("seconds")}
        for mid, part in results.items()
        if mid != "call_id"
    }


def forget(worker):
    worker.learner = worker._snapshot = None


class Pool:
    """Groups of learners by configuration; those in other processes take over processes that run already."""

    def __init__(self):
        self.backends = {}

    def group(self, config):
        """What `config.build_learner_group()` returns. Who ends its processes need not tell."""
        section = config.sections["learners"]
        if not section.num_learners:
            return config.build_learner_group()
        backend = next((one for one in self.backends.values() if self._can_take_over(one, section.num_learners)), None)
        if backend is None:
            backend = config.build_learner_group()._backend
            self.backends[id(backend)] = backend
        else:
            self._take_over(backend, config)
        return LearnerGroup(backend, section)

    @staticmethod
    def _can_take_over(backend, num_learners):
        import ray

        if len(backend) != num_learners:
            return False
        try:
            ray.get([worker.__ray_call__.remote(forget) for worker in backend._processes.actors])
        except ray.exceptions.RayActorError:  # a test that ended them for good
            return False
        return True

    def _take_over(self, backend, config):
        import ray

        processes = backend._processes
        processes.section, processes.build = config.sections["learners"], ray.put(config.build_learner)
        answers = processes.join()
        assert [answer.trace for answer in answers.values()] == [""] * len(backend)
        backend._modules, backend.last_checkpoint, backend._restarts = answers[0].value, "", 0
        backend._budget = RestartBudget(config.sections["fault_tolerance"].learner_limits)

    def close(self):
        for backend in self.backends.values():
            backend.shutdown()


class Faulty(PPOLearner):
    """Does what the file `<folder>/<rank>` says, in the gradient step that it names: `<what> <step> <again>`.

    Without `again` the file is taken away first, so that it happens once.
    """

    def _update(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        time.sleep(self.config.learner_config_dict.get("seconds", 0.0))
        order = Path(self.config.learner_config_dict["folder"]) / str(self.reducer.rank)
        if order.exists():
            what, step, *again = order.read_text().split()
            if self.steps >= int(step):
                if not again:
                    order.unlink()
                self.fail(what)
        return super()._update(batch)

    def fail(self, what):
        if what == "raise":
            raise ArithmeticError("a loss that raises")
        if what == "loop":
            while True:
                time.sleep(0)
        if what == "in_sum":
            whole, reducer = self.reducer.sum_, self.reducer

            def dying(tensor):
                threading.Timer(random.random() * 2e-3, os.kill, (os.getpid(), signal.SIGKILL)).start()
                return whole(tensor)

            reducer.sum_ = dying
        elif what == "after_sum":
            whole, reducer = self.reducer.sum_, self.reducer

            def dead(tensor):
                whole(tensor)
                os.kill(os.getpid(), signal.SIGKILL)

            reducer.sum_ = dead
        else:
            os.kill(os.getpid(), getattr(signal, what))


def faulty(num_learners, folder, seconds=0.0, **training):
    told = {"folder": str(folder), "seconds": seconds}
    return ppo(num_learners, learner_class=Faulty, learner_config_dict=told, **training)


def as_configured(group):
    """Equal to a new group in this process: what a comparison begins with."""
    one = ppo().build_learner_group()
    group.set_state(one.get_state())
    return one


class Recorder(PPOLearner):
    """Takes its time, and remembers the first number of each observation that it learned from."""

    def _update(self, batch):
        time.sleep(random.random() * 0.01)
        for module_id, part in batch.items():
            if module_id not in self.stand_ins:
                self.__dict__.setdefault("seen", []).extend(part["obs"][:, 0].tolist())
        return super()._update(batch)


def gone(process_ids, seconds=10.0):
    """Have these processes ended, or do they within so many seconds?"""
    until = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") for pid in process_ids) and time.monotonic() < until:
        time.sleep(0.05)
    return not [pid for pid in process_ids if os.path.exists(f"/proc/{pid}")]
