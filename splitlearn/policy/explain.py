"""Every rule that can stop a message, in plain words: what it forbids, why, and what to do.

A rule's name is what stands after `rule` in an error and in the log's denied record. One table;
tests hold it against every name that the library can raise.
"""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from splitlearn.errors import ManifestError

__all__ = ["EXPLANATIONS", "LIMITS", "Explanation", "explanation"]


class Explanation(NamedTuple):
    """Three sentences, each without its full stop."""

    forbids: str
    why: str
    remedy: str


_OURS = "this is a fault of the program or of a changed stage, not of your files; report it"

# By whole name.
_NAMED: Mapping[str, Explanation] = {
    "no-rule": Explanation(
        "a message of a kind, direction and peer that no rule of the policy names",
        "a policy is an allow-list: what nobody thought of does not leave",
        "change the job (mode, cut.train_bottom), take a policy that has the rule, or add one; "
        "`splitlearn policy check` says beforehand which are missing",
    ),
    "gate-shut": Explanation(
        "every message after the first one that was refused or failed",
        "what goes wrong once may be half of something worse, so the door does not open again",
        "look at the refusal before it in the log, mend its cause, and run the same command again",
    ),
    "content.arguments": Explanation(
        "a message that comes with more or less than its kind carries",
        "what is not expected could be anything",
        _OURS,
    ),
    "content.batch": Explanation(
        "a tensor that comes without the ids and labels of its own batch, or with those of another",
        "the gate compares what leaves with what must not; without that it cannot tell",
        _OURS,
    ),
    "content.distinct": Explanation(
        "a column that takes few values over rows that ought to differ all",
        "classes look like that, hidden states do not",
        "look for a layer that rounds, or that writes a class into the hidden state; a cut at an "
        "embedding of few values cannot be sent",
    ),
    "content.finite": Explanation(
        "NaN and infinity in what leaves",
        "a NaN has 22 bits of room that arithmetic never looks at, and training is lost anyway",
        "lower optimiser.learning_rate, or look for the layer that divides by zero",
    ),
    "content.floats": Explanation(
        "rows that are not a matrix of floating-point numbers",
        "token ids and labels are whole numbers, hidden states never are",
        _OURS,
    ),
    "content.frame": Explanation(
        "bytes that read back as another message than was meant",
        "what counts is what the peer will read, so the gate reads its own bytes before they go",
        _OURS,
    ),
    "content.ids": Explanation(
        "a column that is a straight line in the batch's token ids",
        "ids are the text",
        "look for a stage that adds positions or ids to the hidden state unprojected; an ordinary "
        "model has none",
    ),
    "content.labels": Explanation(
        "a column that equals the batch's labels or is a straight line in them",
        "labels stay with the trusted party",
        "look for a label among the model's inputs; an ordinary model has none",
    ),
    "content.layout": Explanation(
        "parts that are not those which the codec declares",
        "an extra part is room for anything",
        _OURS,
    ),
    "content.lengths": Explanation(
        "lengths beside a tensor that are not those of its batch",
        "the peer rebuilds masks from them, and a free number is room for anything",
        _OURS,
    ),
    "content.max_row_norm": Explanation(
        "a row from the peer that is longer than max_row_norm of its rule",
        "a peer that sends huge numbers can spoil the training, or the weights that come after",
        "ask the peer what happened; raise max_row_norm only if rows of that length are expected",
    ),
    "content.rows": Explanation(
        "a tensor with more or fewer rows than its batch has tokens",
        "rows that belong to no token are room for anything",
        _OURS,
    ),
    "content.samples": Explanation(
        "hashes of sample ids that repeat, do not ascend, or are of another length",
        "what stands in their place is no hash, and could be anything",
        _OURS,
    ),
    "content.whole": Explanation(
        "whole numbers where a hidden state should be",
        "ids, labels and counts are whole numbers; a hidden state holds one by accident once in "
        "millions of values",
        "look for a layer that rounds before the cut; the codec may round, the model may not",
    ),
    "guard.label_correlation": Explanation(
        "rows of which one plain number an example (mean, norm, main direction) tells its label "
        "better than label_correlation of [guard] allows",
        "whoever gets such rows reads the labels from them, without any training",
        "send none of that kind (mode features sends no gradients), take the label out of the "
        'model\'s inputs, or set action = "warn" where the peer may know the labels',
    ),
    "leakage.max_label_auc": Explanation(
        "a job whose preflight, on public text, ranked the labels better than [leakage] allows",
        "what an attack of ours gets, a better one gets too",
        "send no gradients (mode features), or raise max_label_auc where the peer may know the labels",
    ),
    "leakage.max_token_recovery": Explanation(
        "a job whose preflight, on public text, recovered more of the tokens than [leakage] allows",
        "what an attack of ours gets, a better one gets too",
        "raise cut.bottom, lower cut.lower.rank, or raise max_token_recovery where the peer may read "
        "the text",
    ),
    "leakage.preflight": Explanation(
        "training under a policy with [leakage] before a preflight of this very job stayed within it",
        "a limit that nobody measures is none",
        "run splitlearn trusted preflight, again after each change of the job",
    ),
}

