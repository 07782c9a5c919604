import pytest

from splitlearn.pretrain.words import MARK, words


@pytest.mark.parametrize("text", ["", "  ", "\u3000\n"])
def test_what_is_all_space_has_no_word(text: str) -> None:
    assert words(text) == []


def test_no_character_is_lost_but_for_spaces() -> None:
    text = "Ünïcode is 42% fun, n'est-ce pas?"
    assert "".join(words(text)).replace(MARK, " ").strip() == text
    assert {"4", "2", "%"} <= set(words(text))


def test_two_spellings_of_one_character_are_one_word() -> None:
    assert words("e\u0301te\u0301") == words("\u00e9t\u00e9")
    assert words("\uff11\uff12") == words("12")


def test_marks_stay_with_their_letters() -> None:
    assert words("हिन्दी") == [MARK + "हिन्दी"]
