"""`levada run`: the ranks' environment, and the handling of their output, input and signals. Both commands have it."""

from __future__ import annotations

import collections
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

COMMANDS = {"package": [sys.executable, "-m", "levada", "run"], "core": [os.environ["LEVADA_COMMAND"], "run"]}
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PYTHONUNBUFFERED")
} | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

PLACE = """
import os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
print(*(os.environ[name] for name in names), os.environ["MASTER_PORT"].isdigit(), *sys.argv[1:])
"""
PRINTING = """
import os, sys
rank = os.environ["RANK"]
for line in range(300):
    print("rank", rank, "line", line, "x" * 50)
    print("rank", rank, "error", line, "x" * 50, file=sys.stderr)
"""


@pytest.fixture(params=["package", "core"])
def command(request: pytest.FixtureRequest) -> list[str]:
    return COMMANDS[request.param]


def write(folder: pathlib.Path, script: str, name: str = "script.py") -> str:
    (folder / name).write_text(script)
    return name


def run(folder: pathlib.Path, command: list[str], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, cwd=folder, env=ENVIRONMENT | variables
    )


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, folder: pathlib.Path, command: list[str], **variables: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(command[0], command, ENVIRONMENT | variables)
        self.shown = ""

    def read_until(self, text: str | None) -> str:
        """Returns the output up to and including `text`; None reads to the end of the command."""
        while text is None or text not in self.shown:
            try:
                read = os.read(self.fd, 65536).decode()
            except OSError:  # how a terminal reports that no process has it open
                break
            if not read:
                break
            self.shown += read
        return self.shown

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait(self) -> int:
        """Reads to the end. Returns the exit status."""
        self.read_until(None)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status


def test_ranks_get_torchruns_variables(tmp_path: pathlib.Path, command: list[str]) -> None:
    script = write(tmp_path, PLACE)
    expected = {f"{rank} 2 {rank} 2 127.0.0.1 True --epochs= --help -n 3" for rank in range(2)}
    for program in ([script], ["-m", "script"], ["python", script], ["--", script], ["--module", "script"]):
        ran = run(tmp_path, command, "-n", "2", *program, "--epochs=", "--help", "-n", "3")
        assert ran.returncode == 0, ran.stderr
        assert set(ran.stdout.splitlines()) == expected and ran.stderr == ""
    assert run(tmp_path, command, "-n1", "echo", "feed").stdout == "feed\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "-n, the number of ranks, is missing; pass it before PROGRAM, as in levada run -n 4 train.py"),
        (["here", "-n", "2"], "-n, the number of ranks, is missing; pass it before PROGRAM, as in levada run -n 4 train.py"),
        (["--nproc-per-node", "2", "here"], "unknown option --nproc-per-node; see levada run --help"),
        (["-n", "2"], "no PROGRAM is named; see levada run --help"),
        (["-n", "2", ""], "no PROGRAM is named; see levada run --help"),
        (["-n", "257", "true"], "-n is 257; it must be from 1 to 256; see levada run --help"),
        (["-n", "two", "true"], "--ranks: two is not a whole number; see levada run --help"),
        (["-n", "2", "--tea", "true"], "unknown option --tea; see levada run --help"),
        (["-n", "2", "missing.py"], "the file missing.py does not exist"),
        (["-n", "2", "no-such-program"], "cannot find the program no-such-program on PATH"),
        (["-n", "2", "here"], "cannot find the program here on PATH; write ./here to run the one in this folder"),
        (["-n", "2", "./missing"], "./missing is not an executable file"),
    ],
)
def test_a_failure_to_start_is_one_sentence(
    tmp_path: pathlib.Path, command: list[str], arguments: list[str], sentence: str
) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\n")
    (tmp_path / "here").chmod(0o755)
    ran = run(tmp_path, command, *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"levada: {sentence}\n")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("print(1)\n", "it is neither a binary of this machine nor a script that begins with #!/"),
        ("#!/no/such/python\n", "the interpreter in its first line does not exist"),
    ],
)
def test_a_program_that_the_system_cannot_run_is_named_with_the_reason(
    tmp_path: pathlib.Path, command: list[str], content: str, why: str
) -> None:
    (tmp_path / "program").write_text(content)
    (tmp_path / "program").chmod(0o755)
    ran = run(tmp_path, command, "-n", "1", "./program")
    assert (ran.returncode, ran.stderr) == (127, f"levada: rank 0 cannot run ./program: {why}\n")


