import pytest
from transformers.utils import logging

from splitlearn.data.quiet import quiet


def bars(*, shown: bool) -> None:
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("shown", [True, False])
def test_the_library_is_as_it_was_whatever_happened_in_between(shown: bool) -> None:
    before, had = logging.get_verbosity(), logging.is_progress_bar_enabled()
    bars(shown=shown)
    try:
        with quiet():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() > logging.ERROR
            raise KeyError("half way")
    except KeyError:
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (before, shown)
    finally:
        bars(shown=had)
