"""Count how many random mutants of the code the fast unit tests notice: `python -m tests.soak.mutants --seed 7`.

Cosmic Ray changes one place of a module, such as `and` to `or`, in a copy of the checkout, and the fast unit tests of
the module's package run there. A mutant that they do not notice survives: either a test is missing, or the change makes
no difference. The share is a report, not a gate. Needs the extra `mutation`.
"""

from __future__ import annotations

import argparse
import ast
import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from shutil import copy2
from tempfile import TemporaryDirectory

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

from tests import ROOT

PACKAGES = ("remediation", "probes", "traces", "profiling", "jobs")
SHORTEST_LIMIT = 60.0  # seconds, so that a busy machine does not kill mutants

Position = tuple[int, int]


def main() -> None:
    """Draw mutants, test each of them, and print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="folders of gpu_exporter and of tests/unit")
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args()

    with TemporaryDirectory() as folder:
        checkouts = [copy_checkout(Path(folder) / str(number)) for number in range(chosen.processes)]
        limits = {package: limit(checkouts[0], package) for package in chosen.packages}
        mutants = draw(chosen.packages, chosen.count, chosen.seed)
        idle = SimpleQueue[Path]()
        for checkout in checkouts:
            idle.put(checkout)

        def test(mutant: MutationSpec) -> WorkResult:
            checkout = idle.get()
            try:
                return run(mutant, checkout, limits[package_of(mutant)])
            finally:
                idle.put(checkout)

        outcomes = Counter[tuple[str, bool]]()
        with ThreadPoolExecutor(chosen.processes) as executor:
            for mutant, result in zip(mutants, executor.map(test, mutants), strict=True):
                outcomes[package_of(mutant), result.is_killed] += 1
                print(notable(mutant, result), end="", flush=True)
    print(f"seed {chosen.seed}, killed:")
    for package in chosen.packages:
        print(f"{package:12} {share(outcomes, [package])}")
    print(f"{'all':12} {share(outcomes, chosen.packages)}")


def notable(mutant: MutationSpec, result: WorkResult) -> str:
    """Return what a reader needs to know about a mutant; nothing if a test failed, as it should."""
    place = f"{mutant.module_path}:{mutant.start_pos[0]}"
    if not result.is_killed:
        return f"survived: {place}\n{changed_lines(result.diff)}\n\n"
    if result.test_outcome is not TestOutcome.KILLED:
        raise SystemExit(f"{place}: {result.output}")
    return f"killed by a timeout: {place}\n\n" if result.output == "timeout" else ""


def share(outcomes: Counter[tuple[str, bool]], packages: Iterable[str]) -> str:
    """Return how many mutants of some packages were killed."""
    killed, survived = (sum(outcomes[package, outcome] for package in packages) for outcome in (True, False))
    return f"{killed:3d} of {killed + survived:3d} ({killed / max(1, killed + survived):.0%})"


def copy_checkout(target: Path) -> Path:
    """Copy the files that git tracks or would add, as they are now; return the copy."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def limit(checkout: Path, package: str) -> float:
    """Run the tests of a package without a mutant; return the seconds that they may take with one."""
    began = time.monotonic()
    command = tests_of(checkout, package)
    if subprocess.run(shlex.split(command), check=False).returncode != 0:
        raise SystemExit(f"these tests fail without a mutant: {command}")
    return max(SHORTEST_LIMIT, 10 * (time.monotonic() - began))


def tests_of(checkout: Path, package: str) -> str:
    """Return the command that runs the fast unit tests of a package in a copy of the checkout."""
    options = "-m 'not slow' --exitfirst --quiet --no-header -p no:cacheprovider -p no:xdist"
    return f"env --chdir={checkout} {sys.executable} -m pytest tests/unit/{package} {options}"


def draw(packages: Iterable[str], count: int, seed: int) -> list[MutationSpec]:
    """Return mutants of different places, drawn at random; each place has one of its mutants.

    Cosmic Ray has eleven mutants of a `+` and one of an `and`. Drawn from all of them, few would be of an `and`.
    """
    modules = [path for package in packages for path in sorted((ROOT / "gpu_exporter" / package).rglob("*.py"))]
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([path.relative_to(ROOT) for path in modules], database, {})
        every = [mutant for item in database.work_items for mutant in item.mutations]
    spans = {path.relative_to(ROOT): list(annotation_spans(path.read_text())) for path in modules}
    places: dict[tuple[Path, Position, Position], list[MutationSpec]] = {}
    for mutant in sorted(every, key=lambda mutant: (mutant.module_path, mutant.start_pos, mutant.operator_name)):
        if not any(start <= mutant.start_pos < end for start, end in spans[mutant.module_path]):
            places.setdefault((mutant.module_path, mutant.start_pos, mutant.end_pos), []).append(mutant)
    chance = random.Random(seed)
    drawn = chance.sample(list(places.values()), min(count, len(places)))
    return sorted(map(chance.choice, drawn), key=lambda mutant: (mutant.module_path, mutant.start_pos))


def annotation_spans(source: str) -> Iterator[tuple[Position, Position]]:
    """Yield where annotations begin and end: few modules evaluate theirs, so most of their mutants are equivalent."""
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def run(mutant: MutationSpec, checkout: Path, seconds: float) -> WorkResult:
    """Run the tests of a mutant's package in a copy of the checkout, with the mutant."""
    placed = MutationSpec(
        checkout / mutant.module_path, mutant.operator_name, mutant.occurrence, mutant.start_pos, mutant.end_pos
    )
    return mutate_and_test([placed], tests_of(checkout, package_of(mutant)), seconds)


def package_of(mutant: MutationSpec) -> str:
    """Return the name of the package below gpu_exporter that a mutant changes."""
    package: str = mutant.module_path.parts[1]
    return package


def changed_lines(diff: str) -> str:
    """Return the lines of a diff that were removed and added."""
    lines = [line for line in diff.splitlines() if line.startswith(("-", "+")) and line[:3] not in ("---", "+++")]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
