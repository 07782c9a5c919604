"""How a text becomes words before a vocabulary divides them: one rule to count by and to train with."""

from tokenizers import Regex, normalizers, pre_tokenizers

__all__ = ["MARK", "normaliser", "splitter", "words"]

# Stands for the space before a word, as in sentencepiece.
MARK = "\u2581"


def normaliser() -> normalizers.Normalizer:
    """Unicode's NFKC; any run of white space is one space."""
    return normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )


def splitter() -> pre_tokenizers.PreTokenizer:
    """Words begin with MARK; digits and marks of punctuation stand alone."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True),
            pre_tokenizers.Punctuation(behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )


def words(text: str) -> list[str]:
    """The words of a text in their order.

    >>> words("Well,  don't!")
    ['▁Well', ',', '▁don', "'", 't', '!']
    """
    normal = _NORMALISER.normalize_str(text)
    return [word for word, _ in _SPLITTER.pre_tokenize_str(normal)] if normal else []


_NORMALISER, _SPLITTER = normaliser(), splitter()
