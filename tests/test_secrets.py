"""Exports hold the environment of the profiled process: nothing of it, nor of ours, is ever shown or stored."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from PIL import Image

from rankdiff.simulation import synthetic
from rankdiff_cli.main import group

MS = 1_000_000
SECRET = "s3nt1nel-QzX9w7Kp"  # in the exports
OURS = "s3nt1nel-of-the-caller"  # in the environment of the command itself
TRACE = "job.pftrace" if importlib.util.find_spec("perfetto") else "job2.json"

DRIVER = """
import json, sys
from rankdiff_cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["rankdiff", *arguments]
    try:
        main()
    except SystemExit as done:
        print("status", done.code)
"""
# A bug of ours, in the middle of reading what must not be shown.
BROKEN = """
import rankdiff.reports.capture as capture
def broken(reader):
    rows = reader.query('SELECT "name", "value" FROM META_DATA_CAPTURE', (), "META_DATA_CAPTURE")
    raise KeyError(len(rows))
capture._session_uuid = broken
"""


def plant(path: Path) -> None:
    """Put the secret wherever exports have been seen to hold some, under names like those that are read."""
    process = "PROCESS_0:ENVIRONMENT_VARIABLE"
    values = [
        (process, f'WANDB_API_KEY="{SECRET}"'),
        (process, f'SLURM_SPANK_SHIFTER_SSH_PUBKEY="{SECRET}"'),
        (process, f'PMI_SHARED_SECRET="{SECRET}"'),
        (process, f'SLURM_PROCID_KEY="{SECRET}"'),
        (process, f'slurm_procid="{SECRET}"'),
        (process, f' SLURM_PROCID="{SECRET}"'),
        (process, f'MY_SLURMD_NODENAME="{SECRET}"'),
        (process, f"RANK {SECRET}"),
        (process, SECRET),
        (process, ""),
        (f"{process}S", f'SLURMD_NODENAME="{SECRET}"'),
        ("PROCESS_1:ENVIRONMENT_VARIABLE", f'SLURMD_NODENAME="{SECRET}"'),
        ("ENVIRONMENT_VARIABLE", f'SLURMD_NODENAME="{SECRET}"'),
        ("PROCESS_0:ARGUMENT_1", f"--token={SECRET}"),
        ("PROCESS_0:COMMAND", f"train --token={SECRET}"),
        (SECRET, SECRET),
    ]
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT"):
            db.executemany(
                f"INSERT INTO {table} (name, value) VALUES (?, ?)",
                values,
            )
        for name in ("DeviceEnvironment", "Hostname ", "HOSTNAME", SECRET):
            db.execute(
                "INSERT INTO TARGET_INFO_SYSTEM_ENV (devStateName, nameEnum, name, value) VALUES ('', 0, ?, ?)",
                (name, f"A=1;WANDB_API_KEY={SECRET};B=2"),
            )
        last = db.execute("SELECT max(id) FROM StringIds").fetchone()[0]
        for n, text in enumerate(
            (f"A=1\0WANDB_API_KEY={SECRET}\0", f"token {SECRET}", f"nccl{SECRET}", SECRET)
        ):
            db.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (last + 1 + n, text))
        db.execute("CREATE TABLE IF NOT EXISTS ProcessStreams (globalPid, filenameId, contentId)")
        db.execute("INSERT INTO ProcessStreams VALUES (1, ?, ?)", (last + 2, last + 1))
        db.execute(f'CREATE TABLE "{SECRET}" ("{SECRET}")')


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> list[Path]:
    made = synthetic(tmp_path_factory.mktemp("job"), steps=10, late={2: 4 * MS}, late_as="data_load")
    for path in made.paths:
        plant(path)
    return made.paths


class Place:
    """A working directory, a home and a temporary folder of their own, and what commands leave and say there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("work", "home", "tmp"):
            (folder / name).mkdir(parents=True)
        self.said = b""

    def run(self, commands: list[list[str]], before: str = "") -> str:
        """Run commands in one process; what they said on both streams."""
        done = subprocess.run(
            [sys.executable, "-c", before + DRIVER, json.dumps(commands)],
            cwd=self.folder / "work",
            env=os.environ
            | {
                "HOME": str(self.folder / "home"),
                "TMPDIR": str(self.folder / "tmp"),
                "RANKDIFF_TMP": str(self.folder / "tmp"),
                "WANDB_API_KEY": OURS,
                "SLURM_JOB_ID": "1",
                "HF_TOKEN": OURS,
            },
            capture_output=True,
            check=False,
            timeout=600,
        )
        self.said += done.stdout + done.stderr
        return (done.stdout + done.stderr).decode()

    def written(self) -> dict[str, bytes]:
        """Every file that is there, also as it is unpacked."""
        found: dict[str, bytes] = {}
        for path in (p for p in self.folder.rglob("*") if p.is_file()):
            name, data = str(path.relative_to(self.folder)), path.read_bytes()
            found[name] = data
            if data.startswith(b"\x1f\x8b"):
                found[f"{name} unpacked"] = gzip.decompress(data)
            if path.suffix == ".duckdb":
                found[f"{name} unpacked"] = unpacked(path)
            if path.suffix == ".png":
                with Image.open(path) as image:
                    found[f"{name} about"] = repr(image.info).encode()
            for n, inside in enumerate(re.findall(rb"base64,([A-Za-z0-9+/=]+)", data)):
                found[f"{name} inside {n}"] = base64.b64decode(inside)
        return found


