"""What is given as a text is read as what it is, or refused by its name; no run trains on noise."""

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rankwise.cli import run
from reference.errors import BadInput
from reference.models.data import file_text
from reference.models.files import read

WORDS = "Wörter, aus denen man lernt.\n".encode() * 40


def zipped(*contents: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.mkdir("folder")
        for number, each in enumerate(contents):
            archive.writestr(f"folder/{number}.txt", each)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, array)
    return out.getvalue()


BYTES = np.frombuffer(WORDS, dtype=np.uint8)


def name_of(parameter: object) -> str | None:
    """What archives hold is no name: it tells the time, and another process would call the test by another name."""
    return "stored" if isinstance(parameter, bytes) else None


@pytest.mark.parametrize(
    ("stored", "done"),
    [
        (WORDS, []),
        (gzip.compress(WORDS), ["gzip"]),
        (gzip.compress(WORDS[:100]) + gzip.compress(WORDS[100:]), ["gzip"]),
        (bz2.compress(WORDS), ["bzip2"]),
        (lzma.compress(WORDS), ["xz"]),
        (zipped(WORDS), ["zip"]),
        (npy(BYTES), ["npy"]),
        (npz(BYTES), ["zip", "npy"]),
        (gzip.compress(npy(BYTES)), ["gzip", "npy"]),
        (b"\xef\xbb\xbf" + WORDS, ["UTF-8 with a byte order mark"]),
        (gzip.compress(b"\xef\xbb\xbf" + WORDS), ["gzip", "UTF-8 with a byte order mark"]),
    ],
    ids=name_of,
)
def test_the_text_is_what_is_inside(stored: bytes, done: list[str], tmp_path: Path) -> None:
    file = tmp_path / "text"  # how it begins decides, not its name
    file.write_bytes(stored)
    text, found = read(file)
    assert text.tobytes() == WORDS and found == done


@pytest.mark.parametrize(
    ("name", "stored", "words"),
    [
        ("text", WORDS.decode().encode("utf-16"), "is UTF-16, which is not read here: save it as UTF-8"),
        ("text", b"\xfe\xff" + WORDS.decode().encode("utf-16-be"), "is UTF-16"),
        ("text", WORDS.decode().encode("utf-16-le"), "looks like UTF-16 or numbers"),
        ("text", WORDS.decode().encode("utf-16-be"), "looks like UTF-16 or numbers"),
        ("text", WORDS.decode().encode("utf-32"), "is UTF-32"),
        ("text.gz", gzip.compress(WORDS.decode().encode("utf-16")), "is UTF-16"),
        ("text", b"PAR1" + bytes(range(50)) + b"PAR1", "is a parquet table, which is not read here: write its column"),
        ("text.gz", gzip.compress(b"PAR1" + bytes(50)), "is a parquet table"),
        ("text", b"ARROW1\0\0" + WORDS, "is an arrow table"),
        ("text", b"\x28\xb5\x2f\xfd" + WORDS, "is zstd, which is not read here: unpack it with zstd -d"),
        ("text", b"%PDF-1.7\n" + WORDS, "is a PDF"),
        ("text", (20240520).to_bytes(4, "little") + bytes(1020), "is tokens of llm.c, .* tokens are bytes here"),
        ("train.bin", np.arange(300, dtype=np.uint16).tobytes(), "looks like tokens, two or four bytes each"),
        ("text", np.arange(200, dtype=np.uint16).tobytes(), "looks like UTF-16 or numbers"),
        ("text", npy(np.arange(9)), "is npy, and it holds int64 of shape .9,.: tokens are bytes here"),
        ("text", npy(BYTES[:8].reshape(2, 4)), r"is npy, and it holds uint8 of shape \(2, 4\)"),
        ("text", npy(np.array([{"an": "object"}], dtype=object)), "begins as npy, and is damaged"),
        ("text", zipped(WORDS, WORDS), "is zip, and it holds 2 files: unpack it"),
        ("text", zipped(), "is zip, and it holds 0 files|is an empty zip"),
        ("text", gzip.compress(WORDS)[:-9], "begins as gzip, and is damaged"),
        ("text", bz2.compress(WORDS)[:-9], "begins as bzip2, and is damaged"),
        ("text", lzma.compress(WORDS)[:-9], "begins as xz, and is damaged"),
        ("text", zipped(WORDS)[:-9], "begins as zip, and is damaged"),
        ("text", b"\x1f\x8b" + WORDS, "begins as gzip, and is damaged"),
        ("text", gzip.compress(b""), "is gzip with nothing in it"),
        ("text", b"\xef\xbb\xbf", "is UTF-8 with a byte order mark with nothing in it"),
        ("a.tar", bytes(257) + b"ustar\x00" + bytes(249) + WORDS, "is a tar archive"),
    ],
    ids=name_of,
)
def test_what_is_no_text_is_refused_by_its_name(name: str, stored: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(stored)
    with pytest.raises(BadInput, match=words) as refusal:
        file_text(file)
    assert str(refusal.value).startswith(str(file)) and "\n" not in str(refusal.value)


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text").write_bytes(WORDS)
    assert file_text("~/text").tobytes() == WORDS
    with pytest.raises(BadInput, match="no user here has that home folder"):
        file_text("~nobody-of-this-name/text")


def test_a_run_says_what_it_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(WORDS))
    common = ["train", "--ranks", "1", "--model", "tiny", "--steps", "1", "--batch", "2", "--sequence", "8"]
    assert run([*common, "--data", str(tmp_path / "text.gz")]) == 0
    assert f"{len(WORDS):,} bytes of text (read as gzip), 1 ranks" in capsys.readouterr().out


def test_the_log_does_not_overwrite_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text").write_bytes(WORDS)
    common = ["train", "--ranks", "1", "--model", "tiny", "--steps", "1", "--batch", "2", "--sequence", "8"]
    assert run([*common, "--data", "~/text", "--log", str(tmp_path / "text")]) == 2
    assert f"--log would overwrite {tmp_path / 'text'}" in capsys.readouterr().err
