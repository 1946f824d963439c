"""`python -m probmcl`, which is how torchrun starts it."""

from probmcl.cli import main

main()
