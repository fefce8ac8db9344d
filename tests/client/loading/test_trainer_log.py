"""What the trainer has taken, with time in the test's hand."""

from forebay.daemon.session import Taken
from forebay.loading.trainer_log import TrainerLog


def test_waits_and_samples_add_up_and_the_present_wait_counts() -> None:
    now = [100.0]
    log = TrainerLog(lambda: now[0])
    assert log.taken() == Taken()
    log.waits(100.0)
    now[0] = 103.0
    assert log.taken() == Taken(0, 3.0, 3.0)
    log.took(104.0, 32)
    now[0] = 110.0
    assert log.taken() == Taken(32, 4.0, 0.0)
    log.waits(110.0)
    log.took(110.5, 8)
    assert log.taken() == Taken(40, 4.5, 0.0)


def test_a_wait_that_fails_ends_without_samples() -> None:
    log = TrainerLog(lambda: 9.0)
    log.waits(1.0)
    log.took(3.0, 0)
    log.took(4.0, 0)
    assert log.taken() == Taken(0, 2.0, 0.0)
