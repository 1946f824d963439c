"""Every test runs on one thread and without a network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # a missing weight is an answer at once, not a minute of retries
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # also in the processes that tests start

import torch

torch.set_num_threads(1)  # two threads on busy cores make small operations ten times slower
