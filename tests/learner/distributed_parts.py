"""Learners in processes of their own, joined by gloo, and the cases they run; see `test_learner_distributed.py`."""

import itertools
import multiprocessing
import os
import traceback
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from algorithm_cases import ALGORITHM_CASES, ON_POLICY
from gymnasium import spaces
from learner_parts import BOX, MODULE, THREE, make_episode, make_multi_agent_episode, parameters, ppo_batch, transitions

from lockstep import get_config
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import SingleAgentEpisode
from lockstep.data.actions import random_actions
from lockstep.data.groups import central_groups, with_state_space
from lockstep.data.minibatch import num_units, take_units
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.learner.many.reduction import DistributedReducer, LocalReducer
from lockstep.policy.policy import row_errors

UPDATES = 20
TWO_DIMENSIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
COMPOSITE = spaces.Dict(gear=THREE, both=spaces.Tuple([TWO_DIMENSIONS, spaces.MultiDiscrete([2, 3])]))


class ShardMeanPPO(PPOLearner):
    """What others do: each learner takes the mean of its own shard, and the gradients are averaged."""

    def masked_mean(self, values, batch):
        return values.mean() / self.reducer.world_size if self.rows_in_step else values.sum() * 0.0


@dataclass
class Case:
    """One comparison of n learners with one."""

    algorithm: str = "ppo"
    training: dict = field(default_factory=dict)
    num_epochs: int = 2
    minibatch_size: int | None = 16
    shuffle: bool = True
    source: str = "episodes"
    normalize: bool = False
    dtype: str = "float64"
    updates: int = UPDATES
    memory: str | None = None
    """`lstm`, `gru`, `attention` or none"""
    modules: tuple = (MODULE,)
    """several: multi-agent episodes and batches"""
    empty: bool = False
    """every second update all rows are on the last learner"""
    composite: bool = False
    """actions are a Dict"""
    behaviour: bool = False
    """episodes carry the log-probabilities of the policy that acted"""
    exploration: str | None = None
    critic: bool = False
    """a critic that sees two numbers more than the policy; they are in the infos, as in version 0.2"""
    in_a_box: bool | None = None
    """whether actions are a Box's; `None`: as most tests have it of this algorithm"""
    model: dict = field(default_factory=dict)
    device: str = "cpu"


def build(case, reducer):
    config = get_config(case.algorithm).training(**case.training).debugging(seed=5)
    if case.normalize:
        config.environment(normalize_observations=True, normalize_rewards=True)
    if case.memory == "attention":
        config.rl_module(model_config={"attention": {"size": 4, "num_heads": 2, "memory": 3, "hidden_size": 4}})
    elif case.memory:
        config.rl_module(model_config={"recurrent": case.memory, "recurrent_size": 4, "max_seq_len": 4})
    if len(case.modules) > 1:
        config.multi_agent(policies=case.modules, policy_mapping_fn=lambda agent, episode: agent)
    if case.exploration:
        config.env_runners(exploration=case.exploration)
    space = BOX
    if case.critic:
        space = with_state_space(BOX, spaces.Box(-1.0, 1.0, (2,)))
        config.rl_module(observation_groups=central_groups(BOX))
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **case.model})
    config.framework(dtype=case.dtype, device=case.device)
    return config.build_learner(spaces=(space, actions_of(case)), reducer=reducer)


def actions_of(case):
    if case.composite:
        return COMPOSITE
    in_a_box = ALGORITHM_CASES[case.algorithm].in_a_box if case.in_a_box is None else case.in_a_box
    return TWO_DIMENSIONS if in_a_box or case.exploration == "gsde" else THREE


def episodes_of(rng, behaviour=False, critic=False, space=None):
    """Seven episodes of 1 to 12 steps."""
    made = []
    for _ in range(7):
        steps, end = int(rng.integers(1, 13)), ("terminated", "truncated", "open")[rng.integers(3)]
        recorded = {"action_logp": np.log(rng.uniform(0.1, 0.9, steps))} if behaviour else {}
        seen = [{"critic_obs": rng.normal(size=2).astype(np.float32)} for _ in range(steps + 1)] if critic else None
        made.append(make_episode(steps, end, rng, infos=seen, **recorded))
        if space is not None:
            actions = random_actions(space, rng, steps)
            observations, rewards = made[-1].get_observations(), made[-1].get_rewards()
            made[-1] = SingleAgentEpisode(
                observations=observations, actions=actions, rewards=rewards, terminated=end == "terminated"
            )
    return made


