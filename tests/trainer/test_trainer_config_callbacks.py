"""`config.callbacks(...)`: classes of callbacks belong to the configuration and come back with it."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_tools import config_of

from lockstep import PPOConfig
from lockstep.trainer import Callback


class Counting(Callback):
    """Counts updates, over all that are made."""

    updates = 0

    def on_update_end(self, event: Any) -> None:
        Counting.updates += 1


class Ending(Callback):
    """Asks for the end after the first epoch."""

    def on_epoch_end(self, event: Any) -> str:
        return "enough"


def test_classes_in_the_configuration_watch_the_run_and_can_end_it() -> None:
    Counting.updates = 0
    assert config_of("on").callbacks([Counting]).build_trainer().run().stop_reason == "max_epoch"
    assert Counting.updates == 6
    assert config_of("on").callbacks([Counting, Ending]).build_trainer().run().stop_reason == "enough"
    assert Counting.updates == 8


def test_one_class_needs_no_list_and_json_keeps_its_name() -> None:
    made = PPOConfig().callbacks(Counting)
    assert made.sections["callbacks"].classes == [Counting]
    again = PPOConfig().update_from_dict(made.to_dict())
    assert again == made
    assert again.callbacks_class is Counting


@pytest.mark.parametrize("wrong", [Counting(), dict, "Counting", 3])
def test_what_is_no_class_of_callbacks_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be a subclass of"):
        PPOConfig().environment("CartPole-v1").callbacks(wrong).validate()
