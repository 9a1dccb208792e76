"""The fixtures work."""

from tests.conftest import Serve
from tests.fakes.driver import FakeDriver


def test_serves_the_stand_in(serve: Serve, driver: FakeDriver) -> None:
    """One GPU of the stand-in driver comes up with profiling metrics."""
    exporter = serve(env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE")))
    assert page.value("DCGM_FI_PROF_SM_ACTIVE") == 0.96
    assert exporter.stop()[0] == 0
