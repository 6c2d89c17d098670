"""Where models come from: names, folders, GGUF files, modules; their tokenizers, and layer-pruned drafts."""

from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.prune import prune_layers
from flexspec.models.same_tokenizer import check_same_tokenizer

__all__ = ["LoadedModel", "check_same_tokenizer", "load_model", "prune_layers"]
