"""Both drivers are what `contract` says: mypy checks the assignments, and they really are made."""

import asyncio

from quorlock import Node
from quorlock._core.policy import policy
from quorlock._drivers import asyncio as asyncio_driver
from quorlock._drivers import blocking
from quorlock._drivers.contract import AsyncioDriver, BlockingDriver

NODES = (Node("a"), Node("b"), Node("c"))
POLICY = policy(
    ("a:6379", "b:6379", "c:6379"),
    ttl=10.0,
    max_ttl=30.0,
    node_timeout=0.05,
    connect_timeout=1.0,
    drift_factor=0.01,
    retry_delay=(0.05, 0.2),
    outage_timeout=5.0,
    prefix="",
)


def test_the_blocking_driver_keeps_the_contract() -> None:
    """It has what the blocking face relies on, and opens nothing until it is asked."""
    driver: BlockingDriver = blocking.Driver(NODES, POLICY)
    assert [member.address for member in driver.members.all] == list(POLICY.addresses)
    driver.close()


def test_the_asyncio_driver_keeps_the_contract() -> None:
    """The same for asyncio."""

    async def main() -> None:
        driver: AsyncioDriver = asyncio_driver.Driver(NODES, POLICY)
        assert [member.address for member in driver.members.all] == list(POLICY.addresses)
        await driver.close()

    asyncio.run(main())
