"""docs/learner.md: its table and its picture name hooks that exist, in the order in which they are called."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner
from lockstep.data.episode import SingleAgentEpisode
from lockstep.learner import Learner, inputs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/learner.md").read_text()
PICTURE = (ROOT / "docs/images/draw_learner.py").read_text()


def test_every_hook_in_the_table_exists_with_those_arguments():
    found = re.findall(r"^\| `(\w+)\(([^`]*)\)` \|", PAGE, re.MULTILINE)
    assert len(found) >= 15
    for name, arguments in found:
        if name == "rl_module":  # a section of the configuration, among the hooks for its purpose
            continue
        declared = inspect.signature(getattr(Learner, name)).parameters
        named = [argument.strip() for argument in arguments.split(",") if argument.strip() not in ("", "*")]
        assert named == [argument for argument in declared if argument != "self"], name


def test_the_heading_that_errors_name_is_on_the_page():
    (heading,) = re.findall("'(.+)'", inputs.HINT)
    assert f"# {heading}\n" in PAGE


def test_every_example_of_a_hook_is_on_the_page():
    examples = {path.name for path in (ROOT / "examples/hooks").glob("*.py")}
    assert set(re.findall(r"examples/hooks/(\w+\.py)\)", PAGE)) == examples
    assert len(examples) == 10


def test_the_picture_shows_hooks_in_the_order_of_an_update():
    columns = re.findall(r'^    \([\d.]+, "[^"]*", "([^"]*)"', PICTURE, re.MULTILINE)
    shown = [name for column in columns for name in re.findall(r"[a-z_]+", column.replace("(_for_module)", ""))]
    called = []

    def watched(name):
        def method(self, *args, **kwargs):
            called.append(name)
            return getattr(PPOLearner, name)(self, *args, **kwargs)

        return method

    watching = type("Watching", (PPOLearner,), {name: watched(name) for name in shown})
    config = PPOConfig().environment(
        observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(2)
    )
    learner = config.rl_module(model_config={"hiddens": (4,)}).training(learner_class=watching).build_learner()
    episode = SingleAgentEpisode(
        observations=np.zeros((5, 3), np.float32), actions=np.zeros(4, np.int64), rewards=np.ones(4), terminated=True
    )
    learner.update_from_episodes([episode])
    assert called == shown
    assert len(shown) >= 9