def test_the_exit_status_is_that_of_the_failed_rank(tmp_path: pathlib.Path, command: list[str]) -> None:
    script = write(tmp_path, "import os, sys\nsys.exit(7 * (os.environ['RANK'] == '1'))")
    ran = run(tmp_path, command, "-n", "3", script)
    assert (ran.returncode, ran.stderr) == (7, "levada: rank 1 ended with status 7\n")
    ran = run(tmp_path, command, "-n", "2", "sh", "-c", "kill -9 $$")
    assert ran.returncode == 1 and "was lost: killed by signal 9" in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_pipe_is_whole_unchanged_lines(tmp_path: pathlib.Path, command: list[str], unbuffered: str) -> None:
    ran = run(tmp_path, command, "-n", "3", write(tmp_path, PRINTING), PYTHONUNBUFFERED=unbuffered)
    assert ran.returncode == 0
    for written, kind in ((ran.stdout, "line"), (ran.stderr, "error")):
        by_rank = collections.defaultdict(list)
        for line in written.splitlines():
            by_rank[line.split()[1]].append(line)
        assert by_rank == {str(rank): [f"rank {rank} {kind} {line} {'x' * 50}" for line in range(300)] for rank in range(3)}


def test_a_line_without_an_end_is_printed_last(tmp_path: pathlib.Path, command: list[str]) -> None:
    program = 'if [ $RANK = 0 ]; then printf "no end"; else sleep 0.5; printf "line\\nno end either"; fi'
    assert run(tmp_path, command, "-n", "2", "sh", "-c", program).stdout == "line\nno endno end either"


def test_a_single_rank_inherits_the_commands_descriptors(tmp_path: pathlib.Path, command: list[str]) -> None:
    with open(tmp_path / "file", "wb") as file:
        subprocess.run([*command, "-n", "1", "sh", "-c", "readlink /proc/$$/fd/1"], stdout=file, timeout=60, check=True)
    assert (tmp_path / "file").read_text() == f"{tmp_path / 'file'}\n"


@pytest.mark.long
def test_large_output_arrives(tmp_path: pathlib.Path, command: list[str]) -> None:
    program = f"for i in 1 2 3 4 5 6 7 8; do head -c 3000000 /dev/zero | tr '\\0' $RANK; echo; done"
    written = run(tmp_path, command, "-n", "2", "sh", "-c", program).stdout
    assert collections.Counter(written) == {"0": 24_000_000, "1": 24_000_000, "\n": 16}


def test_rank_0_reads_standard_input(tmp_path: pathlib.Path, command: list[str]) -> None:
    program = 'read line; echo "$RANK:$line"'
    ran = subprocess.run([*command, "-n", "2", "sh", "-c", program + "; true"], input="word\n", capture_output=True, text=True, timeout=60)
    assert sorted(ran.stdout.splitlines()) == ["0:word", "1:"]


def test_a_reader_that_leaves_ends_the_job(tmp_path: pathlib.Path, command: list[str]) -> None:
    line = f"{' '.join(command)} -n 2 yes | head -n 1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (141, "y\n", "")


