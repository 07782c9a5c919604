"""The step loops of both parties, and what a run needs around them: checkpoints, seeds, optimisers.

Import the file that is needed: a compute party loads nothing that reads data.
"""

# Nothing is offered here: importing one file must not load the others.
__all__ = ()
