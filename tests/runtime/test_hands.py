"""Hands run every job, each on one thread, and tell what failed."""

import threading

import pytest
import torch

from kvboost.runtime.kv.workers import Hands


@pytest.fixture(params=[1, 2])
def hands(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    made = Hands()
    yield made
    made.close()
    torch.set_num_threads(before)


def test_every_job_is_run(hands):
    done = []
    hands.run(lambda i=i: done.append(i) for i in range(50))
    assert sorted(done) == list(range(50))


def test_the_first_failure_is_raised_after_all_have_ended(hands):
    ended = []

    def job(i):
        if i in (3, 5):
            raise ValueError(str(i))
        ended.append(i)

    with pytest.raises(ValueError, match="3"):
        hands.run((lambda i=i: job(i)) for i in range(4))
    assert ended == [0, 1, 2]


def test_a_failure_of_the_source_is_raised_and_what_was_begun_ends(hands):
    ended = []

    def source():
        yield lambda: ended.append(1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        hands.run(source())
    assert ended == [1]


def test_jobs_compute_on_one_thread_and_others_keep_theirs(hands):
    threads = torch.get_num_threads()
    seen = []
    # All of them at once: one that only begins sets its own threads, which a thread that begins meanwhile may see.
    together = threading.Barrier(threads)

    def look():
        together.wait(30.0)
        seen.append(torch.get_num_threads())

    hands.run([look] * threads)
    assert set(seen) == {1}
    assert torch.get_num_threads() == threads
    later = threading.Thread(target=lambda: (torch.ones(4).sum(), seen.append(torch.get_num_threads())))
    later.start()
    later.join()
    assert seen[-1] == threads


def test_hands_that_were_closed_start_again(hands):
    done = []
    for _ in range(2):
        hands.run([lambda: done.append(1)])
        hands.close()
    assert done == [1, 1]
