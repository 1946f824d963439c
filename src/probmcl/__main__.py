"""Entry point of `python -m probmcl`, which torchrun uses."""

from probmcl.cli import main

main()