def unpacked(path: Path) -> bytes:
    """All tables of a database, which it holds compressed."""
    with duckdb.connect(str(path), read_only=True) as db:
        names = db.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
        return repr([db.execute(f"FROM {name}").fetchall() for (name,) in names]).encode()


def holds(data: bytes) -> list[str]:
    """The secrets in some bytes, plain or in another spelling."""
    found = []
    for secret in (SECRET, OURS):
        plain = secret.encode()
        spellings = [plain, plain.hex().encode(), secret.encode("utf-16-le"), plain.upper(), plain.lower()]
        for shift in range(3):  # base64, wherever it begins
            spellings.append(base64.b64encode(b"x" * shift + plain)[4:-4])
        found += [secret for spelling in spellings if spelling in data]
    return found


def nothing_shown(place: Place) -> None:
    """No output and no file holds a secret, and no temporary file is left."""
    assert holds(place.said) == []
    assert [name for name, data in place.written().items() if holds(data)] == []
    assert list((place.folder / "tmp").iterdir()) == []


def every_command(reports: list[str]) -> list[list[str]]:
    """All commands in all forms."""
    folder = str(Path(reports[0]).parent)
    return [
        ["compare", *reports],
        ["compare", "--format", "markdown", *reports],
        ["compare", "--format", "json", "-q", *reports],
        ["compare", *reports, "-o", "ticket"],
        ["compare", "--strict", "--rank-regex", r"prof_(?P<node>.+)_(?P<rank>\d+)", *reports],
        ["compare", *reports, "--jobs", "2", "--cache", "cache"],
        ["digest", *reports, "-o", "digests"],
        ["compare", "digests", "-o", "ticket2"],
        ["compare", *reports, "--save-db", "job.duckdb"],
        [
            "diff",
            "--before",
            reports[0],
            *(x for r in reports[1:] for x in ("--before", r)),
            folder,
            "-o",
            "diff",
        ],
        ["diff", "ticket", "digests", "--format", "markdown", "--fail-on", "regression:50%"],
        ["diff", folder, folder, "--format", "json", "-q"],
        ["inspect", *reports],
        ["inspect", "-q", *reports],
        ["timeline", *reports, "-o", "step.png"],
        ["timeline", *reports, "-o", "step.svg"],
        ["trace", *reports, "-o", "job.json.gz"],
        ["trace", *reports, "-o", TRACE],
        ["simulate", "made", "--ranks", "2", "--steps", "2", "--fault", "io:rank=1:ms=3"],
    ]


def test_the_search_finds_what_it_looks_for(tmp_path):
    place = Place(tmp_path / "place")
    (place.folder / "work" / "a.gz").write_bytes(gzip.compress(SECRET.encode()))
    (place.folder / "work" / "b.html").write_bytes(b"base64," + base64.b64encode(OURS.encode()))
    with duckdb.connect(str(place.folder / "work" / "c.duckdb")) as db:
        db.execute(f"CREATE TABLE t AS SELECT '{SECRET}' AS x FROM range(10000)")
    found = {name for name, data in place.written().items() if holds(data)}
    assert found - {"work/c.duckdb"} == {  # it may be there in plain text as well
        "work/a.gz unpacked",
        "work/b.html",
        "work/b.html inside 0",
        "work/c.duckdb unpacked",
    }


