//! Agents with their versions.

use crate::fixture::{agent, env, idempotency_request, tenant};
use ash_model::{AgentRuntime, Image, ModelProvider, ResourceLimits, SandboxRequirements, Timestamp};
use ash_store::{AgentRow, DeployIdempotencyKey, KeptAgentCounts, NewAgentVersion, SecretEnv, Store};
use std::collections::BTreeMap;

contract! {
    a_deployed_agent_is_there_as_it_came
    each_deploy_is_a_version_of_its_own
    one_idempotency_key_makes_one_version
    the_kept_agents_include_deleted_ones
    agents_are_listed_by_name
    an_agent_changes_only_where_it_is_asked_to
    a_deleted_agent_goes_on_counting_but_forgets_its_settings
}

pub(crate) fn new_agent(name: &str) -> NewAgentVersion {
    NewAgentVersion {
        tenant: tenant("t"),
        name: agent(name),
        tree: "tree-1".into(),
        runtime: AgentRuntime::Builtin,
        provider: None,
        image: None,
        limits: None,
        needs: SandboxRequirements::default(),
        origin: "/agents/helper".into(),
        env: None,
        claim: None,
        at: Timestamp(1),
    }
}

/// An agent without its random id and with plain secrets, so that whole values can be compared.
type Seen = (u32, AgentRuntime, String, String, String, BTreeMap<String, String>, (Timestamp, Timestamp));

fn seen(agent: &AgentRow) -> Seen {
    let AgentRow { version, runtime, tree, origin, config, env, created_at, updated_at, .. } = agent.clone();
    (version, runtime, tree, origin, config, env.expose(), (created_at, updated_at))
}

async fn a_deployed_agent_is_there_as_it_came(store: &dyn Store) {
    let deployed = store.deploy(NewAgentVersion { env: Some(env("K", "v")), ..new_agent("helper") }).await;
    let deployed = deployed.expect("deployed");
    let expected = (
        1,
        AgentRuntime::Builtin,
        "tree-1".to_owned(),
        "/agents/helper".to_owned(),
        "{}".to_owned(),
        env("K", "v").expose(),
        (Timestamp(1), Timestamp(1)),
    );
    assert_eq!(seen(&deployed), expected);
    let found = store.agent(&tenant("t"), &agent("helper")).await.expect("read").expect("there");
    assert_eq!((found.id, seen(&found)), (deployed.id, expected));
    assert!(store.agent(&tenant("other"), &agent("helper")).await.expect("read").is_none());
    assert!(store.agents(&tenant("other")).await.expect("read").is_empty());
}

async fn each_deploy_is_a_version_of_its_own(store: &dyn Store) {
    let first = store.deploy(NewAgentVersion { env: Some(env("K", "v")), ..new_agent("helper") }).await;
    let first = first.expect("deployed");
    let second = NewAgentVersion {
        tree: "tree-2".into(),
        runtime: AgentRuntime::Claude,
        provider: Some(ModelProvider::Offline),
        image: Some(Image::parse("python:3.13").expect("a name")),
        limits: ResourceLimits::parse("memoryMb=64").ok(),
        needs: SandboxRequirements {
            install_seconds: Some(7),
            user_namespaces: true,
            ..SandboxRequirements::default()
        },
        origin: "elsewhere".into(),
        at: Timestamp(2),
        ..new_agent("helper")
    };
    let second = store.deploy(second).await.expect("deployed");
    assert_eq!((second.id, second.version), (first.id, 2));
    assert_eq!((second.created_at, second.updated_at), (Timestamp(1), Timestamp(2)));
    assert_eq!(second.env.expose(), env("K", "v").expose(), "an env that is not given is kept");
    let version = async |n| store.version(&tenant("t"), &agent("helper"), n).await.expect("read");
    let (one, two) = (version(1).await.expect("there"), version(2).await.expect("there"));
    assert_eq!((one.tree.as_str(), one.runtime, one.provider), ("tree-1", AgentRuntime::Builtin, None));
    let expected = ("tree-2", AgentRuntime::Claude, Some(ModelProvider::Offline));
    assert_eq!((two.tree.as_str(), two.runtime, two.provider), expected);
    assert_eq!(second.provider, Some(ModelProvider::Offline));
    let image = |named: &Option<Image>| named.as_ref().map(ToString::to_string);
    let named = Some("python:3.13".to_owned());
    assert_eq!((image(&one.image), image(&two.image), image(&second.image)), (None, named.clone(), named));
    let needs = SandboxRequirements {
        install_seconds: Some(7),
        user_namespaces: true,
        ..SandboxRequirements::default()
    };
    assert_eq!((one.needs, two.needs, second.needs), (SandboxRequirements::default(), needs, needs));
    assert_eq!(two.env.expose(), env("K", "v").expose());
    assert!(version(0).await.is_none() && version(3).await.is_none());
    let names: Vec<u32> = store.agents(&tenant("t")).await.expect("read").iter().map(|a| a.version).collect();
    assert_eq!(names, [2]);
    let emptied =
        store.deploy(NewAgentVersion { env: Some(SecretEnv::default()), ..new_agent("helper") }).await;
    assert!(emptied.expect("deployed").env.expose().is_empty());
}

