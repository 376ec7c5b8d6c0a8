"""A file given as a text, as bytes: told by how it begins, unpacked where that is easy, else refused by name.

A token is a byte here, so any file could be trained on. A gzip file, a parquet table or UTF-16 stands for what is in
it, though, and would train on noise without a word. So what has a name is read as what it is, or refused with what
would work; everything else is taken byte by byte.

| begins as                        | what happens                                       |
|----------------------------------|----------------------------------------------------|
| gzip, bzip2, xz                  | is unpacked                                        |
| zip, npz                         | is unpacked, if there is one file in it            |
| npy                              | is read, if it holds one row of uint8              |
| UTF-8 with a byte order mark     | is read from after the mark                        |
| UTF-16, UTF-32                   | is refused, also without a mark                    |
| parquet, arrow, zstd, pdf, ...   | is refused                                         |
| tokens as nanoGPT or llm.c write | is refused: their tokens are no bytes              |
"""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reference.errors import BadInput

Text = NDArray[np.uint8]
BEGINNING = 64 << 10  # bytes that are looked at
MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark
AS_UTF8 = "save it as UTF-8, such as with iconv -t UTF-8"


def unzipped(packed: bytes) -> bytes:
    """The one file in an archive."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = [each.filename for each in archive.infolist() if not each.is_dir()]
        if len(names) != 1:
            raise BadInput(f"it holds {len(names)} files: unpack it, and give the one with the text")
        return archive.read(names[0])


def row_of_bytes(stored: bytes) -> bytes:
    """The numbers of a .npy file that holds bytes."""
    array = np.load(io.BytesIO(stored), allow_pickle=False)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise BadInput(f"it holds {array.dtype} of shape {array.shape}: tokens are bytes here, one row of uint8")
    return array.tobytes()


OPENED: dict[bytes, tuple[str, Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": ("gzip", gzip.decompress),
    b"BZh": ("bzip2", bz2.decompress),
    b"\xfd7zXZ\x00": ("xz", lzma.decompress),
    b"PK\x03\x04": ("zip", unzipped),
    b"\x93NUMPY": ("npy", row_of_bytes),
    MARK: ("UTF-8 with a byte order mark", lambda marked: marked[len(MARK) :]),
}
"""By the first bytes: what a file is called that can be read, and how."""

TABLE = "write its column of text to a file, such as with pandas: open(..., 'w').write('\\n'.join(table['text']))"
REFUSED: dict[bytes, tuple[str, str]] = {
    b"\xff\xfe\x00\x00": ("UTF-32", AS_UTF8),
    b"\x00\x00\xfe\xff": ("UTF-32", AS_UTF8),
    b"\xff\xfe": ("UTF-16", AS_UTF8),
    b"\xfe\xff": ("UTF-16", AS_UTF8),
    b"PAR1": ("a parquet table", TABLE),
    b"ARROW1": ("an arrow table", TABLE),
    b"Obj\x01": ("an avro table", TABLE),
    b"\x89HDF": ("an HDF5 file", TABLE),
    b"SQLite format 3": ("a SQLite database", TABLE),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it with zstd -d"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it"),
    b"Rar!": ("a rar archive", "unpack it"),
    b"%PDF": ("a PDF", "write its text to a file, such as with pdftotext"),
    b"PK\x05\x06": ("an empty zip archive", "give one with a text in it"),
    (20240520).to_bytes(4, "little"): ("tokens of llm.c", "tokens are bytes here: give the text itself"),
    b"MMIDIDX\x00\x00": ("an index of Megatron's tokens", "tokens are bytes here: give the text itself"),
}
"""By the first bytes: what a file is called that is not read, and what would work. The longer of two comes first."""


def read(path: str | Path) -> tuple[Text, list[str]]:
    """The bytes of a text, and what was done to get at them, such as ["gzip"].

    A plain file is mapped, so that ranks of one machine share the memory; what was unpacked, each rank has for itself.

    Args:
        path: `~` is the caller's home folder.

    Raises:
        BadInput: if it is no file, is empty, damaged, cannot be read, or is something that is not read here.
    """
    path = home(path)
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{path} is not a file; --data takes one text file")
        if path.stat().st_size == 0:
            raise BadInput(f"{path} is empty; training needs text")
        data: Text = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    done: list[str] = []
    while kind := opened_as(data):
        name, unpack = kind
        try:
            data = np.frombuffer(unpack(data.tobytes()), dtype=np.uint8)
        except BadInput as error:
            raise BadInput(f"{path} is {name}, and {error}") from None
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:
            raise BadInput(f"{path} begins as {name}, and is damaged: {str(error).lower()}") from None
        done.append(name)
        if len(data) == 0:
            raise BadInput(f"{path} is {name} with nothing in it; training needs text")
    refuse(path, data[:BEGINNING].tobytes())
    return data, done


def home(path: str | Path) -> Path:
    """A path without `~`.

    Raises:
        BadInput: for the home folder of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadInput(f"cannot read {path}: no user here has that home folder") from None


def opened_as(data: Text) -> tuple[str, Callable[[bytes], bytes]] | None:
    """Name and opener of what can be unpacked; None for anything else."""
    beginning = data[:16].tobytes()
    return next((kind for magic, kind in OPENED.items() if beginning.startswith(magic)), None)


def refuse(path: Path, beginning: bytes) -> None:
    """Raises BadInput for what is no text."""
    for magic, (name, instead) in REFUSED.items():
        if beginning.startswith(magic):
            raise BadInput(f"{path} is {name}, which is not read here: {instead}")
    if beginning[257:262] == b"ustar":
        raise BadInput(f"{path} is a tar archive, which is not read here: unpack it, and give the file with the text")
    if path.suffix in (".bin", ".idx") and b"\x00" in beginning:
        raise BadInput(
            f"{path} looks like tokens, two or four bytes each, which are not read here: tokens are bytes, so give the "
            "text itself"
        )
    if len(beginning) >= 16 and any(beginning[half::2].count(0) > len(beginning) // 5 for half in (0, 1)):
        raise BadInput(f"{path} looks like UTF-16 or numbers, of which every other byte is 0: {AS_UTF8}")
