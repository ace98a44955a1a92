"""Runs that are killed with SIGKILL at random moments end with the bits and the records of one that was not."""

import random
import shutil
import time

import pytest
from kill_tools import KINDS, bits_of, run_kind, work_on
from trainer_tools import records_of

FIFTY = [pytest.param(kind, 50, marks=pytest.mark.faults) for kind in KINDS]
EPOCH = 128


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_run_and_a_new_trainer_for_the_other_half_are_the_whole_to_the_last_bit(kind, folder):
    whole = bits_of(run_kind(folder / "whole", kind, 3 * EPOCH))
    run_kind(folder / "halves", kind, EPOCH)
    resumed = run_kind(folder / "halves", kind, 3 * EPOCH)
    assert bits_of(resumed) == whole
    assert records_of(folder / "halves") == records_of(folder / "whole")
    assert resumed.gradient_step > 0


@pytest.mark.parametrize("kind, number", [("on-policy", 4), *FIFTY])
def test_fifty_kills_at_random_moments_change_no_bit_and_no_record(kind, number, processes, folder):
    """Every other kill waits for a new checkpoint first, so that the run gets on; the others come at any time. A run
    that reaches its end meanwhile is compared, and another begins.
    """
    chance = random.Random(kind)
    total = 40 * EPOCH
    expected = bits_of(run_kind(folder / "whole", kind, total))
    place, kills, furthest = folder / "killed", 0, 0

    def finished(answers):
        assert answers.get() == expected
        assert records_of(place) == records_of(folder / "whole")
        shutil.rmtree(place)

    while kills < number:
        process, answers = started(processes, place, kind, total)
        if kills % 2:
            before = newest_step(place)
            while process.is_alive() and newest_step(place) <= before:
                time.sleep(0.002)
            time.sleep(chance.uniform(0.0, 0.05))
        else:
            time.sleep(chance.uniform(0.0, 0.4))
        process.kill()
        process.join()
        if process.exitcode == 0:
            finished(answers)
            continue
        assert process.exitcode == -9
        kills, furthest = kills + 1, max(furthest, newest_step(place))
    assert furthest > (10 * EPOCH if number == 50 else 0)
    process, answers = started(processes, place, kind, total)
    process.join()
    finished(answers)


def started(processes, place, kind, total):
    answers = processes.SimpleQueue()
    process = processes.Process(target=work_on, args=(str(place), kind, total, answers))
    process.start()
    return process, answers


def newest_step(place):
    return max((int(path.name[5:]) for path in (place / "checkpoints").glob("step_*")), default=0)
