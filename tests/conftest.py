"""Every test runs without a network, on one thread unless PROBMCL_TEST_THREADS says otherwise."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # missing weights are an error at once, not after a minute of retries
os.environ["OMP_NUM_THREADS"] = os.environ.get("PROBMCL_TEST_THREADS", "1")  # also in the processes that tests start
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # more threads on busy cores slow small operations down

# How long an example takes depends on the machine, so no test has a deadline.
settings.register_profile("probmcl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("probmcl")
