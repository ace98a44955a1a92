"""Every algorithm learns every probe: values and policy against the exact answers.

Which probe fails tells what is wrong; see `lockstep.envs.toys.probes`.
"""

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, OFFLINE, ON_POLICY, class_of, has_option, named, taking
from gymnasium import spaces
from parts import fast_if

from lockstep import Collector, SampleBatch, get_config
from lockstep.envs.toys.probes import BEST_CONTINUOUS, MEMORY_PROBES, PROBES, MemoryProbe, Probe
from lockstep.replay import ReplayBuffer

GAMMA = 0.5
WITH_ACTION_VALUES, IN_A_BOX = taking("discrete"), taking("box")


def marks_of(probes, name):
    """An algorithm's own probes in the fast suite; `tests/product/test_product_cover.py` proves that each learns."""
    if probes.fast is None or name in probes.fast:
        return ()
    return pytest.mark.long if probes.long is None or name in probes.long else pytest.mark.learning


def learned_policy(algorithm, probes, probe):
    config = getattr(class_of(algorithm), probes.preset)() if probes.preset else get_config(algorithm)
    config.environment(probe).env_runners(num_envs_per_env_runner=8 if algorithm in ON_POLICY else 4)
    training = {**probes.training, **probes.of_probe.get(probe.__name__, {})}
    config.training(gamma=GAMMA, **training).reporting(total_steps=probes.steps)
    if algorithm in WITH_ACTION_VALUES:
        config.env_runners(rollout_fragment_length=25)
    if config.is_off_policy:
        often = 0.8 if algorithm in WITH_ACTION_VALUES else 1.0
        config.replay(learning_starts=100, capacity=1_000, update_per_step=often)
    if has_option(algorithm, "target_entropy"):
        config.training(target_entropy=-2.0 if probe.continuous else 0.02)
    config.rl_module(model_config={"hiddens": (16,), "critic_hiddens": (16,)}).evaluation(evaluation_interval=0)
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


def tolerances(algorithm, probes, matters):
    """Of values and of continuous actions; a policy that matters still explores a little."""
    if probes.few_updates:
        return 0.1 if matters else 0.02, 0.15
    if algorithm in ON_POLICY:
        return 0.02, 0.05
    return (0.05, 0.0) if algorithm in WITH_ACTION_VALUES else (0.1, 0.2)  # kinks of a small network


def probes_of(algorithm):
    """Those whose actions the algorithm can take; where actions do not matter they may be a Box. Without values those
    where they matter.
    """
    for probe in PROBES:
        if not ALGORITHM_CASES[algorithm].has_values and probe().best_action((0.0,)) is None:
            continue
        if algorithm in IN_A_BOX and not probe.continuous and probe().best_action((0.0,)) is None:
            yield type(probe.__name__, (probe,), {"continuous": True})
        elif probe.continuous if algorithm in IN_A_BOX else not probe.continuous or algorithm not in WITH_ACTION_VALUES:
            yield probe


CASES = [
    pytest.param(algorithm, probes, probe, id=f"{probe.__name__}-{name}", marks=marks_of(probes, probe.__name__))
    for name, algorithm, probes in named("probes")
    for probe in probes_of(algorithm)
]


@pytest.mark.parametrize(("algorithm", "probes", "probe"), CASES)
def test_values_and_actions_become_the_exact_ones(algorithm, probes, probe):
    env, policy = probe(), learned_policy(algorithm, probes, probe)
    obs = np.array(probe.observations, np.float32)
    best = [env.best_action(row) for row in obs]
    of_values, outputs_of_actions = tolerances(algorithm, probes, best[0] is not None)
    if ALGORITHM_CASES[algorithm].has_values:
        with torch.no_grad():
            values = policy.module.compute_values({"obs": torch.from_numpy(obs)}).numpy()
        np.testing.assert_allclose(values, [env.exact_value(row, GAMMA) for row in obs], atol=of_values)
    if best[0] is not None:
        actions = policy.compute_actions(obs, explore=False)
        np.testing.assert_allclose(actions, np.stack(best), atol=outputs_of_actions if env.continuous else 0)
    is_drawn = algorithm in ON_POLICY and algorithm not in WITH_ACTION_VALUES
    if best[0] is not None and not env.continuous and is_drawn:  # sure, not only in its mode
        drawn = policy.compute_actions(obs.repeat(200, 0), explore=True)
        assert (best == drawn.reshape(len(obs), 200).T).mean(0).min() >= 0.95


