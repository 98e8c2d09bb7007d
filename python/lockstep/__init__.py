"""Lockstep: data-parallel training with the same bits on any number of workers.

``lockstep.torch`` trains PyTorch models.  The command ``lockstep`` starts the workers:

    lockstep run -n 3 -- python train.py
"""

from lockstep._library import Error, version

__all__ = ["Error", "version"]
__version__ = version()
