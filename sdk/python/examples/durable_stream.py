"""Prints an answer while the agent writes it. Kill the server in between and start it again: the answer continues right
after the last word.

    ASH_SERVER_URL=http://localhost:4100 ASH_API_KEY=ash_… python durable_stream.py
"""

import asyncio

from ash_client import AsyncAshClient

MESSAGE = "slow 200: one two three four five six seven eight nine ten"


async def main() -> None:
    async with AsyncAshClient() as client:
        session = await client.create_session("default")
        async for event in client.send_message_stream(session["id"], MESSAGE, include_partial_messages=True):
            if event.event == "text_delta":
                print(event.data["delta"], end="", flush=True)
            elif event.event == "done":
                print(f"\n{event.data['status']}")


asyncio.run(main())
