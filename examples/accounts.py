"""Withdraw from an account: `python accounts.py NAME AMOUNT`. A late writer is refused."""

import argparse
import os
import sys

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from quorlock import AcquireError, NodeError, Redlock, StaleFence
from quorlock.fencing import FenceTable

fences = FenceTable()


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


def set_up(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        fences.create(session)
        if session.get(Account, "ada") is None:
            session.add(Account(name="ada", balance=100))


def withdraw(
    redlock: Redlock, engine: Engine, name: str, amount: int, *, pause: bool = False
) -> int:
    """Return the balance that is left."""
    resource = f"account:{name}"
    lease = redlock.lock(resource, ttl=3.0, timeout=10.0, fencing=True).acquire()
    try:
        if pause:
            input("has the lock; press Enter to write ")
        with Session(engine) as session, session.begin():
            fences.claim(session, resource, lease.fence)  # before the first read
            account = session.get_one(Account, name)
            account.balance -= amount
            return account.balance
    finally:
        lease.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("amount", type=int)
    parser.add_argument("--pause", action="store_true", help="wait for Enter under the lock")
    arguments = parser.parse_args()
    engine = create_engine(os.environ["DATABASE_URL"])
    set_up(engine)
    with Redlock.from_env() as redlock:
        try:
            left = withdraw(
                redlock, engine, arguments.name, arguments.amount, pause=arguments.pause
            )
        except (AcquireError, NodeError, StaleFence) as error:
            sys.exit(f"nothing was withdrawn: {error}")
    print(f"{arguments.name} has {left}")


if __name__ == "__main__":
    main()