def test_output_that_cannot_be_written_fails_the_command(tmp_path: pathlib.Path, command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*command, "-n", "2", "echo", "x"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "levada: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_terminal_shows_whole_lines_with_their_rank(tmp_path: pathlib.Path, command: list[str], unbuffered: str) -> None:
    variables = {"PYTHONUNBUFFERED": "1"} if unbuffered else {}
    terminal = Terminal(tmp_path, [*command, "-n", "4", write(tmp_path, PRINTING)], **variables)
    assert terminal.wait() == 0
    lines = terminal.shown.replace("\r\n", "\n").splitlines()
    assert len(lines) == 2400
    for line in lines:
        assert re.fullmatch(r"\[(\d)\] rank \1 (line|error) \d+ x{50}", line), line


def test_a_terminal_shows_a_line_before_its_rank_ends(tmp_path: pathlib.Path, command: list[str]) -> None:
    script = write(tmp_path, "import os, time\nprint('begun')\nwhile not os.path.exists('seen'): time.sleep(0.01)\nprint('no end', end='')")
    terminal = Terminal(tmp_path, [*command, "-n", "2", script])
    terminal.read_until("[0] begun")
    terminal.read_until("[1] begun")
    (tmp_path / "seen").touch()
    assert terminal.wait() == 0
    assert sorted(terminal.shown.split("\r\n")[2:]) == ["", "[0] no end", "[1] no end"]


def test_a_breakpoint_works_at_a_terminal(tmp_path: pathlib.Path, command: list[str]) -> None:
    script = write(tmp_path, "import os\nvalue = 6\nif os.environ['RANK'] == '0':\n    breakpoint()\n    print('value', value)\n")
    terminal = Terminal(tmp_path, [*command, "-n", "2", script])
    assert "[0] (Pdb) " in terminal.read_until("(Pdb) ")
    terminal.type("value = 42\n")
    terminal.shown = ""
    terminal.read_until("(Pdb) ")
    terminal.type("c\n")
    assert terminal.wait() == 0
    assert "value 42" in terminal.shown


def test_ctrl_c_reaches_each_rank_once(tmp_path: pathlib.Path, command: list[str]) -> None:
    script = write(
        tmp_path,
        "import signal, time\ncount = 0\ndef interrupt(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGINT, interrupt)\nprint('ready')\nwhile not count: time.sleep(0.01)\ntime.sleep(0.5)\nprint('interrupts', count)\n",
    )
    terminal = Terminal(tmp_path, [*command, "-n", "2", script])
    terminal.read_until("[0] ready")
    terminal.read_until("[1] ready")
    terminal.type("\x03")
    assert terminal.wait() == 130
    assert terminal.shown.count("interrupts 1") == 2


def test_a_signal_ends_a_job_whose_output_is_not_read(tmp_path: pathlib.Path, command: list[str]) -> None:
    with subprocess.Popen([*command, "-n", "2", "yes"], stdout=subprocess.PIPE) as ran:
        time.sleep(1)  # time for the pipe to fill
        ran.send_signal(signal.SIGTERM)
        assert ran.wait(timeout=30) == 143


JOINING = "import levada\njob = levada.join()\nprint(f'{job.rank} of {job.size}')\n"


def test_a_rank_joins_and_may_start_its_own_job(tmp_path: pathlib.Path, command: list[str]) -> None:
    write(tmp_path, JOINING, "inner.py")
    outer = f"import os, subprocess\nif os.environ['RANK'] == '0': subprocess.run({[*command, '-n', '3', 'inner.py']}, check=True)\n"
    ran = run(tmp_path, command, "-n", "2", write(tmp_path, outer + JOINING))
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["0 of 2", "0 of 3", "1 of 2", "1 of 3", "2 of 3"]


def test_variables_of_an_outer_torchrun_are_not_passed_on(tmp_path: pathlib.Path, command: list[str]) -> None:
    outer = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "outer"}
    ran = run(tmp_path, command, "-n", "2", write(tmp_path, JOINING), **outer)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["0 of 2", "1 of 2"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("os.environ['RANK'] = '1'", "the environment contradicts itself: LEVADA_RANK and LEVADA_WORLD_SIZE are 0 and 2"),
        ("del os.environ['LEVADA_RANK']", "the environment describes an incomplete job: LEVADA_WORLD_SIZE is 2"),
    ],
)
def test_contradictory_variables_are_refused(
    tmp_path: pathlib.Path, command: list[str], change: str, sentence: str
) -> None:
    script = f"import os\nif os.environ['RANK'] == '0': {change}\n{JOINING}"
    ran = run(tmp_path, command, "-n", "2", write(tmp_path, script))
    assert ran.returncode == 1 and sentence in ran.stderr
