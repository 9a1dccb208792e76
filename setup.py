"""Everything is declared in setup.cfg. Only the folder of a build is chosen here.

The default, `build` beside this file, would stay after `pip install .`, and the next build would copy modules into the
wheel that the sources have no more.
"""

import atexit
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build import build


class TemporaryBuild(build):
    """Builds in a folder of its own, which is removed at the end."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = tempfile.mkdtemp(prefix="gpu-exporter-build-")
        atexit.register(shutil.rmtree, self.build_base, ignore_errors=True)


setup(cmdclass={"build": TemporaryBuild})