# -- actions that are forbidden ---


class MaskedProbe(Probe):
    """Two steps; two of eight actions are allowed in the first, three in the second, and one is worth 1 each time.

    With 0.98 of the logarithm of eight as its target the entropy could never be high enough.
    """

    observations = ((-1.0,), (1.0,))
    masks = ([0, 0, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 1, 0])
    best = (5, 3)
    num_allowed = (2, 3)

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(seen=self.observation_space, action_mask=spaces.MultiBinary(8))
        self.action_space = spaces.Discrete(8)

    def observe(self, number):
        return {"seen": np.float32(self.observations[number]), "action_mask": np.int8(self.masks[number])}

    def _first(self):
        return -1.0

    def _observe(self):
        return self.observe(int(self.current > 0.0))

    def step(self, action):
        number = int(self.current > 0.0)
        if not self.masks[number][action]:
            raise ValueError(f"{action} is forbidden")
        self.current = 1.0
        return self._observe(), float(action == self.best[number]), number == 1, False, {}


def masked_config(algorithm):
    """Half of the replay's rows are of each step: episodes have two."""
    config = get_config(algorithm).environment(MaskedProbe).env_runners(num_envs_per_env_runner=4)
    if config.is_off_policy:
        return config.replay(learning_starts=100, capacity=1_000, update_per_step=1.0).reporting(total_steps=700)
    by_chance = Collector(config.build_policy(), MaskedProbe, buffer=ReplayBuffer(400))
    by_chance.collect(n_step=400, random=True)
    return config.offline_data(input_=by_chance.buffer).training(min_q_weight=0.1).reporting(total_steps=700)


@pytest.mark.parametrize("algorithm", ["sac", pytest.param("cql", marks=pytest.mark.long)])
def test_the_entropy_of_masked_actions_reaches_0_98_of_its_maximum(algorithm):
    config = masked_config(algorithm).debugging(seed=0).evaluation(evaluation_interval=0)
    config.training(gamma=GAMMA, lr=1e-2, alpha_lr=1e-2, tau=0.05, train_batch_size=64)
    if algorithm == "cql":
        config.training(actor_lr=1e-2)
    config.rl_module(model_config={"hiddens": (16,), "critic_hiddens": (16,)})
    trainer = config.build_trainer()
    trainer.run()

    policy = trainer.policy
    rows = [MaskedProbe().observe(number) for number in range(2)]
    obs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert policy.compute_actions(obs, explore=False).tolist() == list(MaskedProbe.best)
    with torch.no_grad():
        tensors = {name: torch.from_numpy(column) for name, column in obs.items()}
        inputs = policy.module.forward_inference({"obs": tensors})["action_dist_inputs"]
        entropy = policy.module.action_dist_cls.from_inputs(inputs).entropy().mean().item()
    target = 0.98 * np.log(MaskedProbe.num_allowed).mean()
    assert entropy == pytest.approx(target, abs=0.03)
    temperature = policy.learner_group.foreach_learner(lambda learner: learner.registered["default_policy/log_alpha"])
    assert float(temperature[0].detach().exp()) < 5.0


# -- PPO and A2C with an LSTM, GRU or attention remember what a network without memory cannot know ---

SETTINGS = {
    "ppo": {"lr": 1e-2, "train_batch_size": 256, "minibatch_size": 16, "num_epochs": 4},
    "a2c": {"lr": 1e-2, "train_batch_size": 64},
}
TOTAL_STEPS = {"ppo": 3_000, "a2c": 5_000}
ATTENTION = {"size": 32, "num_heads": 2, "memory": 8, "hidden_size": 32}
MEMORIES = {
    "lstm": {"recurrent": "lstm", "recurrent_size": 8},
    "gru": {"recurrent": "gru", "recurrent_size": 8},
    "attention": {"attention": ATTENTION},
    None: {},
}


