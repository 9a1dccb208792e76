"""Clients take turns, one request of each in a round."""

from __future__ import annotations

import asyncio

from gpu_exporter.http.turns import Turns


def stays() -> bool:
    """Return whether a client has left that has not."""
    return False


async def order(*clients: str) -> list[str]:
    """Return in which order requests of these clients begin that wait at the same time."""
    turns, begun = Turns(1), list[str]()

    async def request(client: str) -> None:
        await turns.wait(client, stays)
        begun.append(client)

    await asyncio.gather(*map(request, clients))
    return begun


def test_many_requests_of_one_client_do_not_delay_others() -> None:
    assert asyncio.run(order("a", "a", "a", "b", "c", "b")) == ["a", "b", "c", "a", "b", "a"]


def test_a_client_alone_needs_no_patience() -> None:
    assert asyncio.run(order("a")) == ["a"]


def test_other_events_come_between_two_requests() -> None:
    """Such as new connections."""

    async def interleaved() -> list[str]:
        turns, seen = Turns(1), list[str]()

        async def requests() -> None:
            await asyncio.gather(*(turns.wait("a", stays) for _ in range(5)))
            seen.append("all")

        waiting = asyncio.ensure_future(requests())
        await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
            seen.append("other")
        await waiting
        return seen

    assert asyncio.run(interleaved()) == ["other"] * 4 + ["all"]


def test_who_gave_up_takes_no_turn() -> None:
    async def cancelled() -> list[str]:
        turns, begun = Turns(), list[str]()

        async def request(name: str) -> None:
            await turns.wait("a", stays)
            begun.append(name)

        first, second = (asyncio.ensure_future(request(name)) for name in ("first", "second"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        return begun

    assert asyncio.run(cancelled()) == ["second"]


def test_who_has_left_takes_no_time() -> None:
    """Its request ends at once, so that nobody waits for those of closed connections."""

    async def rounds() -> int:
        turns, ended = Turns(1), list[str]()

        async def request(client: str, *, left: bool) -> None:
            await turns.wait(client, lambda: left)
            ended.append(client)

        waiting = [asyncio.ensure_future(request(f"c{n}", left=n < 9)) for n in range(10)]
        await asyncio.sleep(0)
        passed = 0
        while not ended:
            await asyncio.sleep(0)
            passed += 1
        await asyncio.gather(*waiting)
        assert len(ended) == 10
        return passed

    assert asyncio.run(rounds()) == 2


def test_few_requests_that_take_no_time_begin_at_once() -> None:
    """But none while others wait, so that a flood of them delays nobody."""

    async def begun() -> list[bool]:
        turns = Turns(2)
        first = [turns.may_begin() for _ in range(3)]
        waiting = asyncio.ensure_future(turns.wait("a", stays))
        await asyncio.sleep(0)
        behind = turns.may_begin()
        await waiting
        return [*first, behind, turns.may_begin()]

    assert asyncio.run(begun()) == [True, True, False, False, True]
