"""The picture of a step: well-formed, every span in it, nothing outside its frame."""

from xml.etree import ElementTree as ET

from splitlearn.pipeline.chain import Run, StageCosts
from splitlearn.pipeline.simulate import simulate
from splitlearn.pipeline.timeline import timeline
from tests.pipeline.test_chain import chain

SVG = "{http://www.w3.org/2000/svg}"


def test_every_span_of_the_step_is_a_bar_inside_the_frame() -> None:
    run = simulate(chain(update_s=1.0), steps=2)
    picture = ET.fromstring(timeline(run, title="a <step> & more"))
    assert picture.find(f"{SVG}title").text == "a <step> & more"  # type: ignore[union-attr]
    bars = [group.find(f"{SVG}rect") for group in picture.iter(f"{SVG}g")]
    assert len(bars) == sum(span.step == 1 for span in run.spans)
    for bar in bars:
        assert bar is not None
        x, width = float(bar.get("x", "")), float(bar.get("width", ""))
        assert x >= 149.9
        assert x + width <= 961
    texts = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"trusted", "compute", "bottom forward", "optimiser", "0", "3"} <= texts


def test_one_step_and_no_step_are_pictures_too() -> None:
    quick = chain(
        bottom_s=1e-3, top_s=1e-3, bottom_backward_s=0.0, stages=(StageCosts(1e-3, 1e-3),)
    )
    assert " ms</text>" in timeline(simulate(quick, steps=1), title="one")
    ET.fromstring(timeline(Run((), (0.0,)), title="none"))
