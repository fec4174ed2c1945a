import asyncio

from service.http.limits import InFlightLimit


def line(tokens: int) -> bytes:
    """Return a line that counts as so many tokens."""
    return bytes(4 * tokens)


def test_lines_begin_in_order_when_there_is_room() -> None:
    async def scenario() -> None:
        limit, begun = InFlightLimit(100), list[int]()

        async def take(tokens: int) -> None:
            await limit.take(line(tokens))
            begun.append(tokens)

        tasks = [asyncio.create_task(take(tokens)) for tokens in (40, 50, 30, 5)]
        await asyncio.sleep(0.01)
        assert begun == [40, 50]  # 5 would fit, but waits behind 30
        limit.give_back(40)
        await asyncio.sleep(0.01)
        assert begun == [40, 50, 30, 5]
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_two_lines_of_any_size_are_in_work() -> None:
    async def scenario() -> None:
        limit = InFlightLimit(100)
        taken = [await limit.take(line(1000)) for _ in range(2)]
        waiting = asyncio.create_task(limit.take(line(1)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        limit.give_back(taken[0])
        await waiting

    asyncio.run(scenario())


def test_who_stops_waiting_takes_nothing() -> None:
    async def scenario() -> None:
        limit = InFlightLimit(100)
        first = [await limit.take(line(50)) for _ in range(2)]
        waiting = [asyncio.create_task(limit.take(line(tokens))) for tokens in (50, 50, 10)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        limit.give_back(first[0])  # grants the second, which is cancelled before it runs
        waiting[1].cancel()
        async with asyncio.timeout(5):
            await waiting[2]
            limit.give_back(first[1])
            limit.give_back(10)
            assert [await limit.take(line(50)) for _ in range(2)] == [50, 50]

    asyncio.run(scenario())
