"""The asynchronous client: one method for each operation of the server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import httpx

from . import types
from .async_stream import AsyncEventStream, AsyncToolAnswerer, follow, follow_session
from .async_transport import AsyncTransport
from .options import session_body
from .progress import MessageProgress, SessionProgress
from .request import (
    Request,
    base64_text,
    delete,
    encoded_files,
    file_segments,
    get,
    given,
    json_body,
    new_key,
    patch,
    post,
)
from .retry import RetryPolicy
from .tools import Tool

if TYPE_CHECKING:
    from typing_extensions import Unpack

MessageContent = str | Sequence[Mapping[str, Any]]
"""A text, or blocks of type `text`, `image` or `document` as in the Messages API."""

DEFAULT_URL = "http://localhost:4100"


class AsyncAshClient:
    """A client of one ash server.

    `base_url` and `token` default to the environment's `ASH_SERVER_URL` and `ASH_API_KEY`. `timeout` is for an answer
    of the server in seconds; streams and messages wait for as long as the turn takes. `http` replaces the client's own
    connections, for example to use a proxy.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 300.0,
        retry: RetryPolicy | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        url = base_url or os.environ.get("ASH_SERVER_URL") or DEFAULT_URL
        key = token or os.environ.get("ASH_API_KEY")
        self._transport = AsyncTransport(url, key, timeout, retry or RetryPolicy(), http)

    async def __aenter__(self) -> AsyncAshClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()

    async def _json(self, request: Request) -> Any:
        return (await self._transport.send(request)).json()

    async def _text(self, request: Request) -> str:
        return (await self._transport.send(request)).body.decode()

    async def _file(self, request: Request) -> types.DownloadedFile:
        answer = await self._transport.send(request)
        headers = answer.headers
        return types.DownloadedFile(
            answer.body, headers.get("content-type", "application/octet-stream"), headers.get("x-ash-source")
        )

    # The server

    async def health(self) -> types.Health:
        """The state of the server and its sandboxes. Needs no key."""
        answer: types.Health = await self._json(get("health"))
        return answer

    async def get_server(self) -> types.ServerAnswer:
        """Name and version of the server."""
        request = Request("GET", "/", headers={"Accept": "application/json"}, repeatable=True)
        answer: types.ServerAnswer = await self._json(request)
        return answer

    async def get_metrics(self) -> str:
        """Metrics in the text format of Prometheus."""
        return await self._text(get("metrics"))

    async def get_open_api(self) -> dict[str, Any]:
        """The OpenAPI document of the server."""
        answer: dict[str, Any] = await self._json(get("openapi.json"))
        return answer

    async def get_docs(self) -> str:
        """The reference of the API as a page in HTML."""
        return await self._text(get("docs"))

    async def get_docs_json(self) -> dict[str, Any]:
        """The OpenAPI document, under its other address."""
        answer: dict[str, Any] = await self._json(get("docs", "json"))
        return answer

    async def get_docs_yaml(self) -> str:
        """The OpenAPI document as YAML."""
        return await self._text(get("docs", "yaml"))

    # Agents

    async def deploy_agent(
        self,
        name: str,
        path: str,
        *,
        env: Mapping[str, str] | None = None,
        runtime: types.AgentRuntime | None = None,
        idempotency_key: str | None = None,
    ) -> types.Agent:
        """Deploys a folder of the server's own machine as the next version of an agent. `create_agent` sends files."""
        body = {"name": name, "path": path, **given(env=env, runtime=runtime)}
        return await self._agent(post("api", "agents", body=body, idempotency_key=new_key(idempotency_key)))

    async def create_agent(
        self,
        name: str,
        *,
        files: types.FileContents | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[types.AgentOptions],
    ) -> types.Agent:
        """Deploys an agent from files, or from a `system_prompt` alone."""
        body = {"name": name, **json_body(options)}
        if files is not None:
            body["files"] = encoded_files(files)
        return await self._agent(post("api", "agents", body=body, idempotency_key=new_key(idempotency_key)))

    async def list_agents(self) -> list[types.Agent]:
        answer: types.AgentListAnswer = await self._json(get("api", "agents"))
        return answer["agents"]

    async def get_agent(self, name: str) -> types.Agent:
        return await self._agent(get("api", "agents", name))

    async def update_agent(
        self, name: str, *, env: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None
    ) -> types.Agent:
        """Replaces the environment as a whole, and the named settings."""
        return await self._agent(patch("api", "agents", name, body=given(env=env, config=config)))

    async def delete_agent(self, name: str) -> types.DeletedAgentAnswer:
        """Refuses new sessions of the agent. Those that it has continue."""
        answer: types.DeletedAgentAnswer = await self._json(delete("api", "agents", name))
        return answer

    async def get_agent_config(self, name: str) -> dict[str, Any]:
        answer: types.AgentConfigAnswer = await self._json(get("api", "agents", name, "config"))
        return answer["config"]

    async def update_agent_config(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the named settings and returns all of them."""
        request = patch("api", "agents", name, "config", body=dict(config))
        answer: types.AgentConfigAnswer = await self._json(request)
        return answer["config"]

    async def _agent(self, request: Request) -> types.Agent:
        answer: types.AgentAnswer = await self._json(request)
        return answer["agent"]

    # Sessions

    async def create_session(
        self,
        agent: str,
        *,
        idempotency_key: str | None = None,
        wait: int | None = None,
        **options: Unpack[types.CreateSessionOptions],
    ) -> types.Session:
        """Creates a session. `wait`: seconds to wait if all sandboxes are busy."""
        body = {"agent": agent, **session_body(options)}
        key = new_key(idempotency_key)
        return await self._session(post("api", "sessions", body=body, idempotency_key=key, wait=wait))

    async def list_sessions(
        self,
        agent: str | None = None,
        status: types.SessionStatus | None = None,
        *,
        workspace: str | None = None,
        id_prefix: str | None = None,
        owner: str | None = None,
        older_than: str | None = None,
        newer_than: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        offset: int | None = None,
        cursor: str | None = None,
    ) -> list[types.Session]:
        """The sessions that all given filters match, the newest first. Ages are `90s`, `30m`, `24h` or `7d`."""
        page = await self.list_sessions_with_total(
            agent,
            status,
            workspace=workspace,
            id_prefix=id_prefix,
            owner=owner,
            older_than=older_than,
            newer_than=newer_than,
            metadata=metadata,
            limit=limit,
            offset=offset,
            cursor=cursor,
        )
        return page["sessions"]

    async def list_sessions_with_total(
        self,
        agent: str | None = None,
        status: types.SessionStatus | None = None,
        *,
        workspace: str | None = None,
        id_prefix: str | None = None,
        owner: str | None = None,
        older_than: str | None = None,
        newer_than: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        offset: int | None = None,
        cursor: str | None = None,
    ) -> types.SessionListAnswer:
        """As `list_sessions`, with the number of all matching sessions, and the `nextCursor` for the next page."""
        request = get(
            "api",
            "sessions",
            agent=agent,
            status=status,
            workspace=workspace,
            id_prefix=id_prefix,
            owner=owner,
            older_than=older_than,
            newer_than=newer_than,
            limit=limit,
            offset=offset,
            cursor=cursor,
            include_total=True,
            metadata=metadata,
        )
        answer: types.SessionListAnswer = await self._json(request)
        return answer

    async def get_session(self, session_id: str) -> types.SessionDetail:
        answer: types.SessionDetailAnswer = await self._json(get("api", "sessions", session_id))
        return answer["session"]

    async def pause_session(self, session_id: str, *, lock: str | None = None) -> types.Session:
        """Saves the session. A running turn finishes; no further one starts."""
        return await self._session(post("api", "sessions", session_id, "pause", lock=lock))

    async def resume_session(
        self,
        session_id: str,
        *,
        lock: str | None = None,
        wait: int | None = None,
        **options: Unpack[types.SessionOptions],
    ) -> types.ResumedSession:
        """Brings the session back. `resume` of the answer is the receipt: what came back, how, and whether it is
        complete. Options apply from now on."""
        body = session_body(options) or None
        request = post("api", "sessions", session_id, "resume", body=body, lock=lock, wait=wait)
        answer: types.ResumedSessionAnswer = await self._json(request)
        return {**answer["session"], "resume": answer["resume"]}

    async def stop_session(self, session_id: str, *, lock: str | None = None) -> types.Session:
        """Saves the session and ends its sandbox at once."""
        return await self._session(post("api", "sessions", session_id, "stop", lock=lock))

    async def end_session(
        self, session_id: str, *, purge: bool | None = None, lock: str | None = None
    ) -> types.EndedSession:
        """Ends the session; it stays readable. `purge` moves it to the trash, and its id is free."""
        request = delete("api", "sessions", session_id, query={"purge": purge}, lock=lock)
        answer: types.EndedSessionAnswer = await self._json(request)
        return {**answer["session"], "purged": answer.get("purged", False)}

    async def fork_session(
        self,
        session_id: str,
        *,
        checkpoint: int | None = None,
        new_session_id: str | None = None,
        workspace: str | None = None,
        idempotency_key: str | None = None,
    ) -> types.Session:
        """A new session that begins as this one is now, or was at a checkpoint."""
        body = given(checkpoint=checkpoint, session_id=new_session_id, workspace=workspace)
        key = new_key(idempotency_key)
        request = post("api", "sessions", session_id, "fork", body=body, idempotency_key=key)
        return await self._session(request)

    async def rewind_session(
        self, session_id: str, checkpoint: int, *, files: bool | None = None, lock: str | None = None
    ) -> types.RewoundSessionAnswer:
        """Moves the session to a checkpoint, back or forward. `rewound.from` is the checkpoint that undoes it.
        `files`: in a shared workspace, also the files."""
        body = {"checkpoint": checkpoint, **given(files=files)}
        request = post("api", "sessions", session_id, "rewind", body=body, lock=lock)
        answer: types.RewoundSessionAnswer = await self._json(request)
        return answer

    async def interrupt_session(self, session_id: str, *, lock: str | None = None) -> types.InterruptAnswer:
        """Asks the running turn to stop. It ends with status `interrupted`."""
        request = post("api", "sessions", session_id, "interrupt", lock=lock)
        answer: types.InterruptAnswer = await self._json(request)
        return answer

    async def update_session_config(
        self, session_id: str, *, lock: str | None = None, **options: Unpack[types.SessionOptions]
    ) -> types.SessionDetail:
        """Changes options; they apply at the latest from the next turn on."""
        request = patch("api", "sessions", session_id, "config", body=session_body(options), lock=lock)
        answer: types.SessionDetailAnswer = await self._json(request)
        return answer["session"]

    async def update_session_metadata(
        self, session_id: str, metadata: Mapping[str, str], *, lock: str | None = None
    ) -> types.Session:
        """Replaces the metadata as a whole."""
        request = patch("api", "sessions", session_id, body={"metadata": dict(metadata)}, lock=lock)
        return await self._session(request)

    async def _session(self, request: Request) -> types.Session:
        answer: types.SessionAnswer = await self._json(request)
        return answer["session"]

    # Messages

    async def send_message(
        self,
        session_id: str,
        content: MessageContent,
        *,
        lock: str | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[types.MessageOptions],
    ) -> types.TurnResult:
        """Sends a message and waits for the end of its turn, also across a restart of the server."""
        key = new_key(idempotency_key)
        request = self._message(session_id, content, "application/json", key, lock, wait, options)
        answer: types.TurnResult = await self._json(request)
        return answer

    def send_message_stream(
        self,
        session_id: str,
        content: MessageContent,
        *,
        tools: Iterable[Tool[..., Any]] = (),
        lock: str | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[types.MessageOptions],
    ) -> AsyncEventStream:
        """Sends a message and iterates over the events of its turn, up to and including `done`.

        The message is sent when the iteration begins. A restart of the server in between is invisible: no event is
        lost, and none comes twice. `include_partial_messages` adds the pieces of messages while the agent writes them.
        Calls of the given client tools are answered between two events. A turn that cannot continue for now raises
        `TurnInterrupted`; sent again with the same `idempotency_key`, the message continues it.
        """
        key = new_key(idempotency_key)
        message = self._message(session_id, content, "text/event-stream", key, lock, wait, options)
        partial = bool(options.get("include_partial_messages", False))
        progress = MessageProgress(session_id, message, partial)
        return AsyncEventStream(follow(self._transport, progress, self._answerer(session_id, tools, lock)))

    def _message(
        self,
        session_id: str,
        content: MessageContent,
        accept: str,
        key: str,
        lock: str | None,
        wait: int | None,
        options: Mapping[str, Any],
    ) -> Request:
        body = {"content": content, **json_body(options)}
        path = ("api", "sessions", session_id, "messages")
        return post(*path, body=body, accept=accept, idempotency_key=key, lock=lock, wait=wait, patient=True)

    def stream_session(
        self,
        session_id: str,
        *,
        last_event_id: str | None = None,
        include_partial_messages: bool | None = None,
        tools: Iterable[Tool[..., Any]] = (),
        lock: str | None = None,
    ) -> AsyncEventStream:
        """Follows a session: all of its events, from the beginning or after `last_event_id`, until it ends. Calls of
        the given client tools are answered, also those that were made before."""
        progress = SessionProgress(session_id, last_event_id, include_partial_messages)
        answerer = self._answerer(session_id, tools, lock)
        return AsyncEventStream(follow_session(self._transport, progress, answerer))

    def _answerer(self, session_id: str, tools: Iterable[Tool[..., Any]], lock: str | None) -> AsyncToolAnswerer | None:
        by_name = {tool.name: tool for tool in tools}
        return AsyncToolAnswerer(self._transport, session_id, by_name, lock) if by_name else None

    async def list_messages(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        after_sequence: int | None = None,
        all: bool | None = None,
    ) -> list[types.Message]:
        """The messages so far. `all`: also those that a rewind superseded."""
        path = ("api", "sessions", session_id, "messages")
        answer: types.MessageListAnswer = await self._json(get(*path, limit=limit, after=after_sequence, all=all))
        return answer["messages"]

    async def list_session_events(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        after_sequence: int | None = None,
        type: str | None = None,
    ) -> list[types.SessionEvent]:
        path = ("api", "sessions", session_id, "events")
        request = get(*path, limit=limit, after=after_sequence, type=type)
        answer: types.SessionEventListAnswer = await self._json(request)
        return answer["events"]

    async def get_session_logs(self, session_id: str, *, after: int | None = None) -> types.LogListAnswer:
        """The output of the agent's processes."""
        request = get("api", "sessions", session_id, "logs", after=after)
        answer: types.LogListAnswer = await self._json(request)
        return answer

    async def get_conversation(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        after: int | None = None,
        checkpoint: int | None = None,
        all: bool | None = None,
    ) -> types.ConversationAnswer:
        """The conversation in blocks, calls together with their results; `nextAfter` continues it. `all`: also what
        was withdrawn or superseded."""
        path = ("api", "sessions", session_id, "conversation")
        request = get(*path, limit=limit, after=after, checkpoint=checkpoint, all=all)
        answer: types.ConversationAnswer = await self._json(request)
        return answer

    async def get_session_log(
        self, session_id: str, *, limit: int | None = None, after: int | None = None
    ) -> types.SessionLog:
        """The events of the session, as `stream_session` sends them; `nextAfter` continues."""
        answer: types.SessionLog = await self._json(get("api", "sessions", session_id, "log", limit=limit, after=after))
        return answer

    async def create_stream_token(self, session_id: str) -> types.StreamToken:
        """A token with which a browser opens the stream of this session, and nothing else."""
        # A token that nobody got opens nothing.
        request = post("api", "sessions", session_id, "stream-token", repeatable=True)
        answer: types.StreamToken = await self._json(request)
        return answer

    # Message queue

    async def list_queue(self, session_id: str) -> list[types.QueuedMessage]:
        """The running turn and the messages that wait."""
        answer: types.QueueAnswer = await self._json(get("api", "sessions", session_id, "queue"))
        return answer["queue"]

    async def reorder_queue(
        self, session_id: str, order: Sequence[str], *, lock: str | None = None
    ) -> list[types.QueuedMessage]:
        """Moves these waiting turns, in this order, before the others."""
        request = patch("api", "sessions", session_id, "queue", body={"order": list(order)}, lock=lock)
        answer: types.QueueAnswer = await self._json(request)
        return answer["queue"]

    async def withdraw_message(
        self, session_id: str, turn: str, *, lock: str | None = None
    ) -> types.WithdrawnMessageAnswer:
        """Takes a waiting message back. The agent never sees it."""
        request = delete("api", "sessions", session_id, "queue", turn, lock=lock)
        answer: types.WithdrawnMessageAnswer = await self._json(request)
        return answer

    # Locks

    async def get_lock(self, session_id: str) -> types.Lock | None:
        answer: types.LockAnswer = await self._json(get("api", "sessions", session_id, "lock"))
        return answer["lock"]

    async def acquire_lock(
        self,
        session_id: str,
        *,
        ttl: int | None = None,
        holder: str | None = None,
        takeover: bool | None = None,
        lock: str | None = None,
    ) -> types.AcquiredLock:
        """Takes or renews exclusive write access. The `token` of the answer is the `lock` of other methods."""
        body = given(ttl=ttl, holder=holder, takeover=takeover)
        request = post("api", "sessions", session_id, "lock", body=body, lock=lock)
        answer: types.AcquiredLockAnswer = await self._json(request)
        return answer["lock"]

    async def release_lock(self, session_id: str, lock: str) -> types.Lock | None:
        answer: types.LockAnswer = await self._json(delete("api", "sessions", session_id, "lock", lock=lock))
        return answer["lock"]

    # Permissions and client tools

    async def list_permissions(self, session_id: str) -> list[types.Permission]:
        """Calls and questions that wait for an answer."""
        path = ("api", "sessions", session_id, "permissions")
        answer: types.PermissionListAnswer = await self._json(get(*path))
        return answer["permissions"]

    async def answer_permission(
        self,
        session_id: str,
        permission_id: str,
        behavior: types.PermissionBehavior,
        *,
        message: str | None = None,
        updated_input: Mapping[str, Any] | None = None,
        answers: Mapping[str, types.AnswerChoice] | None = None,
        updated_permissions: Sequence[Any] | None = None,
    ) -> types.AnsweredPermission:
        """Allows or denies a call, or answers a question. The same answer twice counts once."""
        body = given(
            behavior=behavior,
            message=message,
            updated_input=updated_input,
            answers=answers,
            updated_permissions=updated_permissions,
        )
        path = ("api", "sessions", session_id, "permissions", permission_id)
        answer: types.AnsweredPermission = await self._json(post(*path, body=body, repeatable=True))
        return answer

    async def list_tool_calls(self, session_id: str) -> types.ToolListAnswer:
        """The client tools of the session, and their calls that wait for an answer."""
        answer: types.ToolListAnswer = await self._json(get("api", "sessions", session_id, "tools"))
        return answer

    async def answer_tool_call(
        self,
        session_id: str,
        call_id: str,
        *,
        result: Any = None,
        error: str | None = None,
        lock: str | None = None,
    ) -> types.ToolAnswerReceipt:
        """Answers a call of a client tool, with an `error` if there is one. The same answer twice counts once."""
        body = {"result": result} if error is None else {"error": error}
        path = ("api", "sessions", session_id, "tools", call_id)
        answer: types.ToolAnswerReceipt = await self._json(post(*path, body=body, lock=lock, repeatable=True))
        return answer

    # Checkpoints

    async def list_checkpoints(
        self, session_id: str, *, limit: int | None = None, before: int | None = None
    ) -> list[types.Checkpoint]:
        """The checkpoints, the newest first."""
        path = ("api", "sessions", session_id, "checkpoints")
        answer: types.CheckpointListAnswer = await self._json(get(*path, limit=limit, before=before))
        return answer["checkpoints"]

    async def create_checkpoint(
        self,
        session_id: str,
        *,
        base: bool | None = None,
        lock: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Saves the session now and returns the number of the checkpoint."""
        path = ("api", "sessions", session_id, "checkpoints")
        key = new_key(idempotency_key)
        request = post(*path, body=given(base=base), lock=lock, idempotency_key=key)
        answer: types.CreatedCheckpointAnswer = await self._json(request)
        return answer["checkpoint"]

    async def get_checkpoint(self, session_id: str, number: int) -> types.CheckpointDetail:
        path = ("api", "sessions", session_id, "checkpoints", str(number))
        answer: types.CheckpointAnswer = await self._json(get(*path))
        return answer["checkpoint"]

    async def diff_checkpoint(
        self, session_id: str, number: int, *, to: int | None = None, all: bool | None = None
    ) -> types.CheckpointDiff:
        """The files that differ between a checkpoint and the current files, or another checkpoint."""
        path = ("api", "sessions", session_id, "checkpoints", str(number), "diff")
        answer: types.CheckpointDiff = await self._json(get(*path, to=to, all=all))
        return answer

    # Files and commands

    async def exec(
        self, session_id: str, command: str, *, timeout: int | None = None, lock: str | None = None
    ) -> types.ExecResult:
        """Runs a command in the sandbox; `timeout` in milliseconds."""
        body = {"command": command, **given(timeout=timeout)}
        seconds = (timeout or 0) / 1000
        request = post("api", "sessions", session_id, "exec", body=body, lock=lock, extra_seconds=seconds)
        answer: types.ExecResult = await self._json(request)
        return answer

    async def get_session_files(
        self, session_id: str, *, include_hidden: bool | None = None, checkpoint: int | None = None
    ) -> types.FileListAnswer:
        path = ("api", "sessions", session_id, "files")
        request = get(*path, include_hidden=include_hidden, checkpoint=checkpoint)
        answer: types.FileListAnswer = await self._json(request)
        return answer

    async def get_session_file(
        self, session_id: str, path: str, *, checkpoint: int | None = None
    ) -> types.FileContentAnswer:
        """A file as text, of at most 1 MiB."""
        segments = ("api", "sessions", session_id, "files", *file_segments(path))
        request = get(*segments, format="json", checkpoint=checkpoint)
        answer: types.FileContentAnswer = await self._json(request)
        return answer

    async def download_session_file(
        self, session_id: str, path: str, *, checkpoint: int | None = None
    ) -> types.DownloadedFile:
        """A file as bytes."""
        segments = ("api", "sessions", session_id, "files", *file_segments(path))
        return await self._file(get(*segments, format="raw", checkpoint=checkpoint))

    async def write_session_files(
        self,
        session_id: str,
        files: types.FileContents,
        *,
        target_path: str | None = None,
        lock: str | None = None,
    ) -> list[types.WrittenFile]:
        """Writes files one by one; each entry of the answer says whether it was written."""
        body = {"files": encoded_files(files), **given(target_path=target_path)}
        request = post("api", "sessions", session_id, "files", body=body, lock=lock)
        answer: types.WrittenFilesAnswer = await self._json(request)
        return answer["files"]

    async def delete_session_file(
        self, session_id: str, path: str, *, lock: str | None = None
    ) -> types.DeletedFileAnswer:
        segments = ("api", "sessions", session_id, "files", *file_segments(path))
        answer: types.DeletedFileAnswer = await self._json(delete(*segments, lock=lock))
        return answer

    async def download_workspace(self, session_id: str) -> bytes:
        """All files as a gzipped tar archive."""
        answer = await self._transport.send(get("api", "sessions", session_id, "workspace"))
        return answer.body

    async def upload_workspace(
        self, session_id: str, bundle: bytes, *, lock: str | None = None
    ) -> types.UploadedWorkspaceAnswer:
        """Merges a tar archive, gzipped or plain, into the files: all of it or nothing."""
        body = {"bundle": base64_text(bundle)}
        request = post("api", "sessions", session_id, "workspace", body=body, lock=lock)
        answer: types.UploadedWorkspaceAnswer = await self._json(request)
        return answer

    async def get_plan(self, session_id: str, *, checkpoint: int | None = None) -> types.Plan:
        """The plan of the session, `plan.md` in its own folder."""
        answer: types.Plan = await self._json(get("api", "sessions", session_id, "plan", checkpoint=checkpoint))
        return answer

    async def list_artifacts(self, session_id: str, *, checkpoint: int | None = None) -> types.ArtifactListAnswer:
        """The documents in the session's own folder."""
        request = get("api", "sessions", session_id, "artifacts", checkpoint=checkpoint)
        answer: types.ArtifactListAnswer = await self._json(request)
        return answer

    async def get_artifact(
        self, session_id: str, path: str, *, checkpoint: int | None = None
    ) -> types.FileContentAnswer:
        """A document as text, of at most 1 MiB."""
        segments = ("api", "sessions", session_id, "artifacts", *file_segments(path))
        request = get(*segments, format="json", checkpoint=checkpoint)
        answer: types.FileContentAnswer = await self._json(request)
        return answer

    async def download_artifact(
        self, session_id: str, path: str, *, checkpoint: int | None = None
    ) -> types.DownloadedFile:
        """A document as bytes."""
        segments = ("api", "sessions", session_id, "artifacts", *file_segments(path))
        return await self._file(get(*segments, format="raw", checkpoint=checkpoint))

    # Workspaces

    async def list_workspaces(self) -> list[types.Workspace]:
        answer: types.WorkspaceListAnswer = await self._json(get("api", "workspaces"))
        return answer["workspaces"]

    async def create_workspace(
        self, slug: str, *, agent: str | None = None, owner: str | None = None
    ) -> types.Workspace:
        body = {"slug": slug, **given(agent=agent, owner=owner)}
        answer: types.WorkspaceAnswer = await self._json(post("api", "workspaces", body=body))
        return answer["workspace"]

    async def get_workspace(self, slug: str) -> types.WorkspaceDetailAnswer:
        """The workspace and its sessions."""
        answer: types.WorkspaceDetailAnswer = await self._json(get("api", "workspaces", slug))
        return answer

    async def delete_workspace(self, slug: str, *, lock: str | None = None) -> types.DeletedWorkspaceAnswer:
        """Deletes the files for good. The sessions stay readable."""
        answer: types.DeletedWorkspaceAnswer = await self._json(delete("api", "workspaces", slug, lock=lock))
        return answer

    async def list_workspace_checkpoints(
        self, slug: str, *, limit: int | None = None, before: int | None = None
    ) -> list[types.Checkpoint]:
        request = get("api", "workspaces", slug, "checkpoints", limit=limit, before=before)
        answer: types.CheckpointListAnswer = await self._json(request)
        return answer["checkpoints"]

    async def get_workspace_files(
        self, slug: str, *, include_hidden: bool | None = None, checkpoint: int | None = None
    ) -> types.FileListAnswer:
        path = ("api", "workspaces", slug, "files")
        request = get(*path, include_hidden=include_hidden, checkpoint=checkpoint)
        answer: types.FileListAnswer = await self._json(request)
        return answer

    # Usage

    async def list_usage_events(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> list[types.UsageEvent]:
        """Single measurements, the newest first. Times are ISO 8601, or ages such as `24h`."""
        request = get("api", "usage", session=session, agent=agent, owner=owner, since=since, until=until, limit=limit)
        answer: types.UsageEventListAnswer = await self._json(request)
        return answer["events"]

    async def get_usage_report(
        self,
        by: Literal["turn", "session", "agent", "owner", "model", "day"],
        *,
        session: str | None = None,
        agent: str | None = None,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> types.UsageReportAnswer:
        """Tokens and costs in groups, and their total."""
        request = get(
            "api",
            "usage",
            by=by,
            session=session,
            agent=agent,
            owner=owner,
            since=since,
            until=until,
            limit=limit,
        )
        answer: types.UsageReportAnswer = await self._json(request)
        return answer

    async def get_usage_stats(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> types.UsageStats:
        request = get("api", "usage", "stats", session=session, agent=agent, owner=owner, since=since, until=until)
        answer: types.UsageStatsAnswer = await self._json(request)
        return answer["stats"]

    # Retention and audit

    async def prune_sessions(
        self,
        older_than: str,
        *,
        status: types.SessionStatus | None = None,
        owner: str | None = None,
        purge: bool | None = None,
        dry_run: bool | None = None,
    ) -> types.PrunedSessionsAnswer:
        """Ends, or with `purge` also moves to the trash, sessions at rest that were not used for this long."""
        body = given(older_than=older_than, status=status, owner=owner, purge=purge, dry_run=dry_run)
        answer: types.PrunedSessionsAnswer = await self._json(post("api", "prune", body=body))
        return answer

    async def get_retention(self) -> types.RetentionAnswer:
        """The server's rules, and the sessions that they would end or purge now."""
        answer: types.RetentionAnswer = await self._json(get("api", "retention"))
        return answer

    async def apply_retention(self) -> types.RetentionAnswer:
        """Applies the server's rules now."""
        answer: types.RetentionAnswer = await self._json(post("api", "retention"))
        return answer

    async def list_audit(
        self,
        *,
        session: str | None = None,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.AuditListAnswer:
        """Who did what; `nextCursor` continues."""
        request = get("api", "audit", session=session, since=since, limit=limit, cursor=cursor)
        answer: types.AuditListAnswer = await self._json(request)
        return answer

    # Keys

    async def list_api_keys(self) -> list[types.ApiKey]:
        answer: types.ApiKeyListAnswer = await self._json(get("api", "api-keys"))
        return answer["keys"]

    async def create_api_key(
        self, *, label: str | None = None, owner: str | None = None, idempotency_key: str | None = None
    ) -> types.CreatedApiKeyAnswer:
        """A new key, shown only once. The key of an `owner` opens only the owner's sessions."""
        body = given(label=label, owner=owner)
        request = post("api", "api-keys", body=body, idempotency_key=new_key(idempotency_key))
        answer: types.CreatedApiKeyAnswer = await self._json(request)
        return answer

    async def delete_api_key(self, key_id: str) -> types.EmptyAnswer:
        answer: types.EmptyAnswer = await self._json(delete("api", "api-keys", key_id))
        return answer

    async def store_credential(
        self, type: types.CredentialKind, key: str, label: str | None = None
    ) -> types.CreatedCredential:
        """Stores a key for a model service. Sessions use it by its id, as `credential_id`; no answer has the key."""
        body = {"type": type, "key": key, **given(label=label)}
        answer: types.CreatedCredentialAnswer = await self._json(post("api", "credentials", body=body))
        return answer["credential"]

    async def store_bedrock_credential(
        self,
        access_key_id: str,
        secret_access_key: str,
        region: str,
        session_token: str | None = None,
        label: str | None = None,
    ) -> types.CreatedCredential:
        """Stores a key for Bedrock. No session uses it: its requests would have to be signed inside the sandbox."""
        key = {
            "accessKeyId": access_key_id,
            "secretAccessKey": secret_access_key,
            "region": region,
            **given(sessionToken=session_token),
        }
        return await self.store_credential("bedrock", json.dumps(key), label)

    async def list_credentials(self) -> list[types.Credential]:
        answer: types.CredentialListAnswer = await self._json(get("api", "credentials"))
        return answer["credentials"]

    async def delete_credential(self, credential_id: str) -> types.EmptyAnswer:
        answer: types.EmptyAnswer = await self._json(delete("api", "credentials", credential_id))
        return answer

    async def create_tenant_api_key(
        self, tenant_id: str, *, label: str | None = None, owner: str | None = None
    ) -> types.CreatedTenantKeyAnswer:
        """A key for another tenant. The `token` of the client must be the server's internal secret."""
        body = {"tenantId": tenant_id, **given(label=label, owner=owner)}
        answer: types.CreatedTenantKeyAnswer = await self._json(post("api", "internal", "api-keys", body=body))
        return answer