def trained(algorithm, memory, max_seq_len=20, probe=MemoryProbe, steps=None, **training):
    config = get_config(algorithm).environment(probe).env_runners(num_envs_per_env_runner=8)
    model = {"hiddens": (8,), "max_seq_len": max_seq_len, **(memory if isinstance(memory, dict) else MEMORIES[memory])}
    config.training(**{"gamma": 0.9, **SETTINGS[algorithm], **training}).rl_module(model_config=model)
    config.evaluation(evaluation_interval=0).reporting(total_steps=steps or TOTAL_STEPS[algorithm])
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


def last_actions(policy, probe=MemoryProbe):
    """The last action of an episode that begins with -1 and of one that begins with 1."""
    state = None
    for t in range(probe.delay + 1):
        obs = np.array(probe.observations, np.float32) if t == 0 else np.zeros((2, 1), np.float32)
        if policy.is_stateful:
            actions, state = policy.compute_actions(obs, state, explore=False)
        else:
            actions = policy.compute_actions(obs, explore=False)
    return actions.tolist()


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        pytest.param("a2c", "lstm", marks=pytest.mark.long),
        *(pytest.param("a2c", memory, marks=pytest.mark.learning) for memory in ("gru", "attention")),
        *fast_if(lambda _, memory: memory != "gru", [("ppo", memory) for memory in ("lstm", "gru", "attention")]),
    ],
)
@pytest.mark.parametrize("probe", MEMORY_PROBES, ids=lambda probe: probe.__name__)
def test_a_network_with_memory_learns_to_remember(algorithm, memory, probe):
    slower = {"lr": 3e-3} if memory == "attention" else {}
    assert last_actions(trained(algorithm, memory, probe=probe, **slower)) == [0, 1]


class LongMemoryProbe(MemoryProbe):
    """Asks after 50 steps."""

    delay = 50


@pytest.mark.learning
def test_attention_remembers_a_cue_for_fifty_steps():
    model = {"attention": {"size": 16, "num_heads": 2, "memory": 50, "hidden_size": 16}}
    training = {"gamma": 0.99, "train_batch_size": 1_024, "minibatch_size": 8, "lr": 3e-3}
    policy = trained("ppo", model, 64, LongMemoryProbe, steps=61_440, **training)
    assert last_actions(policy, LongMemoryProbe) == [0, 1]


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_a_network_without_memory_cannot(algorithm):
    """It sees the same zero after both: one action for both of them."""
    first, second = last_actions(trained(algorithm, None))
    assert first == second


def test_stored_states_matter_where_sequences_are_shorter_than_the_delay():
    """No gradient flows over the whole delay in sequences of two steps, but what the stored state holds is read."""
    assert last_actions(trained("ppo", "gru", max_seq_len=2)) == [0, 1]


# -- off-policy, from sequences of a replay buffer with the states stored there ---


class MemoryProbeContinuous(MemoryProbe):
    """`MemoryProbe` in a Box: reward 1 minus the squared distance from half of what is remembered."""

    continuous = True

    def step(self, action):
        obs, _, last, truncated, info = super().step(0)
        distance = float(np.asarray(action).reshape(-1)[0]) - BEST_CONTINUOUS * self.cue
        return obs, (1.0 - distance**2) * last, last, truncated, info


SMALL_ATTENTION = {"size": 16, "num_heads": 2, "memory": 8, "hidden_size": 16}
KINDS_OF_MEMORY = {
    "lstm": {"recurrent": "lstm", "recurrent_size": 16},
    "gru": {"recurrent": "gru", "recurrent_size": 16},
    "attention": {"attention": SMALL_ATTENTION},
    None: {},
}
OF_REPLAY = {name: (algorithm, case) for name, algorithm, case in named("memory") if algorithm in OFF_POLICY}
OF_DATA = {name: (algorithm, case) for name, algorithm, case in named("memory") if algorithm in OFFLINE}


def memory_cases(table):
    """Each case with each kind of memory; most are learned before a release alone."""
    parts = {"fast": (), "long": pytest.mark.long}
    return [
        pytest.param(name, kind, marks=parts.get(case.parts.get(kind), pytest.mark.learning))
        for name, (_, case) in table.items()
        for kind in KINDS_OF_MEMORY
        if kind
    ]


