"""Calls every method of both clients against the real server."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from both import CALLED, Kind, connect, public_methods
from reading import until
from server import INTERNAL_SECRET, Server

from ash_client import (
    AshClient,
    AshError,
    AsyncAshClient,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(client: AsyncAshClient) -> str:
    return (await client.create_session("default"))["id"]


async def test_the_server_describes_itself(client: AsyncAshClient, server: Server) -> None:
    assert (await client.health())["status"] == "ok"
    assert (await client.get_server())["name"] == "ash"
    assert "# TYPE ash_" in await client.get_metrics()
    document = await client.get_open_api()
    assert document["openapi"].startswith("3.1") and document == await client.get_docs_json()
    assert (await client.get_docs_yaml()).lstrip().startswith(("components:", "openapi:", "---"))
    assert "<html" in (await client.get_docs()).lower()


async def test_an_agent_is_deployed_changed_and_deleted(client: AsyncAshClient, kind: Kind, tmp_path: Path) -> None:
    name = f"writer-{kind}"
    first = await client.create_agent(name, files={"CLAUDE.md": "# Writes", "data/x.bin": b"\x00\xff"}, env={"A": "1"})
    assert (first["name"], first["version"]) == (name, 1)
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "CLAUDE.md").write_text("# Writes better")
    second = await client.deploy_agent(name, str(folder))
    assert second["version"] == 2
    assert name in [agent["name"] for agent in await client.list_agents()]
    assert (await client.update_agent(name, env={"TEAM": "blue"})).get("env") == {"TEAM": "***"}
    assert await client.update_agent_config(name, {"colour": "red"}) == {"colour": "red"}
    assert await client.get_agent_config(name) == {"colour": "red"}
    assert (await client.get_agent(name))["version"] == 2
    assert (await client.delete_agent(name))["ok"]
    with pytest.raises(NotFoundError) as refused:
        await client.get_agent(name)
    assert (refused.value.code, refused.value.status_code) == ("agent_not_found", 404)


async def test_a_session_lives(client: AsyncAshClient, kind: Kind) -> None:
    created = await client.create_session(
        "default", session_id=f"life-{kind}", permission_mode="bypassPermissions", env={"TEAM": "blue"}, max_turns=50
    )
    own = created["id"]
    assert (own, created["status"], created["config"].get("maxTurns")) == (f"life-{kind}", "active", 50)
    result = await client.send_message(own, "run: echo $TEAM > team; cat team")
    assert (result["status"], result["text"], result["error"]) == ("done", "blue", None)
    assert (await client.pause_session(own))["status"] == "paused"
    with pytest.raises(AshError) as refused:
        await client.pause_session(own)
    assert refused.value.code == "wrong_status"
    resumed = await client.resume_session(own)
    assert resumed["status"] == "active" and resumed["resume"] is not None
    assert (resumed["resume"]["tier"], resumed["resume"]["verified"], resumed["resume"]["lost"]) == ("native", True, [])
    assert (await client.stop_session(own))["status"] == "stopped"
    assert (await client.resume_session(own, max_turns=60, wait=5))["config"].get("maxTurns") == 60
    assert (await client.update_session_config(own, max_tokens=10**9))["config"].get("maxTokens") == 10**9
    assert (await client.update_session_metadata(own, {"my_ticket": "42"}))["metadata"] == {"my_ticket": "42"}
    found = await client.list_sessions(
        "default", "active", metadata={"my_ticket": "42"}, id_prefix=own, newer_than="1h"
    )
    assert [one["id"] for one in found] == [own]
    shown = await client.get_session(own)
    assert (shown["openTurns"], shown["pending"], shown["usage"]["turns"]) == (0, [], 1)
    page = await client.list_sessions_with_total(id_prefix="life-", limit=1)
    assert (len(page["sessions"]), page["total"] >= 1) == (1, True)
    fork = await client.fork_session(own, new_session_id=f"{own}-2")
    assert (fork["id"], fork["parentSessionId"], fork["status"]) == (f"{own}-2", own, "paused")
    assert (await client.interrupt_session(own))["turn"] is None
    assert (await client.end_session(fork["id"]))["purged"] is False
    with pytest.raises(ConflictError) as gone:
        await client.resume_session(fork["id"])
    assert (gone.value.code, gone.value.status_code) == ("session_ended", 410)
    ended = await client.end_session(own, purge=True)
    assert (ended["id"], ended["purged"]) == (own, True)


async def test_a_session_rewinds_to_a_checkpoint(client: AsyncAshClient, session: str) -> None:
    await client.send_message(session, "write note: first")
    await client.send_message(session, "write note: second")
    checkpoints = await client.list_checkpoints(session, limit=10)
    assert [one["number"] for one in checkpoints] == [2, 1]
    assert (await client.get_checkpoint(session, 1))["number"] == 1
    diff = await client.diff_checkpoint(session, 1, to=2)
    assert [(file["change"], file["path"]) for file in diff["files"]] == [("modified", "note")]
    await client.exec(session, "echo third > note")
    assert await client.create_checkpoint(session) == 3
    rewound = await client.rewind_session(session, 1)
    assert (rewound["rewound"]["checkpoint"], rewound["rewound"]["from"]) == (1, 3)
    assert (await client.get_session_file(session, "note"))["content"] == "first"
    assert (await client.get_session_file(session, "note", checkpoint=2))["content"] == "second"


async def test_messages_events_and_logs_are_listed(client: AsyncAshClient, session: str) -> None:
    await client.send_message(session, [{"type": "text", "text": "run: echo hi"}])
    messages = await client.list_messages(session, limit=10)
    assert [message["role"] for message in messages][0] == "user"
    later = await client.list_messages(session, after_sequence=messages[0]["sequence"], all=True)
    assert [message["id"] for message in later] == [message["id"] for message in messages[1:]]
    events = await client.list_session_events(session, type="lifecycle")
    assert {event["type"] for event in events} == {"lifecycle"}
    assert isinstance((await client.get_session_logs(session))["logs"], list)


async def test_waiting_messages_are_reordered_and_withdrawn(client: AsyncAshClient, session: str) -> None:
    first = client.send_message_stream(session, "hold go: one two", include_partial_messages=True)
    await until(first, "text_delta")
    others = [client.send_message_stream(session, text) for text in ("second", "third")]
    second, third = [(await until(other, "session_start")).data["turn"] for other in others]
    queue = await client.reorder_queue(session, [third])
    assert [waiting["turn"] for waiting in queue][-2:] == [third, second]
    assert (await client.withdraw_message(session, second))["status"] == "cancelled"
    assert [waiting["turn"] for waiting in await client.list_queue(session)][1:] == [third]
    done = await until(others[0], "done")
    assert (done.data["turn"], done.data["status"]) == (second, "cancelled")
    await client.write_session_files(session, {"go": ""})
    assert (await until(others[1], "done")).data["status"] == "done"
    assert (await until(first, "done")).data["status"] == "done"


async def test_a_lock_refuses_other_writers(client: AsyncAshClient, session: str) -> None:
    assert await client.get_lock(session) is None
    lock = await client.acquire_lock(session, ttl=60, holder="tests")
    assert (await client.acquire_lock(session, lock=lock["token"]))["number"] == lock["number"]
    shown = await client.get_lock(session)
    assert shown is not None and shown["holder"] == "tests"
    with pytest.raises(ConflictError) as refused:
        await client.send_message(session, "hello")
    assert refused.value.code == "session_locked"
    with pytest.raises(ConflictError):
        await client.send_message_stream(session, "hello").__anext__()
    assert (await client.send_message(session, "hello", lock=lock["token"]))["status"] == "done"
    assert await client.release_lock(session, lock["token"]) is None


async def test_files_go_in_and_out(client: AsyncAshClient, session: str) -> None:
    files: dict[str, str | bytes] = {"in.txt": "grüße\n", "a folder/b#?.bin": b"\x00\xff"}
    written = await client.write_session_files(session, files)
    assert sorted(file["path"] for file in written if file["written"]) == sorted(files)
    await client.write_session_files(session, {"x": "y"}, target_path="deep/er")
    listed = await client.get_session_files(session, include_hidden=False)
    assert {file["path"] for file in listed["files"]} >= {*files, "deep/er/x"}
    assert (await client.get_session_file(session, "in.txt"))["content"] == "grüße\n"
    downloaded = await client.download_session_file(session, "a folder/b#?.bin")
    assert (downloaded.content, downloaded.source) == (b"\x00\xff", "sandbox")
    assert (await client.delete_session_file(session, "in.txt"))["deleted"]
    with pytest.raises(NotFoundError):
        await client.get_session_file(session, "in.txt")
    for outside in ("../x", "a/../../x", "", "/etc/passwd"):
        with pytest.raises(InvalidRequestError) as refused:
            await client.delete_session_file(session, outside)
        assert refused.value.code == "invalid_path"
    result = await client.exec(session, "cat 'deep/er/x'; echo no >&2; exit 3", timeout=20_000)
    assert (result["exitCode"], result["stdout"], result["stderr"]) == (3, "y", "no\n")


async def test_an_archive_goes_in_and_out(client: AsyncAshClient, session: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("src/main.txt")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"hi"))
    assert (await client.upload_workspace(session, archive.getvalue()))["written"] >= 1
    with tarfile.open(fileobj=io.BytesIO(await client.download_workspace(session))) as tar:
        assert any(name.endswith("src/main.txt") for name in tar.getnames())


async def test_a_session_has_a_plan_and_documents(client: AsyncAshClient, session: str) -> None:
    await client.exec(session, 'echo look > "$ASH_SESSION_DIR/plan.md"; echo hi > "$ASH_SESSION_DIR/files/a.txt"')
    assert (await client.get_plan(session))["plan"] == "look\n"
    assert [entry["path"] for entry in (await client.list_artifacts(session))["artifacts"]] == ["a.txt"]
    assert (await client.get_artifact(session, "a.txt"))["content"] == "hi\n"
    assert (await client.download_artifact(session, "a.txt")).content == b"hi\n"


async def test_sessions_share_a_workspace(client: AsyncAshClient, kind: Kind) -> None:
    slug = f"shared-{kind}"
    assert (await client.create_workspace(slug, agent="default"))["slug"] == slug
    left, right = [(await client.create_session("default", workspace=slug))["id"] for _ in range(2)]
    await client.exec(left, "echo hello > note")
    assert (await client.exec(right, "cat note"))["stdout"] == "hello\n"
    await client.send_message(left, "hello")
    assert slug in [workspace["slug"] for workspace in await client.list_workspaces()]
    assert {member["id"] for member in (await client.get_workspace(slug))["sessions"]} == {left, right}
    assert "note" in [file["path"] for file in (await client.get_workspace_files(slug))["files"]]
    assert len(await client.list_workspace_checkpoints(slug, limit=5)) >= 1
    for session in (left, right):
        await client.end_session(session)
    assert (await client.delete_workspace(slug))["deleted"] == slug


async def test_permissions_are_listed_and_answered(client: AsyncAshClient, session: str) -> None:
    # The agent that comes with the server asks for none.
    assert await client.list_permissions(session) == []
    with pytest.raises(NotFoundError) as refused:
        await client.answer_permission(session, "01a1f5f3-b03a-73f6-85d1-f0b67d183c45", "deny", message="no")
    assert refused.value.code == "permission_not_found"


async def test_usage_is_counted(client: AsyncAshClient, session: str) -> None:
    await client.send_message(session, "hello")
    events = await client.list_usage_events(session=session, since="1h")
    assert {event["sessionId"] for event in events} == {session}
    report = await client.get_usage_report("model", session=session)
    assert report["by"] == "model" and report["total"]["rounds"] == 1
    assert (await client.get_usage_stats(session=session))["totalMessages"] == 1


async def test_a_budget_ends_the_turns(client: AsyncAshClient) -> None:
    limited = (await client.create_session("default", max_tokens=1))["id"]
    await client.send_message(limited, "run: echo hi")
    with pytest.raises(ConflictError) as refused:
        await client.send_message(limited, "hello")
    assert refused.value.code == "budget_reached"


async def test_retention_and_audit(client: AsyncAshClient, session: str) -> None:
    pruned = await client.prune_sessions("365d", status="ended", purge=True, dry_run=True)
    assert (pruned["dryRun"], pruned["sessions"]) == (True, [])
    assert (await client.get_retention())["rules"] == ["ended:365d=purge"]
    assert (await client.apply_retention())["sessions"] == []
    await client.end_session(session)
    audit = await client.list_audit(session=session, since="1h", limit=10)
    assert "ended" in [line["action"] for line in audit["audit"]]


async def test_credentials_are_stored_listed_and_removed(client: AsyncAshClient) -> None:
    stored = await client.store_credential("anthropic", "sk-secret-of-a-test", "research")
    assert (stored["type"], stored["label"]) == ("anthropic", "research")
    bedrock = await client.store_bedrock_credential("a", "b", "c")
    listed = await client.list_credentials()
    assert [one["id"] for one in listed] == [bedrock["id"], stored["id"]]
    assert "sk-secret" not in str(listed)
    with pytest.raises(AshError) as refused:
        await client.create_session("default", credential_id=bedrock["id"])
    assert refused.value.code == "option_unsupported"
    for one in listed:
        assert await client.delete_credential(one["id"]) == {}
    assert await client.list_credentials() == []


async def test_keys_are_made_and_removed(client: AsyncAshClient, server: Server, kind: Kind) -> None:
    made = await client.create_api_key(label="tests", owner="alice")
    hers = connect(kind, server.url, made["key"])
    assert (await hers.create_session("default")).get("owner") == "alice"
    with pytest.raises(AuthenticationError) as refused:
        await hers.list_audit()
    assert refused.value.code == "admin_only"
    await hers.aclose()
    assert made["id"] in [key["id"] for key in await client.list_api_keys()]
    assert await client.delete_api_key(made["id"]) == {}
    operator = connect(kind, server.url, INTERNAL_SECRET)
    other = await operator.create_tenant_api_key("other-tenant", label="tests")
    await operator.aclose()
    assert other["tenantId"] == "other-tenant"
    nobody = connect(kind, server.url, "a wrong key")
    with pytest.raises(AuthenticationError) as unknown:
        await nobody.list_agents()
    assert (unknown.value.code, unknown.value.status_code) == ("unauthorized", 401)
    await nobody.aclose()


async def test_a_repeated_key_has_the_effect_of_one_request(client: AsyncAshClient, kind: Kind) -> None:
    key = f"once-{kind}"
    first = await client.create_session("default", idempotency_key=key)
    assert (await client.create_session("default", idempotency_key=key))["id"] == first["id"]
    turns = {(await client.send_message(first["id"], "hello", idempotency_key=key))["turn"] for _ in range(2)}
    forks = {(await client.fork_session(first["id"], idempotency_key=key))["id"] for _ in range(2)}
    assert (len(turns), len(forks), len(await client.list_messages(first["id"]))) == (1, 1, 3)


async def test_unknown_options_are_refused_by_name(client: AsyncAshClient) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await client.create_session("default", modle="x")  # type: ignore[call-arg]
    assert refused.value.code == "unknown_field" and "model" in refused.value.message


def test_every_method_of_both_clients_was_called(request: pytest.FixtureRequest) -> None:
    # A run of a few tests says nothing about the other methods. The slow file calls no method that only it calls.
    files = {item.path.name for item in request.session.items}
    needed = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {"test_server_dies.py"}
    if not files >= needed:
        pytest.skip("only a part of the tests runs")
    asynchronous = public_methods(AsyncAshClient)
    synchronous = public_methods(AshClient)
    missing = {("async", name) for name in asynchronous} | {("sync", name) for name in synchronous}
    assert sorted(missing - CALLED) == []
