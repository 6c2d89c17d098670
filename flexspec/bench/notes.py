"""What a reader of a benchmark's numbers should know, in words."""

from collections.abc import Sequence

from flexspec.bench.result import BenchResult, missing_batches


def notes_of(results: Sequence[BenchResult]) -> list[str]:
    """How to read the numbers.

    Args:
        results: of one benchmark, one a batch size.
    """
    settings, found = results[0].settings, []
    probability = settings["synthetic_acceptance"]
    if probability is not None:
        found.append(
            f"The acceptance is SYNTHETIC: drafts were made of plain decoding's own texts, each right with probability {probability:g} "
            "if its parent is, and cost next to nothing. This measures the engine and says nothing of any drafter."
        )
    if any(isinstance(row.tree, dict) for result in results for row in result.rows):
        found.append(
            "Adaptive trees go on learning, as they do in use: their statistics begin empty before the warm-up, or with those that were "
            "loaded, and follow the text to the last prompt."
        )
    for batch in (result.settings["batch"] for result in results):
        if batch > 1:
            found.append(
                f"{batch} prompts at a time: the clock runs from when all of them have their first token until the last has ended; "
                "tokens made in that time, by all, count."
            )
    if settings["repeat"] > 1:
        middle = ", the slower one of the two in the middle" if settings["repeat"] % 2 == 0 else ""
        found.append(f"Of the {settings['repeat']} runs of each prompt the one of median speed counts{middle}.")
    return found


def warnings_of(results: Sequence[BenchResult]) -> list[str]:
    """What must not be overlooked: peers and prompts left out, batch sizes cut short, and models that did not run natively.

    Args:
        results: of one benchmark, one a batch size.
    """
    found: list[str] = []
    for result in results:
        where = _where(result, results)
        found += [f"{where}peer {name} was left out: {reason}" for name, reason in result.left_out.items()]
        if result.interrupted:
            count = sum(len(sample.prompts) for sample in result.samples)
            prompts = "first prompt" if count == 1 else f"first {count} prompts"
            found.append(f"{where}interrupted: these are the results of the {prompts}")
        if result.undrafted:
            found.append(
                f"{where}for {result.undrafted:.1%} of the trees nothing was drafted, because rounding had made another text of the "
                "recorded one: acceptance is lower than asked for by that much"
            )
    missing = missing_batches(results)
    if missing:
        found.append(f"interrupted: nothing was measured with batch {', '.join(map(str, missing))}")
    first = results[0]
    if first.too_long:
        found.append(f"{_prompts(first.too_long)} left out, too long for the model: {', '.join(first.too_long)}")
    for result in results:
        if result.too_few:
            few = f"{_prompts(result.too_few)} left out, too few for another group: {', '.join(result.too_few)}"
            found.append(_where(result, results) + few)
    return [*found, *first.slow_targets]


def _where(result: BenchResult, results: Sequence[BenchResult]) -> str:
    return f"batch {result.settings['batch']}: " if len(results) > 1 else ""


def _prompts(ids: Sequence[str]) -> str:
    return "1 prompt was" if len(ids) == 1 else f"{len(ids)} prompts were"
