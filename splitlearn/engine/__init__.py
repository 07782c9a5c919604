"""The step loops of all parties, a folder for each kind of conversation, over what they share.

`trusted`, `compute`, `pair` and `streams` know nothing of one another's loops, but that all stand on
`conversation`, `payloads` and `state`; `job` makes a run out of a file. Import the file that is needed: a
compute party loads nothing that reads data.
"""

# Nothing is offered here: importing one file must not load the others.
__all__ = ()
