"""The GGUF file that a model was read from."""

from pathlib import Path

from gguf import GGUFReader, LlamaFileType

from flexspec.bench.peer import PeerUnavailable
from flexspec.models.smollm2 import NAME, smollm2_gguf

_MAGIC = b"GGUF"


def source_gguf(name: str, file_type: LlamaFileType) -> Path:
    """The GGUF file behind a model, as it is.

    Args:
        name: what the user called the model.
        file_type: what the file must be quantised to.

    Raises:
        PeerUnavailable: if the model doesn't come from a GGUF file, or the file holds another type.
    """
    path = smollm2_gguf() if name == NAME else Path(name).expanduser()
    if not _is_gguf(path):
        raise PeerUnavailable(f"model {name} does not come from a GGUF file")
    wanted = file_type.name.removeprefix("MOSTLY_")
    found = _file_type(path)
    if found != file_type:
        holds = "says nothing about its type" if found is None else f"holds {found.name.removeprefix('MOSTLY_')}"
        raise PeerUnavailable(f"{path} {holds}, not {wanted}")
    return path


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _file_type(path: Path) -> LlamaFileType | None:
    field = GGUFReader(path).get_field("general.file_type")
    return None if field is None else LlamaFileType(field.contents())