def test_every_command(job, tmp_path):
    reports = [str(path) for path in job]
    assert all(holds(path.read_bytes()) for path in job)
    commands = every_command(reports)
    assert {command[0] for command in commands} == set(group.list_commands(None)), "add the new command here"
    place = Place(tmp_path / "place")
    said = place.run(commands)
    assert said.count("status 0") == len(commands), said[-3000:]
    assert "Rank 2 on nodeB made the others wait" in said
    work = place.folder / "work"
    assert {p.name for p in work.iterdir()} == {
        "ticket",
        "diff",
        "cache",
        "digests",
        "job.duckdb",
        "ticket2",
        "step.png",
        "step.svg",
        "job.json.gz",
        TRACE,
        "made",
    }
    nothing_shown(place)


def damaged(reports: list[Path], folder: Path) -> list[Path]:
    """Copies of a report, each broken in another way that makes somebody complain."""
    made = []

    def copy(name: str) -> Path:
        made.append(folder / f"prof_{name}_{len(made)}.sqlite")
        shutil.copyfile(reports[len(made) % len(reports)], made[-1])
        return made[-1]

    def edit(name: str, *statements: str) -> None:
        with closing(sqlite3.connect(copy(name))) as db, db:
            for statement in statements:
                db.execute(statement)

    # As bytes: LIKE ends at the NUL.
    environment = (
        f"(SELECT id FROM StringIds WHERE instr(CAST(value AS BLOB), CAST('WANDB_API_KEY={SECRET}' AS BLOB)))"
    )
    edit("ids", f"UPDATE NVTX_EVENTS SET textId = {environment}, text = NULL")
    edit("kernels", f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = {environment}")
    edit("calls", f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = {environment}")
    edit("types", "UPDATE META_DATA_CAPTURE SET value = CAST(value AS BLOB)")
    edit("column", "ALTER TABLE META_DATA_CAPTURE RENAME COLUMN value TO worth")
    edit("needed", 'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN "end" TO finish')
    edit("versions", "UPDATE META_DATA_EXPORT SET value = '99.1' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    # SQLite's own message quotes what stands in the place of a table's name.
    edit(
        "schema",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET name = 'KEY={SECRET}', sql = 'CREATE TABLE {SECRET} (((' WHERE name = 'OSRT_API'",
    )
    data = copy("short").read_bytes()
    made[-1].write_bytes(data[: len(data) // 2])
    for name, marker in (("capture", b'WANDB_API_KEY="'), ("strings", f"token {SECRET}".encode())):
        path = copy(name)
        data = bytearray(path.read_bytes())
        size, at = int.from_bytes(data[16:18], "big"), data.index(marker)
        data[at - at % size : at - at % size + 12] = b"\xff" * 12  # the beginning of its page
        path.write_bytes(data)
    log = copy("log")
    data = bytearray(log.read_bytes())
    data[18:20] = b"\x02\x02"
    log.write_bytes(data)
    Path(f"{log}-wal").write_bytes(SECRET.encode() * 100)
    return made


def test_damaged_reports(job, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    reports = damaged(job, folder)
    place = Place(tmp_path / "place")
    together = [str(path) for path in reports]
    said = place.run(
        [
            ["inspect", *together],
            ["compare", *together],
            *(["inspect", path] for path in together),
            ["trace", *together, "-o", "job.json"],
        ]
    )
    assert "Traceback" not in said, said[-3000:]
    for complaint in ("is damaged", "has no column", "truncated", "schema version 99.1"):
        assert complaint in said, said
    nothing_shown(place)


def test_a_bug_of_ours(job, tmp_path):
    place = Place(tmp_path / "place")
    said = place.run([["compare", *map(str, job)]], before=BROKEN)
    assert "Traceback" in said
    assert "KeyError" in said
    nothing_shown(place)
