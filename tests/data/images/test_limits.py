"""Files that would fill the memory, or never end, are refused before they are read."""

import gzip
import io
import os
import struct
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image

from headwise.data.images.corpus import load_images
from headwise.data.images.reading import Limits, read_idx, read_image_folder
from headwise.data.images.settings import FolderImages, IdxImages
from headwise.data.sources import CorpusError

LIMITS = Limits(max_pixels=100, max_bytes=5_000)
MAGIC = b"\x00\x00\x08\x03"


def png(width, height):
    """A PNG whose header alone is whole: who looks at more than its size finds nothing."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def small(side=8):
    content = io.BytesIO()
    Image.fromarray(np.full((side, side), 7, np.uint8)).save(content, "PNG")
    return content.getvalue()


def read(path, limits=LIMITS):
    return list(read_image_folder(path, [], limits))


@pytest.mark.parametrize("side", [11, 50_000])  # Pillow itself refuses, or warns of, the second
@pytest.mark.filterwarnings("error")
def test_an_image_of_too_many_pixels(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(png(side, side))
    with pytest.raises(CorpusError, match=rf"bomb.png has {side:,} × .* at most 100 .*max_pixels"):
        read(tmp_path)
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(CorpusError, match="of which none can be read"):  # within a larger limit
        read(tmp_path, Limits(10**10, 5_000))
    assert before == Image.MAX_IMAGE_PIXELS


def test_the_keys_raise_the_limits(tmp_path):
    for number in range(12):
        image = np.full((8, 8), number, np.uint8)
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    given = {"train": tmp_path, "size": 8, "mode": "grey"}
    with pytest.raises(CorpusError, match=r"8 × 8 pixels, expected at most 63 .*data.max_pixels"):
        load_images(FolderImages(**given, max_pixels=63))
    with pytest.raises(CorpusError, match=r"bytes, expected at most 9; .*data.max_bytes"):
        load_images(FolderImages(**given, max_bytes=9))
    assert len(load_images(FolderImages(**given, max_pixels=64)).train) == 10


def test_members_of_a_tar_file(tmp_path):
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("a.png")
        member.size = len(small())
        archive.addfile(member, io.BytesIO(small()))
    assert len(read(path)) == 1
    with pytest.raises(CorpusError, match=r"images.tar:a.png has .* at most 9; .*data.max_bytes"):
        read(path, Limits(100, 9))
    huge = tarfile.TarInfo("b.png")
    huge.size = 2**40  # of which the file has nothing
    path.write_bytes(path.read_bytes()[:1024] + huge.tobuf())
    with pytest.raises(CorpusError, match=r"nor an intact tar file \(unexpected end of data\)"):
        read(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "sizes, body, message",
    [
        ((2**32 - 1, 2**16, 2**16), b"", "65,536 × 65,536 pixels, expected at most 100"),
        ((2**32 - 1, 4, 4), b"", "68,719,476,736 bytes, expected at most 5,000; .*max_bytes"),
        ((3, 4, 4), bytes(47), "has 63 bytes, expected 64 for 3 × 4 × 4 pixels"),
        ((3, 4, 4), bytes(10**6), "has more than 64 bytes, expected 64 for 3 × 4 × 4 pixels"),
        ((0, 4, 4), b"", "0 × 4 × 4 pixels, expected at least one image"),
        ((3, 4), b"", "has 12 bytes, expected at least 16 of its header"),
    ],
)
def test_headers_of_idx_files_that_lie(tmp_path, sizes, body, message, pack):
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(pack(MAGIC + struct.pack(f">{len(sizes)}I", *sizes) + body))
    with pytest.raises(CorpusError, match=f"images-idx3-ubyte has .*{message}|{message}"):
        list(read_idx(path, LIMITS))


def test_what_is_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for settings in (FolderImages(train=pipe), IdxImages(train=pipe)):
        with pytest.raises(CorpusError, match="pipe is a pipe or a device, expected a regular"):
            load_images(settings)
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "pipe.png").symlink_to(pipe)
    (tmp_path / "a.png").write_bytes(small())
    assert len(read(tmp_path)) == 1
