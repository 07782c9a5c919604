"""What the translation demo is compared with: both halves in one process, pre-trained or from scratch.

A process of its own, so that the two baselines run side by side:
`python -m parties.demo_translate_local ENCODER DECODER RESULT [--scratch]`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

__all__ = ["SCRATCH_RATE", "baseline", "main"]

# With every weight training, the rate that adapters learn at is too high.
SCRATCH_RATE = 5e-4


def baseline(encoder_file: Path, decoder_file: Path, *, scratch: bool) -> dict[str, Any]:
    """Train and score both halves here. scratch: with every weight drawn and training, for as many steps
    under the same schedule. Its steps take longer, so it has more than the time of the pre-trained pair.

    The score, its signature, steps and seconds of training.
    """
    import msgspec

    from parties.console import Display
    from parties.pairs import corpus_of, decoder_run, encoder_of
    from splitlearn.engine.pair.plain import PlainPair
    from splitlearn.engine.state.threads import use_threads
    from splitlearn.manifest import load_decoder, load_encoder
    from splitlearn.translation import DecoderShape, EncoderShape
    from splitlearn.translation.bleu import bleu_of
    from splitlearn.translation.scratch import from_scratch
    from splitlearn.translation.text import load_tokenizer

    use_threads(1)  # as the parties have
    one, other = load_encoder(encoder_file), load_decoder(decoder_file)
    run = decoder_run(other)
    terms, decoder = run.terms, run.decoder
    encoder = encoder_of(one, trains=terms.trains, seed=terms.seed)
    optimiser = terms.optimiser
    if scratch:
        optimiser = msgspec.structs.replace(optimiser, learning_rate=SCRATCH_RATE)
        encoder, decoder = from_scratch(
            encoder.frozen.config,
            words_V=decoder.words_V,
            encoder=EncoderShape(inner=one.adapters.inner),
            decoder=DecoderShape(inner=other.adapters.inner, reach=other.adapters.reach),
            seed=terms.seed,
        )
    corpus = corpus_of(one.data, tokenizer=load_tokenizer(one.model.path))
    pair = PlainPair(encoder, decoder, corpus, run.corpus, run.special, objective=run.objective)
    what = "from scratch" if scratch else "in one process"
    with Display(what, total=terms.schedule.total_steps) as display:
        began_s = time.monotonic()
        losses = pair.train(
            batch=run.batch,
            optimiser=optimiser,
            schedule=terms.schedule,
            seed=terms.seed,
            observe=display,
        )
        seconds = time.monotonic() - began_s
        display.begin("translating", total=len(pair.held_out))
        found = pair.translate(
            observe=display,
            at_once=run.evaluated,
            iterations=run.iterations,
            candidates=run.candidates,
        )
    score = bleu_of([text for _, text in found], references=[text for text, _ in found])
    return {
        "bleu": score.score,
        "signature": score.signature,
        "steps": len(losses),
        "seconds": round(seconds, 1),
        "losses": losses,
    }


def main() -> None:
    """The baseline as a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("encoder", type=Path)
    parser.add_argument("decoder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--scratch", action="store_true")
    given = parser.parse_args()
    found = baseline(given.encoder, given.decoder, scratch=given.scratch)
    given.result.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
