import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.pretrain import vocabulary as room
from splitlearn.pretrain.counts import count, merge
from splitlearn.pretrain.vocabulary import Kind, load_vocabulary, train_vocabulary
from tests.babble import lines, vocabulary
from tests.tiny import real_model_folder

SCRIPTS = {
    "en": "the weather is fine today and the day is long",
    "zh": "今天天气很好我们去公园散步",
    "ja": "今日はとても良い天気ですね散歩に行きましょう",
    "th": "วันนี้อากาศดีมากเราไปเดินเล่นกัน",
    "ar": "الطقس جميل اليوم ونحن في الحديقة",
    "hi": "आज मौसम बहुत अच्छा है और दिन लंबा है",
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_all_scripts_come_back_and_together_take_fewer_ids_than_characters(kind: Kind) -> None:
    parties = [count([text] * 5, minimum=3) for text in SCRIPTS.values()]
    trained = train_vocabulary(merge(parties, total=5_000), size=600, kind=kind)
    assert trained.size <= 600
    whole = sum(len(trained.encode(text)) for text in SCRIPTS.values())
    assert whole < 0.9 * sum(map(len, SCRIPTS.values()))
    for text in SCRIPTS.values():
        ids = trained.encode(text)
        assert trained.unk not in ids
        assert trained.tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_bpe_of_the_same_pieces_is_the_same_file() -> None:
    pieces = merge([count(lines(200), minimum=2)], total=10_000)
    first, again = (train_vocabulary(pieces, size=150, kind="bpe") for _ in range(2))
    assert first == again
    assert first.text == again.text
    turned = dict(reversed(list(pieces.items())))
    assert train_vocabulary(turned, size=150, kind="bpe").digest == first.digest


def test_the_digest_is_that_of_the_file_and_a_file_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    vocabulary().save(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == vocabulary().digest
    loaded = load_vocabulary(path, digest=vocabulary().digest)
    assert loaded == vocabulary()
    assert load_vocabulary(tmp_path) == loaded
    # Spelled otherwise, with somebody's padding, it is the same vocabulary.
    whole = json.loads(path.read_text(encoding="utf-8"))
    whole["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    path.write_text(json.dumps(whole, indent=3))
    padded = load_vocabulary(path)
    assert padded.digest == vocabulary().digest
    assert padded.encode("baba") == vocabulary().encode("baba")


def test_another_vocabulary_than_the_agreed_is_refused(tmp_path: Path) -> None:
    vocabulary().save(tmp_path / "tokenizer.json")
    with pytest.raises(ManifestError, match="take the vocabulary that the others have"):
        load_vocabulary(tmp_path / "tokenizer.json", digest="0" * 64)


def test_the_vocabulary_of_a_real_model_is_read() -> None:
    real = load_vocabulary(real_model_folder())
    assert (real.size, real.pad, real.unk, real.cls, real.sep, real.mask) == (
        *(30_522, 0, 100, 101, 102, 103),
    )
    assert real.encode("a fine day") == [1037, 2986, 2154]


@given(st.text(max_size=60))
def test_no_text_makes_a_special_token_but_the_unknown(text: str) -> None:
    known = vocabulary()
    for each in (text, f"[CLS]{text}[MASK] [SEP][PAD]"):
        ids = known.encode(each)
        assert not (known.special - {known.unk}) & set(ids)
        assert all(0 <= number < known.size for number in ids)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ('{"version": "1.0"}', "no tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ManifestError, match=says):
        load_vocabulary(tmp_path)


def test_a_file_that_is_not_there_too_large_or_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ManifestError, match=r"give a tokenizer\.json"):
        load_vocabulary(tmp_path)
    with pytest.raises(ManifestError, match="cannot be written"):
        vocabulary().save(tmp_path / "none" / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="UTF-8"):
        load_vocabulary(tmp_path)
    monkeypatch.setattr(room, "LIMIT_BYTES", 1)
    with pytest.raises(ManifestError, match="more than 1 bytes"):
        load_vocabulary(tmp_path)


def test_a_vocabulary_without_a_mask_is_refused(tmp_path: Path) -> None:
    text = vocabulary().text.replace("[MASK]", "[OTHER]")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"has no \[MASK\] \(nor <mask>\)"):
        load_vocabulary(tmp_path)


def test_names_of_other_families_are_known(tmp_path: Path) -> None:
    text = vocabulary().text
    for name, other in (("[PAD]", "<pad>"), ("[CLS]", "<s>"), ("[MASK]", "<mask>")):
        text = text.replace(name, other)
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    loaded = load_vocabulary(tmp_path)
    assert (loaded.pad, loaded.mask) == (vocabulary().pad, vocabulary().mask)
    assert loaded.digest != vocabulary().digest


@pytest.mark.parametrize("size", [10, 2**21])
def test_a_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(ManifestError, match="expected 64 to 1048576"):
        train_vocabulary({"ab": 3}, size=size, kind="bpe")


def test_more_letters_than_ids_are_refused() -> None:
    pieces = {chr(0x4E00 + n): 3 for n in range(100)}
    with pytest.raises(ManifestError, match="larger --size"):
        train_vocabulary(pieces, size=80, kind="unigram")
