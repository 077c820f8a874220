"""Both drivers are what `contract` says: mypy checks the assignments, and they really are made."""

import asyncio

from quorlock import Node
from quorlock._drivers.abc import AsyncioDriver, BlockingDriver
from quorlock._drivers.aio import driver as asyncio_driver
from quorlock._drivers.sync import driver as blocking
from tests.harness.support.script import policy_over

NODES = (Node("a"), Node("b"), Node("c"))
POLICY = policy_over(("a:6379", "b:6379", "c:6379"))


def test_the_blocking_driver_keeps_the_contract() -> None:
    """The driver has everything that the blocking API uses, and opens nothing before it is used."""
    driver: BlockingDriver = blocking.Driver(NODES, POLICY)
    assert [state.node.address for state in driver.node_states.all] == list(POLICY.addresses)
    driver.close()


def test_the_asyncio_driver_keeps_the_contract() -> None:
    """The driver has everything that the asyncio API uses."""

    async def main() -> None:
        driver: AsyncioDriver = asyncio_driver.Driver(NODES, POLICY)
        assert [state.node.address for state in driver.node_states.all] == list(POLICY.addresses)
        await driver.close()

    asyncio.run(main())
