from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import load_decoder, load_encoder

ENCODER = """
[run]
folder = "runs"
[identity]
folder = "identity"
[peer]
party = "target"
listen = "127.0.0.1:7443"
[model]
path = "owner/model"
[data]
train = "de.txt"
evaluate = "de.txt"
[policy]
file = "policy.toml"
"""
DECODER = ENCODER.replace(
    '[run]\nfolder = "runs"', '[run]\nname = "de-en"\nfolder = "run"'
).replace("[policy]", "[schedule]\nsteps = 100\n[policy]")


def written(folder: Path, text: str) -> Path:
    (folder / "de.txt").write_text("eins\n")
    (folder / "policy.toml").write_text("")
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_both_files_are_read_with_their_defaults(tmp_path: Path) -> None:
    encoder = load_encoder(written(tmp_path, ENCODER))
    assert encoder.data.train.format == "txt"
    assert encoder.adapters.inner == 256
    decoder = load_decoder(written(tmp_path, DECODER))
    assert (decoder.codec.activation, decoder.adapters.encoder_trains) == ("int8+zstd", True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps = 100", "steps = 0", r"schedule\.steps is 0"),
        ("steps = 100", 'steps = 100\n[codec]\ngradient = "lowrank-8"', r"codec\.gradient is lowr"),
        (
            "steps = 100",
            'steps = 100\n[codec]\nactivation = "pca-0.3"',
            r"codec\.activation is pca",
        ),
        ('train = "de.txt"', 'train = "fr.txt"', r"there is no file .*fr\.txt"),
        (
            'party = "target"',
            'party = "target"\ndial = "127.0.0.1:1"',
            r"peer\.dial or peer\.listen",
        ),
        ("[model]", "[modle]", "modle is not a key"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        load_decoder(written(tmp_path, DECODER.replace(old, new)))


def test_a_digest_is_of_what_decides_the_numbers(tmp_path: Path) -> None:
    def digest(old: str = "", new: str = "", corpus: str = "a") -> str:
        return load_decoder(written(tmp_path, DECODER.replace(old, new))).digest(corpus=corpus)

    assert digest("steps = 100", "steps = 200") == digest()
    falls = 'name = "linear"\nsteps = '
    assert digest("steps = 100", falls + "100") != digest()
    assert digest("steps = 100", falls + "200") != digest("steps = 100", falls + "100")
    assert digest('name = "de-en"', 'name = "other"') == digest()
    assert digest("steps = 100", "steps = 100\nbatch_size = 8") != digest()
    assert digest(corpus="b") != digest()