# By what follows a rule's id, as in activation.max_columns.
LIMITS: Mapping[str, Explanation] = {
    "codecs": Explanation(
        "rows that are written in a codec which the rule does not list",
        "a codec decides how much of each number travels",
        "name one of the rule's codecs in [codec] of the job, or add this one to the rule",
    ),
    "dtypes": Explanation(
        "parts of a number type that the rule does not list",
        "whole numbers in place of floating-point ones are how ids and labels would travel",
        "list what the codec writes: F32 for identity, F16 and I8 for fp16, BF16 for bf16, I8 and "
        "F32 for int8, U8 for anything with zstd",
    ),
    "linkable": Explanation(
        "examples that bear a pseudonym, the same in every epoch",
        "the peer can then put together all that it ever got of one example, and sees what changed",
        "take a codec without delta-, or set linkable = true where the peer may tell examples apart",
    ),
    "generating": Explanation(
        "rows of a text that the model goes on with, token by token",
        "a message for each token shows the peer when each was made, and the peer's layers have a say "
        "in what the text becomes",
        "set generating = true on the rule about activations, at both parties, where that may be",
    ),
    "max_rows": Explanation(
        "more tokens in one message",
        "it bounds what one message can give away",
        "raise schedule.micro_batches, lower schedule.batch_size or data.max_length, or raise the limit",
    ),
    "max_columns": Explanation(
        "more numbers a token: the model's width, or the rank of a low-rank cut",
        "each number more tells more of the token; a low rank bounds it and guarantees nothing",
        "set method and rank of cut.lower (activation, input_gradient) or cut.upper (output, "
        "gradient), or raise the limit",
    ),
    "max_examples": Explanation(
        "more examples in one message",
        "it bounds what one message can give away",
        "raise schedule.micro_batches or lower schedule.batch_size (held-out examples travel a whole "
        "batch at a time), or raise the limit",
    ),
    "max_length": Explanation(
        "a longer text, counted in tokens",
        "lengths of texts are seen by the peer, and long ones are rare and tell the most",
        "lower data.max_length, or raise the limit",
    ),
    "max_message_bytes": Explanation(
        "a larger message, counted as it lies on the wire",
        "it bounds what one message can give away",
        "raise schedule.micro_batches, lower schedule.batch_size, narrow the cut, or raise the limit",
    ),
    "max_run_bytes": Explanation(
        "more bytes under this rule in one run, restarts included",
        "a budget: a run that goes round and round sends the same texts again and again",
        "lower schedule.epochs or schedule.steps, take a smaller codec or rank, or raise the limit "
        "and begin a new run",
    ),
}

# What a denied record names where it was not the policy that stopped a message, but an error.
_ERRORS: Mapping[str, Explanation] = {
    "ChannelError": Explanation(
        "a message while the connection is lost",
        "what cannot be delivered in order is not sent",
        "run the same command again; `splitlearn doctor` says why two parties do not connect",
    ),
    "IdentityError": Explanation(
        "a message to or from a party that is not the one it should be",
        "a name without a valid certificate is nobody's",
        "run `splitlearn doctor` with the job or compute file",
    ),
    "ManifestError": Explanation(
        "a message that cannot be made from these settings",
        "the codec or the cut does not fit what the job asks for",
        "mend the key that the error names",
    ),
    "PeerError": Explanation(
        "a message that goes against what both sides agreed",
        "a peer that breaks one rule is not trusted with the next message",
        "talk to the people who run the other side",
    ),
    "SessionError": Explanation(
        "a message that is not legal at this moment of the conversation",
        "messages that are repeated, reordered or out of turn are how logs are made to disagree",
        "compare the versions of both sides; if they are equal, report it",
    ),
    "SplitLearnError": Explanation(
        "a message while something else went wrong",
        "the door shuts at any fault",
        "read the error that the run ended with",
    ),
    "WireError": Explanation(
        "bytes that are no legal message",
        "bytes from a peer are taken strictly or not at all",
        "compare the versions of both sides; if they are equal, talk to the people who run the other "
        "side",
    ),
}

# All of them; a limit's name stands under its rule's place holder.
EXPLANATIONS: Mapping[str, Explanation] = {
    **_NAMED,
    **{f"RULE.{limit}": explained for limit, explained in LIMITS.items()},
    **_ERRORS,
}


def explanation(rule: str) -> Explanation:
    """What a rule's name means. ManifestError with the nearest name if there is no such rule.

    >>> explanation("activation.max_length").forbids
    'a longer text, counted in tokens'
    """
    owner, _, limit = rule.rpartition(".")
    if rule in EXPLANATIONS:
        return EXPLANATIONS[rule]
    if owner and limit in LIMITS and "." not in owner:
        return LIMITS[limit]
    names = {**EXPLANATIONS, **{f"{owner}.{name}": None for name in LIMITS}}
    near = difflib.get_close_matches(rule, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ManifestError(
        f"there is no rule {rule!r}; {hint}`splitlearn policy explain` lists them all, and the id of a "
        "rule of your own takes --policy FILE"
    )
