"""`Section`: what is checked when an option gets its default, and when a section is copied."""

from dataclasses import dataclass
from typing import Any

import pytest

from lockstep import PPOConfig
from lockstep.options.section import Section, option


@dataclass
class Wrong(Section[Any]):
    """A section whose default its own limits do not allow."""

    share: float = option(2.0, le=1)


def test_a_default_that_is_not_allowed_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(ValueError, match=r"share=2.0 is not allowed; it must be a number"):
            Wrong()


def test_a_copy_of_a_frozen_section_can_be_changed_and_is_checked():
    config = PPOConfig().rl_module(model_config={"hiddens": (3,)}).environment(env_config={"size": [1, 2]})
    config.freeze()
    section = config.environment.copy()
    section.env_config["size"].append(3)
    assert config.environment.env_config == {"size": [1, 2]}
    with pytest.raises(TypeError, match="env_config=3 is not allowed"):
        section.env_config = 3
