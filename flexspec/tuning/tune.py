"""A whole tuning: texts, hidden states, one draft model after the other, and the report."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from flexspec.api.engine import make_engine
from flexspec.api.lower import lower
from flexspec.api.memory import available_memory, check_weights_fit
from flexspec.api.prompts import PromptEncoder
from flexspec.bench.prompt_text import PromptText
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.models.draft_folder import save_draft
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.strategy import Strategy
from flexspec.tuning.checkpoint import trainable
from flexspec.tuning.config import FEWEST_TEXTS, HELD_OUT, TuneConfig
from flexspec.tuning.corpus import Corpus, Int64, Text
from flexspec.tuning.draft_models import check_settings, check_width, new_member, state_names
from flexspec.tuning.draft_vocabulary import commonest_tokens, share_of
from flexspec.tuning.evaluation import RankTable
from flexspec.tuning.fingerprint import fingerprint
from flexspec.tuning.make_corpus import Source, make_corpus
from flexspec.tuning.pool import add_guessed, joint_coverage
from flexspec.tuning.progress import bar
from flexspec.tuning.report import MemberReport, TuneReport
from flexspec.tuning.rereading import Rereading
from flexspec.tuning.run_folder import RunFolder
from flexspec.tuning.self_made import SelfMadeQuestions
from flexspec.tuning.states import StateFile
from flexspec.tuning.trainer import Trainer, TrainingData
from flexspec.tuning.user_prompts import UserPrompts, usable_prompts

_CORPUS = "corpus"
_STATES = "states.bin"
_BATCH = 64
"""Texts that are written at once; part of what a seed repeats, since rounding may depend on it."""
_MAX_LEN = 2048


def tune(config: TuneConfig, out: Path, *, prompts: Sequence[PromptText] | None, resume: bool, console: Console) -> TuneReport:
    """Make draft models for a language model, and write them to a folder.

    Killed at any point, the same call with `resume` goes on and gives what an unbroken one would have given.

    Args:
        config: what is asked for.
        prompts: what `config.data` holds; None if that is None.
        out: the folder; each member of a pool is in a folder of its own in it, a single draft model in `draft`.
        resume: go on with what is in the folder.
        console: for progress bars.

    Raises:
        UsageError: if something does not fit, or the folder holds another run.
    """
    folder = RunFolder(out, config, resume=resume)
    if resume and (report := folder.report()) is not None:
        (out / _STATES).unlink(missing_ok=True)
        return report
    check_weights_fit("model", config.model, available_memory())
    llm = load_model(config.model)
    check_settings(llm, config.draft_model)
    states = state_names(llm.module, config.draft_model.kind)
    with torch.inference_mode(False):
        compilation = lower(
            llm, dtype=torch.bfloat16, buckets=Strategy(dtype="bfloat16").buckets, store=WeightStore(), hidden_states=states
        )
    check_width(llm, compilation.model, states)
    _write_texts(config, prompts, llm, compilation.model, folder, console)
    texts = list(Corpus(folder.path / _CORPUS))
    return _Tuning(config, folder, llm, compilation.model, states, texts, console).run()


def _write_texts(
    config: TuneConfig,
    prompts: Sequence[PromptText] | None,
    llm: LoadedModel,
    model: CompiledModel,
    folder: RunFolder,
    console: Console,
) -> None:
    source = _source(config, prompts, llm, model)
    asked = None if prompts is None else [(prompt.text, prompt.chat) for prompt in prompts]
    folder.claim(fingerprint(asked, llm.module, texts=()))
    corpus = Corpus(folder.path / _CORPUS)
    if isinstance(source, SelfMadeQuestions):
        source = Rereading(source, corpus, seed=config.training.seed, num_tokens=config.num_tokens)
    with bar(console, "writing texts, tokens", config.num_tokens) as progress:
        make_corpus(source, corpus, num_tokens=config.num_tokens, num_prompts=config.num_prompts, progress=progress.at)


def _source(config: TuneConfig, prompts: Sequence[PromptText] | None, llm: LoadedModel, model: CompiledModel) -> Source:
    max_len = min(_MAX_LEN, model.max_positions or _MAX_LEN)
    room = max_len - config.answer_tokens
    if room < 1:
        raise UsageError(
            f"answers of {config.answer_tokens} tokens do not fit: model {llm.name} has {max_len} positions; give shorter ones"
        )
    engine = make_engine(model, llm, Strategy(dtype="bfloat16", max_batch=_BATCH, max_len=max_len), drafters=[])
    needed, available = engine.cache.storage.num_bytes, available_memory()
    if needed > available:
        raise UsageError(
            f"{needed / 1e9:.2f} GB are needed for the KV cache of {_BATCH} texts at once, and {available / 1e9:.2f} GB are available: "
            "free some memory, or give a smaller model"
        )
    if prompts is None:
        return SelfMadeQuestions(engine, llm.tokenizer, seed=config.training.seed, max_tokens=config.answer_tokens)
    encoder = PromptEncoder(llm.tokenizer, bos_token_id=llm.bos_token_id, name=llm.name)
    has_template = llm.tokenizer is not None and bool(llm.tokenizer.chat_template)
    usable = usable_prompts(prompts, encoder, has_template=has_template, room=room)
    if len(usable) < FEWEST_TEXTS:
        raise UsageError(
            f"{len(usable)} usable prompts are too few to train on and to hold some out: give at least {FEWEST_TEXTS} with text, or none"
        )
    return UserPrompts(engine, usable, max_tokens=config.answer_tokens)


class _Tuning:
    def __init__(
        self,
        config: TuneConfig,
        folder: RunFolder,
        llm: LoadedModel,
        model: CompiledModel,
        states: Sequence[str],
        texts: Sequence[Text],
        console: Console,
    ) -> None:
        self.config, self.folder, self.llm, self.texts, self.console = config, folder, llm, texts, console
        self.state_names = states
        if len(texts) < FEWEST_TEXTS:
            raise UsageError(f"{len(texts)} texts are too few to train on and to hold some out: give prompts for at least {FEWEST_TEXTS}")
        if any(text.tokens.max() >= llm.vocab_size for text in texts):
            raise UsageError(f"{str(folder.path / _CORPUS)!r} holds texts of a model with more tokens than {llm.name}: give another folder")
        self.states = StateFile(folder.path / _STATES, texts, model)
        self.held_out = range(HELD_OUT - 1, len(texts), HELD_OUT)
        self.train = [number for number in range(len(texts)) if number not in self.held_out]
        self.print = fingerprint(config.to_json(), llm.module, texts)

    def run(self) -> TuneReport:
        config = self.config
        with bar(self.console, "hidden states of texts", len(self.texts)) as progress:
            self.states.fill(progress.at)
        trained_on = [self.texts[number] for number in self.train]
        chosen = commonest_tokens(trained_on, vocab_size=self.llm.token_id_limit, count=config.draft_model.vocab_trim)
        data = TrainingData(texts=self.texts, states=self.states, train=self.train, held_out=self.held_out, guessed={})
        members: list[MemberReport] = []
        tables: list[RankTable] = []
        for place in range(config.pool):
            member, table = self._member(place, chosen, data)
            members.append(member)
            tables.append(table)
        report = TuneReport(
            settings=config.to_json(),
            texts=len(self.texts),
            held_out=len(self.held_out),
            answer_tokens=sum(int(text.is_answer.sum()) for text in self.texts),
            draft_vocabulary=(len(chosen), round(share_of(chosen, [self.texts[number] for number in self.held_out]), 4)),
            members=members,
            coverage=joint_coverage(tables, self.held_out),
        )
        self.folder.finish(report)
        self.states.remove()
        return report

    def _member(self, place: int, chosen: Int64, data: TrainingData) -> tuple[MemberReport, RankTable]:
        config = self.config
        name = "draft" if config.pool == 1 else f"draft-{place + 1}"
        token_ids = torch.from_numpy(chosen)
        seed = config.training.seed + place
        member = new_member(self.llm, config.draft_model, token_ids=token_ids, states=self.state_names, seed=seed)
        with bar(self.console, f"training {name}, steps", 1) as progress:
            trainer = Trainer(
                member.objective,
                data,
                config.training,
                checkpoint=self.folder.path / f"{name}.checkpoint",
                fingerprint=f"{self.print}-{place}",
                report=lambda step, total, loss: progress.at(step, total=total, detail=f"loss {loss:.3f}"),
            )
            trained = trainer.run()
        is_trimmed = config.draft_model.vocab_trim is not None
        save_draft(self.folder.path / name, member.description, member.objective.weights(), token_ids if is_trimmed else None)
        table = RankTable(member.objective, depths=1)
        numbers = self.held_out if place + 1 == config.pool else range(len(self.texts))
        with bar(self.console, f"rating {name} on texts", len(numbers)) as progress:
            for count, number in enumerate(numbers, start=1):
                table.add(self.texts, self.states, number)
                progress.at(count)
        add_guessed(data.guessed, table, numbers)
        parameters = sum(parameter.numel() for parameter in trainable(member.objective.module).values())
        return MemberReport(folder=name, parameters=parameters, trained=trained), table
