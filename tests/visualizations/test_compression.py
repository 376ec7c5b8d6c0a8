"""What is drawn of few bits is what formats make of numbers, and what ranks send."""

import pytest
import torch

from reference.compression.formats import FORMATS
from reference.errors import BadInput
from visualizations import by_link, compression_widget, few_bits

from .reading import assert_readable, drawn

X = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * torch.logspace(-8, 0, 4096, base=2.0)
WAYS = {"DDP": 1750e3, "ZeRO-3": 2625e3, "ZeRO++": 580e3}
SECONDS = {"100 Mb/s": {"DDP": 0.14, "ZeRO-3": 0.21, "ZeRO++": 0.047}, "1 Gb/s": dict.fromkeys(WAYS, 0.01)}


@pytest.mark.parametrize("count", [1, 3, 6])
def test_each_format_has_a_chart_that_can_be_read(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    formats = dict(list(FORMATS.items())[:count])
    picture = few_bits.draw(X, formats, title="what few bits make of numbers")
    assert_readable(picture, monkeypatch)
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert [words.partition(":")[0] for words in texts if words.endswith(" bits")] == list(formats)


def test_ratios_are_of_what_arrives() -> None:
    got = few_bits.arrived(X, FORMATS["int4"])
    assert torch.equal(got, FORMATS["int4"].decode(FORMATS["int4"].encode(X), len(X)))
    magnitudes, ratios = few_bits.sample(X[:8], got[:8])
    assert 2.0**magnitudes * ratios == pytest.approx((got[:8] * X[:8].sign()).double().numpy(), abs=1e-6)
    error, lost = few_bits.loss_of(X, FORMATS["int4"])
    assert 0.05 < error < 0.2 and lost == pytest.approx(float(((got == 0) & (X != 0)).double().mean())) and lost > 0.1


def test_bars_are_as_long_as_bytes_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = by_link.draw(WAYS, SECONDS, title="fewer bytes, less time", what="leaves a node")
    assert_readable(picture, monkeypatch)
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert {"1.75 MB", "580 KB", "47 ms", "210 ms"} <= set(texts)
    assert [bar.get_width() for bar in picture.axes[0].patches] == list(WAYS.values())
    assert [bar.get_width() for bar in picture.axes[1].patches] == [0.14, 0.21, 0.047]


@pytest.mark.parametrize("numbers", compression_widget.ELEMENTS)
@pytest.mark.parametrize("more", [{}, {"ranks": 32, "link": "100 Mb/s", "block": 16}, {"ranks": 2, "link": "NVLink 4"}])
def test_every_choice_can_be_read(monkeypatch: pytest.MonkeyPatch, numbers: str, more: dict) -> None:
    assert_readable(compression_widget.Choice(numbers=numbers, **more).draw(), monkeypatch)


def test_the_widget_counts_bytes_and_errors() -> None:
    four = compression_widget.Choice(numbers="int4", ranks=16)
    once, around = four.errors()
    assert once < 0.7 * around, "a ring rounds again and again"
    assert compression_widget.Choice(numbers="int8", ranks=16).errors()[0] < once / 10
    sent = four.sent()
    assert sent["32 bits"] / sent["int4"] == pytest.approx(32 / 4.125, rel=1e-4)


REFUSED = {
    "zeros": (lambda: few_bits.draw(torch.zeros(3), FORMATS, title=""), "nothing to draw"),
    "no format": (lambda: few_bits.draw(X, {}, title=""), "nothing to draw"),
    "no ways": (lambda: by_link.draw({}, {}, title="", what=""), "nothing to compare"),
    "a way is missing": (lambda: by_link.draw(WAYS, {"1 Gb/s": {"DDP": 1.0}}, title="", what=""), "nothing to compare"),
    "no such format": (lambda: compression_widget.explore(numbers="int3"), "no format 'int3'"),
    "no such link": (lambda: compression_widget.explore(link="string"), "no link 'string'"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_drawn_is_refused(wrong: str) -> None:
    draw, words = REFUSED[wrong]
    with pytest.raises(BadInput, match=words):
        draw()
