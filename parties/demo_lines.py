"""The text of the pre-training demo: lines of dialogue in four languages, out of a package."""

import random
from importlib.util import find_spec
from pathlib import Path

from splitlearn.errors import ManifestError

__all__ = ["LANGUAGES", "write_lines"]

# Of the package's 28 languages four that the demo's encoder, an English one, has pieces or at least
# letters for.
LANGUAGES = {"en": "english", "it": "italian", "es": "spanish", "uk": "ukrainian"}


def write_lines(folder: Path, *, languages: tuple[str, ...] = tuple(LANGUAGES)) -> dict[str, Path]:
    """A file of text for each language, a line each, conversations in one shuffled order.

    Raises ManifestError where the package of the extra "demo-pretrain" is missing.
    """
    import yaml

    data = _package("chatterbot_corpus") / "data"
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for language in languages:
        conversations: list[list[str]] = []
        for path in sorted((data / LANGUAGES[language]).glob("*.yml")):
            whole = yaml.safe_load(path.read_text(encoding="utf-8"))
            conversations += [_said(each) for each in whole["conversations"]]
        random.Random(7).shuffle(conversations)  # noqa: S311 - no secret
        lines = [line for conversation in conversations for line in conversation]
        written[language] = folder / f"{language}.txt"
        written[language].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written


def _said(conversation: object) -> list[str]:
    """The lines of one conversation; a few files have a single line in a conversation's place."""
    lines = conversation if isinstance(conversation, list) else [conversation]
    return [" ".join(line.split()) for line in lines if isinstance(line, str) and line.strip()]


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ManifestError(
            f"package {name} is missing; install it: pip install 'splitlearn[demo-pretrain]'"
        )
    return Path(spec.origin).parent
