"""Digests kept between runs, by what was digested and how; safe with many runs at once."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import ENAMETOOLONG
from hashlib import blake2b

from rankdiff import __version__
from rankdiff.digest import Digest, DigestOptions
from rankdiff.digest_file import ENDING, Provenance, read_digests, write_digests
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.plain import to_plain
from rankdiff.reports.discover import Report
from rankdiff.reports.fingerprint import fingerprint
from rankdiff.reports.temporary import usual_mode
from rankdiff.schema import DIGEST_VERSION


@dataclass(frozen=True)
class DigestCache:
    """A folder of digests. Nothing is ever removed from it; its files can be deleted at any time."""

    folder: str

    def open(self) -> DigestCache:
        """Make the folder.

        Raises
        ------
        RankdiffError
            When that fails, or nothing can be written into it.
        """
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise RankdiffError(
                f"{self.folder}: cannot be made ({error.strerror})", "Choose another folder for --cache"
            ) from None
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise RankdiffError(f"{self.folder}: cannot be written", "Choose another folder for --cache")
        return self

    def find(self, report: Report, options: DigestOptions) -> list[Digest] | None:
        """Digests of a report as it is now; None when there are none, or they are damaged."""
        path = self._path(fingerprint(report), options)
        if not os.path.exists(path):
            return None
        try:
            return read_digests(path)[0]
        except ReportError:
            # Damaged, or removed just now: it is made again and written over.
            return None

    def keep(self, report: Report, options: DigestOptions, digests: Sequence[Digest], before: str) -> str:
        """Keep the digests of a report.

        Parameters
        ----------
        before : str
            Its fingerprint before it was read: one that is being written must not be taken for what it will be.

        Returns
        -------
        str
            Path of the file.

        Raises
        ------
        RankdiffError
            When it cannot be written.
        """
        path = self._path(before, options)
        write_whole(digests, Provenance(before, options), path, replace=True)
        return path

    def _path(self, print_: str, options: DigestOptions) -> str:
        key = json.dumps([print_, to_plain(options), DIGEST_VERSION, __version__])
        return os.path.join(self.folder, blake2b(key.encode(), digest_size=16).hexdigest() + ENDING)


def write_whole(digests: Sequence[Digest], provenance: Provenance, path: str, replace: bool) -> bool:
    """Write a file of digests whole or not at all, whoever else is writing it.

    Parameters
    ----------
    replace : bool
        Put it in place of a file that exists; otherwise that file stays.

    Returns
    -------
    bool
        Whether it was put in place.

    Raises
    ------
    RankdiffError
        When it cannot be written.
    """
    folder = os.path.dirname(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder or ".")
        with os.fdopen(handle, "wb") as file:
            write_digests(digests, provenance, file)
        os.chmod(temporary, usual_mode(0o666))
        if replace:
            os.replace(temporary, path)
            temporary = None
            return True
        try:
            os.link(temporary, path)  # unlike a rename it fails where somebody was faster
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links: the name is taken first, then filled.
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return False
            os.replace(temporary, path)
            temporary = None
        return True
    except OSError as error:
        remedy = "Give the report a shorter name" if error.errno == ENAMETOOLONG else "Choose another folder"
        raise RankdiffError(f"{path}: cannot be written ({error.strerror or error})", remedy) from None
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):  # somebody cleaned the folder up
                os.unlink(temporary)