def trained_from_sequences(name, recurrent, *, sequence_length=8, burn_in=None, num_steps=None, **replay):
    algorithm, case = OF_REPLAY[name]
    config = get_config(algorithm)
    config.environment(MemoryProbeContinuous if case.in_a_box else MemoryProbe)
    rate = {"lr": 3e-3 if recurrent == "attention" else 1e-2}
    training = {**rate, **case.training, **case.of_kind.get(recurrent, {})}
    config.env_runners(num_envs_per_env_runner=8).training(gamma=0.9, **training)
    config.rl_module(model_config={"hiddens": (16,), "critic_hiddens": (16,), **KINDS_OF_MEMORY[recurrent]})
    config.replay(learning_starts=200, capacity=5_000, update_per_step=case.update_per_step)
    config.replay(sequence_length=sequence_length, burn_in=burn_in, **replay)
    config.evaluation(evaluation_interval=0).reporting(total_steps=num_steps or case.steps)
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


@pytest.mark.parametrize(("name", "recurrent"), memory_cases(OF_REPLAY))
def test_off_policy_algorithms_learn_to_remember(name, recurrent):
    _, case = OF_REPLAY[name]
    found = np.array(last_actions(trained_from_sequences(name, recurrent)), np.float64).reshape(2)
    if case.in_a_box:
        error = case.attention_error if recurrent == "attention" else 0.15  # without memory it is 0.5
        np.testing.assert_allclose(found, [-BEST_CONTINUOUS, BEST_CONTINUOUS], atol=error)
    else:
        assert found.tolist() == [0, 1]


@pytest.mark.learning
@pytest.mark.parametrize("replay", [{"prioritized": True, "n_step": 2}, {"ignore_obs_next": True}])
def test_it_is_remembered_with_every_kind_of_replay(replay):
    assert last_actions(trained_from_sequences("dqn", "gru", **replay)) == [0, 1]


@pytest.mark.learning
def test_stored_states_matter_off_policy_with_sequences_below_the_delay():
    policy = trained_from_sequences("dqn", "gru", sequence_length=2, burn_in=0, num_steps=6_000)
    assert last_actions(policy) == [0, 1]


# -- from recorded episodes, in sequences that begin with an empty memory ---


def recorded(probe, is_expert, num_episodes=300):
    """Episodes of random actions, or of the best ones."""
    env, rng, rows = probe(), np.random.default_rng(0), []
    for number in range(num_episodes):
        obs, ended = env.reset(seed=number)[0], False
        while not ended:
            action = rng.uniform(-1, 1, 1).astype(np.float32) if env.continuous else int(rng.integers(2))
            action = env.best_action([env.cue]) if is_expert else action
            new_obs, reward, ended, _, _ = env.step(action)
            rows.append((obs, action, reward, new_obs, ended, False))
            obs = new_obs
    names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")
    return SampleBatch({name: np.array(column) for name, column in zip(names, zip(*rows))})


def trained_from_data(name, memory, steps, hiddens=(16,), **training):
    algorithm, case = OF_DATA[name]
    config = get_config(algorithm)
    probe = MemoryProbeContinuous if case.in_a_box else MemoryProbe
    config.environment(probe).offline_data(input_=recorded(probe, ALGORITHM_CASES[algorithm].imitates))
    config.training(**{"lr": 1e-2, "gamma": 0.9, "train_batch_size": 32, **case.training, **training})
    config.rl_module(model_config={"hiddens": hiddens, "max_seq_len": 8, **KINDS_OF_MEMORY[memory]})
    config.evaluation(evaluation_interval=0).reporting(total_steps=steps, steps_per_epoch=steps)
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


@pytest.mark.parametrize(("name", "memory"), memory_cases(OF_DATA))
def test_offline_algorithms_learn_to_remember(name, memory):
    rate = 3e-3 if memory == "attention" else 1e-2
    _, case = OF_DATA[name]
    steps, lr = (500, [[0, rate], [450, 1e-3]]) if case.in_a_box else (200, rate)
    policy = trained_from_data(name, memory, steps, (32, 32) if case.in_a_box else (16,), lr=lr)
    found = np.array(last_actions(policy), np.float64).reshape(2)
    if case.in_a_box:
        np.testing.assert_allclose(found, [-BEST_CONTINUOUS, BEST_CONTINUOUS], atol=0.2)
    else:
        assert found.tolist() == [0, 1]


def test_a_network_without_memory_cannot_imitate_who_remembers():
    first, second = last_actions(trained_from_data("bc", None, 100))
    assert first == second