def multi_agent_episodes_of(rng, modules):
    """Seven episodes in which one or all agents play, each for its own module."""
    made = []
    for number in range(7):
        agents = modules[: 1 + number % 2] if number < 4 else modules[-1:]
        steps, terminated = int(rng.integers(1, 10)), bool(rng.integers(2))
        made.append(make_multi_agent_episode(steps, {agent: agent for agent in agents}, rng, terminated))
    return made


def rows_of(case, rng, rows):
    """What the case's algorithm learns from."""
    if case.algorithm in ON_POLICY:
        return ppo_batch(rows, rng, action_dist_inputs=rng.normal(size=(rows, 3)))
    batch = transitions(rows, rng, actions=actions_of(case))
    batch["discounts"] = 0.9 ** rng.integers(1, 4, size=rows)
    return in_sequences(batch, rng, case.memory) if case.memory else batch


def in_sequences(batch, rng, memory):
    """The rows as sequences of n-step transitions; every second one begins with two rows of burn-in."""
    lengths = []
    while (left := len(batch) - sum(lengths)) > 0:
        lengths.append(min(left, (int(rng.integers(1, 4)), int(rng.integers(3, 7)))[len(lengths) % 2]))
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    inside, number = np.arange(len(batch)) - starts, np.repeat(np.arange(len(lengths)), lengths)
    has_burn_in = (number % 2 == 1) & (np.repeat(lengths, lengths) > 2)
    state = {name: rng.normal(size=(len(lengths), 4)) for name in ("h", "c")[: 1 + (memory == "lstm")]}
    if memory == "attention":
        filled = rng.integers(0, 4, size=(len(lengths), 1)).astype(float)
        state = {"memory": rng.normal(size=(len(lengths), 1, 3, 4)), "length": filled}
    left = np.repeat(lengths, lengths) - inside
    return SampleBatch(
        batch,
        seq_lens=np.array(lengths),
        state_in=state,
        loss_mask=(inside >= 2) | ~has_burn_in,
        num_steps=np.minimum(rng.integers(1, 4, size=len(batch)), left),
    )


def cuts(number, world_size, case, update, rng):
    """Where `number` items are cut into unequal shards, now and then empty ones."""
    if case.empty and update % 2:
        return [0] * world_size + [number]
    return [0, *sorted(rng.integers(0, number + 1, size=world_size - 1).tolist()), number]


def shards_of(case, update, world_size):
    """The shards of all learners in one update; `world_size` says how the rows are cut."""
    rng = np.random.default_rng([update, 17])
    if case.source == "batch":
        sizes = [50] if len(case.modules) == 1 else [50, 23]
        parts = {}
        for module_id, rows in zip(case.modules, sizes):
            batch = rows_of(case, rng, rows)
            ends = cuts(num_units(batch), world_size, case, update, rng)
            parts[module_id] = [take_units(batch, np.arange(*pair)) for pair in itertools.pairwise(ends)]
        if len(case.modules) == 1:
            return parts[MODULE]
        shards = [{mid: pieces[rank] for mid, pieces in parts.items()} for rank in range(world_size)]
        return [MultiAgentBatch(shard, max(map(len, shard.values()))) for shard in shards]
    if len(case.modules) == 1:
        space = actions_of(case) if case.composite or case.exploration else None
        made = episodes_of(rng, case.behaviour, case.critic, space)
    else:
        made = multi_agent_episodes_of(rng, case.modules)
    ends = cuts(len(made), world_size, case, update, rng)
    return [made[start:stop] for start, stop in itertools.pairwise(ends)]


def run_case(case, reducer, shards_as):
    """`case` on the learner of `reducer`; one learner gets the `shards_as` shards one after another."""
    return report(*run_updates(build(case, reducer), case, shards_as, range(case.updates)))


