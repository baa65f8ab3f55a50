"""What is told while an epoch goes on: forwards only, up to its end, and of a GPU no more than it has done."""

from dataclasses import replace

import pytest
import torch

from tests.train.small import SMALL
from trueup.train import pace, train


@pytest.fixture(autouse=True)
def every_time(monkeypatch):
    monkeypatch.setattr(pace, "TELL_SECONDS", 0.0)


def test_a_training_tells_how_far_it_is_within_each_epoch(tmp_path):
    told: list[float] = []
    train(replace(SMALL, epochs=2, milestones=(), factors=()), tmp_path, device="cpu", progress=told.append)
    # 90 samples in steps of 32, 32 and 26, then 90 + 30 + 60 that are measured
    shares = [done / 450 for done in (96, 192, 270, 360, 390, 450)]
    assert told == pytest.approx([0.0, *shares, 1.0, *(1 + share for share in shares), 2.0])


def test_what_goes_on_is_told_from_where_it_was(tmp_path):
    def stop(done):
        if done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tmp_path, device="cpu", checkpoint_seconds=0, progress=stop)
    told: list[float] = []
    train(SMALL, tmp_path, device="cpu", progress=told.append)
    assert told[0] == 3
    assert told[-1] == 6


def test_of_a_gpu_no_more_is_told_than_it_has_done():
    class Event:
        done = False

        def query(self):
            return self.done

        def record(self):
            pass

    told: list[float] = []
    followed = pace.Pace(told.append, torch.device("cpu"), 100)
    followed.marker = Event()  # type: ignore[assignment]
    followed.begin(5)
    for _ in range(4):
        followed.add(10)
    assert told == [5.0]  # 40 were handed over, and the GPU has not come to the first mark
    followed.marker.done = True  # type: ignore[union-attr]
    followed.add(10)
    followed.add(10)
    assert told == [5.0, 5.1, 5.5]
