"""Gives an agent a tool that runs in this program. Kill the server in between and start it again: the tool still runs
once, and the agent gets its result.

The message is a command for the agent that comes with the server, which needs no model.

    ASH_SERVER_URL=http://localhost:4100 ASH_API_KEY=ash_… python client_tool.py
"""

from typing import Annotated

from ash_client import AshClient, tool

MESSAGE = 'call stock: {"article": "nut"} and call stock: {"article": "bolt"}'


@tool
def stock(article: Annotated[str, "the article's name"]) -> int:
    """How many pieces of an article are in the warehouse."""
    print("looking for", article)
    return {"bolt": 1200, "nut": 1150}.get(article, 0)


with AshClient() as client:
    session = client.create_session("default", tools=[stock])
    for event in client.send_message_stream(session["id"], MESSAGE, tools=[stock]):
        if event.event == "tool_requested":
            print("call:", event.data["tool"], event.data["input"])
        elif event.event == "tool_answered":
            print("answer:", event.data.get("result"))
        elif event.event == "turn_complete":
            print(event.data["result"])
