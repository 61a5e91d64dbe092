"""Content-addressed files in a folder and on an S3-compatible server: stored once and verified when read."""

import os
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
import obstore
import pytest
from msgspec.structs import replace
from tests import s3

from shoal.kernel.files import Files, digest_of
from shoal.net.connections import default_tls
from shoal.store.files import GRACE_SECONDS, LocalFiles
from shoal.store.s3 import S3Files, S3Settings, open_s3

BIG = 12_000_000


class FilesRules:
    """Rules for both kinds of storage. A subclass provides the fixture `files`."""

    def test_stored_content_is_read_back(self, files: Files) -> None:
        digest = files.keep(b"hello")
        assert digest == digest_of(b"hello")
        assert files.read(digest) == b"hello"
        assert files.has(digest)
        assert files.keep(b"hello") == digest
        assert files.read(files.keep(b"")) == b""

    def test_large_files_are_stored_and_read(self, files: Files, tmp_path: Path) -> None:
        content = os.urandom(BIG)
        (tmp_path / "in").write_bytes(content)
        digest = files.keep_file(tmp_path / "in")
        files.fetch(digest, tmp_path / "deep" / "out")
        assert digest == digest_of(content)
        assert (tmp_path / "deep" / "out").read_bytes() == content

    def test_missing_content_is_reported(self, files: Files, tmp_path: Path) -> None:
        absent = digest_of(b"absent")
        assert not files.has(absent)
        with pytest.raises(FileNotFoundError):
            files.read(absent)
        with pytest.raises(FileNotFoundError):
            files.fetch(absent, tmp_path / "out")
        assert list(tmp_path.glob("*out*")) == []
        assert files.remove(absent)

    def test_stores_with_different_places_share_nothing(self, files: Files) -> None:
        inner = files.below("a%2Fb")
        digest = inner.keep(b"inside")
        assert inner.read(digest) == b"inside"
        assert not files.has(digest)
        assert files.below("a%2Fb").has(digest)
        assert not files.below("other").has(digest)

    def test_a_sweep_keeps_recent_files(self, files: Files) -> None:
        digest = files.keep(b"young")
        assert files.sweep(()) == 0
        assert files.has(digest)

    def test_recently_used_content_stays(self, files: Files) -> None:
        digest = files.keep(b"young")
        assert not files.remove(digest)
        assert files.read(digest) == b"young"


class TestLocalFiles(FilesRules):
    @pytest.fixture
    def files(self, tmp_path: Path) -> LocalFiles:
        return LocalFiles(tmp_path / "files")

    def test_old_content_is_removed_unless_stored_again(self, files: LocalFiles) -> None:
        old = time.time() - GRACE_SECONDS - 1
        digests = [files.keep(b"a"), files.keep(b"b")]
        for digest in digests:
            os.utime(files.path(digest), (old, old))
        files.keep(b"b")
        assert [files.remove(digest) for digest in digests] == [True, False]
        assert [files.has(digest) for digest in digests] == [False, True]

    def test_a_sweep_deletes_only_old_unused_files_of_its_place(self, files: LocalFiles) -> None:
        old = time.time() - GRACE_SECONDS - 1
        inner = files.below("inner")
        digests = [files.keep(b"a"), files.keep(b"b")]
        other = inner.keep(b"a")
        for path in (files.path(digests[0]), files.path(digests[1]), inner.path(other)):
            os.utime(path, (old, old))
        assert files.sweep({digests[1]}) == 1
        assert [files.has(digest) for digest in digests] == [False, True]
        assert inner.has(other)

    def test_damaged_content_is_not_returned(self, files: LocalFiles, tmp_path: Path) -> None:
        digest = files.keep(b"hello")
        files.path(digest).write_bytes(b"hollo")
        with pytest.raises(OSError, match="damaged"):
            files.read(digest)
        with pytest.raises(OSError, match="damaged"):
            files.fetch(digest, tmp_path / "out")
        assert list(tmp_path.glob("*out*")) == []


@pytest.fixture(scope="session")
def s3_server() -> Generator[str]:
    with s3.server() as address:
        yield address


@pytest.mark.slow
@pytest.mark.xdist_group("s3")
class TestS3Files(FilesRules):
    @pytest.fixture
    def settings(self, s3_server: str) -> S3Settings:
        assert httpx2.put(f"{s3_server}/shoal", verify=default_tls()).status_code == 200
        return S3Settings("shoal", "some/prefix", s3_server, "us-east-1", "key", "secret")

    @pytest.fixture
    def files(self, settings: S3Settings) -> S3Files:
        return S3Files(settings)

    def test_a_sweep_deletes_only_old_unused_files_of_its_place(self, settings: S3Settings) -> None:
        files = S3Files(settings, grace_seconds=0.0)
        digests = [files.keep(b"x1"), files.keep(b"x2")]
        other = files.below("inner").keep(b"x1")
        assert files.sweep({digests[1]}) >= 1
        assert [files.has(digest) for digest in digests] == [False, True]
        assert files.below("inner").has(other)
        assert files.below("inner").sweep(()) == 1
        assert not files.below("inner").has(other)

    def test_problems_are_reported_in_one_sentence(self, settings: S3Settings) -> None:
        with pytest.raises(OSError, match=r"^The bucket does not exist in the object store\. Check files\.\* in the "):
            S3Files(replace(settings, bucket="elsewhere")).keep(b"lost")
        for endpoint in ("http://127.0.0.1:99999", "http://xn--☃.example"):
            with pytest.raises(OSError, match=r"^files\.endpoint is not a valid URL: its host must be ASCII"):
                S3Files(replace(settings, endpoint=endpoint)).keep(b"lost")
        with pytest.raises(FileNotFoundError, match=r"^Object at location \S+ not found$"):
            S3Files(settings).read(digest_of(b"absent"))

    def test_machines_share_the_files(self, files: S3Files, settings: S3Settings) -> None:
        assert S3Files(settings).read(files.keep(b"shared")) == b"shared"

    def test_a_missing_server_is_reported(self, s3_server: str) -> None:
        with pytest.raises(OSError, match=r"^The object store failed: .*\. Check files\.\* in the configuration\.$"):
            S3Files(S3Settings("shoal", "", "http://127.0.0.1:1", "us-east-1", "key", "secret")).keep(b"x")

    def test_damaged_content_is_not_returned(self, files: S3Files) -> None:
        digest = files.keep(b"hello")
        obstore.put(open_s3(files.settings), f"{digest[:2]}/{digest}", b"hollo")
        with pytest.raises(OSError, match="damaged"):
            files.read(digest)