async fn one_idempotency_key_makes_one_version(store: &dyn Store) {
    let claim = DeployIdempotencyKey { route: "POST /api/agents".into(), key: "k".into() };
    let keyed =
        |tree: &str| NewAgentVersion { tree: tree.into(), claim: Some(claim.clone()), ..new_agent("helper") };
    let request = idempotency_request(&claim.route, &claim.key, "helper");
    store.claim_idempotency_key(request).await.expect("claimed");
    let first = store.deploy(keyed("tree-1")).await.expect("deployed");
    store.deploy(NewAgentVersion { tree: "tree-2".into(), ..new_agent("helper") }).await.expect("deployed");
    let again = store.deploy(keyed("tree-3")).await.expect("deployed before");
    assert_eq!((first.version, again.version, again.tree.as_str()), (1, 1, "tree-1"));
    let newest = store.agent(&tenant("t"), &agent("helper")).await.expect("read").expect("there");
    assert_eq!((newest.version, newest.tree.as_str()), (2, "tree-2"));
    store.delete_agent(&tenant("t"), &agent("helper"), Timestamp(3)).await.expect("deleted");
    assert_eq!(store.deploy(keyed("tree-4")).await.expect("deployed before").version, 1);
    assert!(store.agent(&tenant("t"), &agent("helper")).await.expect("read").is_none());
}

async fn the_kept_agents_include_deleted_ones(store: &dyn Store) {
    for name in ["a", "a", "b"] {
        store.deploy(new_agent(name)).await.expect("deployed");
    }
    store.deploy(NewAgentVersion { tenant: tenant("other"), ..new_agent("a") }).await.expect("deployed");
    store.delete_agent(&tenant("t"), &agent("a"), Timestamp(3)).await.expect("deleted");
    let kept = async |name: &str| store.kept_agents(&tenant("t"), &agent(name)).await.expect("read");
    assert_eq!(kept("a").await, KeptAgentCounts { names: 2, versions: 2 });
    assert_eq!(kept("c").await, KeptAgentCounts { names: 2, versions: 0 });
}

async fn agents_are_listed_by_name(store: &dyn Store) {
    for name in ["b", "c", "a"] {
        store.deploy(new_agent(name)).await.expect("deployed");
    }
    store.deploy(NewAgentVersion { tenant: tenant("other"), ..new_agent("d") }).await.expect("deployed");
    let listed = store.agents(&tenant("t")).await.expect("read");
    assert_eq!(listed.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
}

async fn an_agent_changes_only_where_it_is_asked_to(store: &dyn Store) {
    let (mine, name) = (tenant("t"), agent("helper"));
    assert!(!store.change_agent(&mine, &name, Some("{}".into()), None).await.expect("no such agent"));
    store
        .deploy(NewAgentVersion { env: Some(env("K", "v")), ..new_agent("helper") })
        .await
        .expect("deployed");
    store.deploy(NewAgentVersion { tenant: tenant("other"), ..new_agent("helper") }).await.expect("deployed");

    assert!(store.change_agent(&mine, &name, Some("{\"a\":1}".into()), None).await.expect("changed"));
    let now = store.agent(&mine, &name).await.expect("read").expect("there");
    assert_eq!((now.config.as_str(), now.env.expose()), ("{\"a\":1}", env("K", "v").expose()));
    assert!(store.change_agent(&mine, &name, None, Some(env("L", "w"))).await.expect("changed"));
    let now = store.agent(&mine, &name).await.expect("read").expect("there");
    assert_eq!((now.config.as_str(), now.env.expose()), ("{\"a\":1}", env("L", "w").expose()));
    assert!(store.change_agent(&mine, &name, None, Some(SecretEnv::default())).await.expect("changed"));
    let now = store.agent(&mine, &name).await.expect("read").expect("there");
    assert!(now.env.expose().is_empty());
    let other = store.agent(&tenant("other"), &name).await.expect("read").expect("there");
    assert_eq!(other.config, "{}");
}

async fn a_deleted_agent_goes_on_counting_but_forgets_its_settings(store: &dyn Store) {
    let (mine, name) = (tenant("t"), agent("helper"));
    assert!(!store.delete_agent(&mine, &name, Timestamp(2)).await.expect("no such agent"));
    let first = store.deploy(NewAgentVersion { env: Some(env("K", "v")), ..new_agent("helper") }).await;
    let first = first.expect("deployed");
    store.change_agent(&mine, &name, Some("{\"a\":1}".into()), None).await.expect("changed");
    assert!(!store.delete_agent(&tenant("other"), &name, Timestamp(2)).await.expect("not theirs"));
    assert!(store.delete_agent(&mine, &name, Timestamp(2)).await.expect("deleted"));
    assert!(!store.delete_agent(&mine, &name, Timestamp(3)).await.expect("deleted before"));

    assert!(store.agent(&mine, &name).await.expect("read").is_none());
    assert!(store.agents(&mine).await.expect("read").is_empty());
    let kept = store.version(&mine, &name, 1).await.expect("read").expect("for its sessions");
    assert_eq!((kept.tree.as_str(), kept.env.expose()), ("tree-1", env("K", "v").expose()));
    assert!(!store.change_agent(&mine, &name, Some("{}".into()), None).await.expect("no such agent"));

    let again = store.deploy(new_agent("helper")).await.expect("deployed");
    assert_eq!((again.id, again.version), (first.id, 2));
    assert!(again.env.expose().is_empty(), "a secret of the deleted agent came back");
    assert_eq!(again.config, "{}");
    assert!(store.version(&mine, &name, 1).await.expect("read").is_some());
}