def run_updates(learner, case, shards_as, updates):
    """Some updates of `case`; the learner and its last results."""
    reducer = learner.reducer
    options = {
        "num_epochs": case.num_epochs,
        "minibatch_size": case.minibatch_size,
        "shuffle_batch_per_epoch": case.shuffle,
    }
    for update in updates:
        shards = shards_of(case, update, shards_as)
        if case.source == "batch":
            own = type(shards[0]).concat_samples(shards) if reducer.world_size == 1 else shards[reducer.rank]
            own = with_pairs(own, learner)
            results = learner.update_from_batch(own, timesteps={"num_env_steps_sampled_lifetime": update}, **options)
        else:
            own = [*itertools.chain(*shards)] if reducer.world_size == 1 else shards[reducer.rank]
            results = learner.update_from_episodes(own, timesteps={"num_env_steps_sampled_lifetime": update}, **options)
    return learner, results


def with_pairs(batch, learner):
    """The batch of one module, with pairs of observations and their mirror images for a symmetric network."""
    if isinstance(batch, MultiAgentBatch) or not learner.connectors[MODULE].obs.makes_pairs:
        return batch
    pairs = {name: learner.connectors[MODULE].obs(batch[name]) for name in ("obs", "new_obs")}
    return SampleBatch({**batch, **pairs})


def half_a_case(reducer, case, half, path):
    """The first half of the updates, saved to `path` by learner 0; or the second half, from what is there."""
    learner, middle = build(case, reducer), case.updates // 2
    if half == "second":
        learner.restore_from_path(path)
    updates = range(middle) if half == "first" else range(middle, case.updates)
    learner, results = run_updates(learner, case, reducer.world_size, updates)
    if half == "first" and reducer.rank == 0:
        learner.save_to_path(path)
    return report(learner, results)


def errors_for_priorities(reducer, shards_as):
    """Errors of the own rows after one gradient step on each of some samples."""
    case = Case("dqn", {"lr": 1e-2}, source="batch", minibatch_size=None, num_epochs=1)
    learner, found = build(case, reducer), []
    for update in range(4):
        run_updates(learner, replace(case, empty=update == 3), shards_as, [update])
        found.append(row_errors(learner, MODULE))
    return found


def report(learner, results):
    state = learner.get_state(["connectors", "registered", "lifetime"])
    weights = {name: value.numpy() for name, value in parameters(learner).items()}
    return {"weights": weights, "results": without_seconds(results), "state": state}


def without_seconds(results):
    return {
        mid: {name: value for name, value in part.items() if not name.startswith("seconds_")}
        for mid, part in results.items()
    }


# -- processes ---


def serve(rank, world_size, folder, pipe):
    """One process: runs what it is told, as rank `rank` of the first two or of all learners."""
    torch.set_num_threads(1)
    reducers = {
        size: DistributedReducer(rank, size, folder / f"store{size}", name="test", timeout_s=120.0)
        for size in range(2, world_size + 1)
        if rank < size
    }
    while (message := pipe.recv()) is not None:
        function, size, args = message
        try:
            pipe.send(("ok", function(reducers.get(size), *args)))
        except Exception as error:
            pipe.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    os._exit(0)  # nothing is left to be tidied up


class Processes:
    """Three processes that stay up for all cases."""

    def __init__(self, folder, world_size=3):
        context = multiprocessing.get_context("forkserver")
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            near, far = context.Pipe()
            process = context.Process(target=serve, args=(rank, world_size, folder, far), daemon=True)
            process.start()
            self.pipes.append(near)
            self.processes.append(process)

    def run(self, size, function, *args, kind="ok"):
        """What `function(reducer, *args)` returns on each of `size` learners; with `kind="error"` what it raises."""
        for pipe in self.pipes[:size]:
            pipe.send((function, size, args))
        outcomes = []
        for rank, pipe in enumerate(self.pipes[:size]):
            if not pipe.poll(240):
                raise TimeoutError(f"learner {rank} does not answer")
            outcomes.append(pipe.recv())
        assert {found for found, _ in outcomes} == {kind}, outcomes
        return [value for _, value in outcomes]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def case_in_process(reducer, case):
    return run_case(case, reducer, reducer.world_size)


def case_alone(case, shards_as):
    return run_case(case, LocalReducer(), shards_as)
