"""The whole page."""

from collections.abc import Sequence
from datetime import date

from flexspec.bench.machine import describe_machine, describe_versions
from flexspec.calibration.report.known_acceptance import expected_tokens
from flexspec.calibration.report.measured import Workload
from flexspec.calibration.report.measured_text import constants, details, summary
from flexspec.calibration.report.published_text import acceptance_table, paper_range, published_table
from flexspec.calibration.report.sizes import Sizes

_SEARCHED = """\
# The strategy search

`flexspec search MODEL --hardware PRESET|FILE` and `flexspec.search` choose how a model and its drafters run on given hardware. Compared
are, for a workload (requests at once, length of prompt and answer, latency or throughput):

- replicas (DP), pipeline stages (PP), devices that share a stage's work (TP), and micro-batches in flight;
- for TP, how every operator of a block is divided: found exactly, by dynamic programming over the layouts of its values;
- how many layers each stage gets: found exactly, by dynamic programming over the distinct stage times;
- which drafters draft, beside the model or on a device of their own, and trees of every size and depth, none included.

A step costs what its operators take (`max(FLOPs / reached FLOP/s, bytes / reached bandwidth) + launch`, with what is reached looked up by
kind and number of tokens), its collectives and messages, drafting, and the host's own work; a token costs the step over the tokens that
the tree is expected to emit. What does not fit the memory is left out; all else is compared, by lower bounds where these decide, so the
choice is the best by these equations. `flexspec calibrate` measures the tables on this machine (`--hardware local`); presets of GPUs carry
data sheets and stated estimates."""

_MEASURED = """\
## Predicted and measured

Every strategy ran on 1 or 2 ranks with 1 thread each, {rounds} rounds of {steps} steps of all requests, strategy after strategy, so that
what else happens on the machine meets all alike. The search computes with what `flexspec calibrate` measures, which runs single operators,
collectives and the host's work, none of the strategies below. The memory of this virtual machine is up to 1.6 times as fast in some
minutes as in others when two ranks read it; predictions are by {calibrations}. {dtype} weights, prompts of {prompt} tokens; drafts come
from no drafter, but are right with probability {acceptance} each if the one before is, in measurement and prediction alike: chains of n, so
that a step emits {emitted} tokens. Times are milliseconds for a token of a request: the median of the rounds' steps over the tokens
that are expected of a step. *Regret* is the measured time of a choice over that of the fastest strategy, a *tie* a difference whose 95%
interval over the rounds, in pairs, includes none."""

_DETAILS = """\
### {title}

Milliseconds a token; the search's choice is bold. The last three columns are milliseconds of the predicted step: all of it, collectives
and messages, and the host's own work."""

_PUBLISHED = """\
## The paper's configurations

What the search predicts for the distributed configurations of SpecInfer's evaluation (Miao et al., ASPLOS 2024), float16, prompts of 64
tokens and 128 new ones, on the presets `a10gx4` and `a10gx4-2nodes`. These are **predictions from data sheets and estimates; nothing in
this section was measured**, and nothing was fitted to the paper's speed-ups. *Incremental* is the best strategy without speculation on
the same devices. The paper measured {paper} over other systems for these configurations, with a gain
that shrinks as the batch grows. Times are milliseconds."""

_ACCEPTANCE = """\
Acceptance is that of the paper's tables, the mean over its five data sets, decoded greedily with LLaMA-68M and LLaMA-7B: the top-k hit
rates give the ranks relative to each other, and one factor makes the paper's own tree emit what was counted with it. That the other
widths come out close is a check; k = 1 of the paper is lower than its own hit rates suggest. OPT-125M is taken to be as good as
LLaMA-68M, for which there are figures."""

_DIFFERENCES = """\
Where the predictions differ from the paper's range, and by which terms of the equations:

- *The tree.* The paper's default is one tree, <1,1,3,1,1,1,1,1>, with 20 nodes. The search takes another size for every batch: large ones
  at batch 1, where reading the weights bounds a pass and more tokens cost little (equation 1), and small ones at batch 16, where they
  are computed for every request. With the paper's tree the prediction lies within the paper's range at small batches and below it at
  large ones: 16 requests are 336 tokens a pass, which are priced at a share of an A10G's peak that is an estimate, and at the host's
  time for each node, which was measured on a CPU's runtime (equation 10). The paper itself finds narrower trees better there.
- *Acceptance.* It is taken to be the same at every depth and for every text (equation 9); in fact it falls with depth, where the SSM
  reads its own drafts. That makes the deep trees of the search look better than they are.
- *What else a step takes.* Launches are estimates of a tuned runtime. Where operators are launched one by one, each pass takes longer,
  and the many short passes of drafting most of all (the first term of equation 10), which brings every ratio down.
- *What it is compared with.* The ratio here is over the same runtime without speculation; the paper's range is over other systems.
- *Links.* Between the nodes a stage's output crosses the 100 Gb/s link once a step, with TP inside each node, as in the paper; TP of 8 over
  both nodes comes close to it only for a single request."""


def _limits(lost: float) -> str:
    """What the figures do not say."""
    lines = [
        "## Limits",
        "",
        "- What is measured runs on one machine, whose links are its memory. GPUs are priced by data sheets and estimates.",
        "- A virtual machine shares its memory's bandwidth with others, and it wanders between calibration and measurement.",
        "- Parts of the calibration and of what is measured were changed after earlier runs of this comparison, so it is not on unseen "
        "data.",
        "- Drafts follow what plain decoding emitted with the same plan; of the trees "
        f"{lost:.0%} at most had to be left empty, because rounding had made another text.",
        "- Drafts cost nothing but the host's time in what is measured; a draft model's passes are priced like the large model's.",
        "- Prompts are not part of the objective: the search counts decoding steps, at the context halfway through an answer.",
        "- Acceptance is an input. What `flexspec` has seen of a drafter (`--acceptance FILE`) is better than the assumption without it.",
    ]
    return "\n".join(lines)


def _calibrations(count: int) -> str:
    """What predictions rest on."""
    return "one calibration before" if count == 1 else f"the mean of {count} calibrations, before the first model and after each"


def _made(command: str) -> str:
    """Where the figures come from."""
    machine, versions = describe_machine(), describe_versions()
    return (
        f"Everything below was made by `{command}` on {date.today().isoformat()}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 1e9:.0f} GB; PyTorch {versions['torch']}, transformers {versions['transformers']}."
    )


def page(workloads: Sequence[Workload], sizes: Sizes, *, dtype: str, calibrations: int, lost: float, command: str) -> str:
    """Markdown."""
    emitted = ", ".join(f"{expected_tokens((1,) * n, [sizes.acceptance]):.2f} (n = {n})" for n in sizes.trees)
    measured = _MEASURED.format(
        calibrations=_calibrations(calibrations),
        rounds=sizes.rounds,
        steps=sizes.steps,
        dtype=dtype,
        prompt=sizes.prompt_tokens,
        acceptance=sizes.acceptance,
        emitted=emitted,
    )
    parts = [
        _SEARCHED,
        _made(command),
        measured,
        summary(workloads),
        "### Always the same strategy\n\nRegret of taking one strategy for every workload, beside the search's.",
        constants(workloads),
    ]
    for one in workloads:
        parts += [_DETAILS.format(title=one.title), details(one)]
    parts += [_PUBLISHED.format(paper=paper_range()), published_table(), _ACCEPTANCE, acceptance_table(), _DIFFERENCES, _limits(lost)]
    return "\n\n".join(parts) + "\n"
