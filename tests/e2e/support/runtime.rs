//! A server with an agent of either runtime, a model for it, and an object store in a directory.

use super::{Server, claude::program, model::Model};
use serde_json::json;

pub struct Stage {
    pub server: Server,
    pub model: Model,
    pub bucket: tempfile::TempDir,
    pub runtime: &'static str,
}

impl Stage {
    pub async fn set(runtime: &'static str) -> Stage {
        let bucket = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", bucket.path().display());
        let mut server = Server::prepare(&[
            ("ASH_CLAUDE_BIN", &program()),
            ("ANTHROPIC_API_KEY", "sk-outside"),
            ("ASH_SNAPSHOT_URL", &url),
        ]);
        let model = Model::start(&server.dir);
        server.set("ANTHROPIC_BASE_URL", &model.url);
        server.launch().await;
        let agent = server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), format!("runtime = \"{runtime}\"\n")).expect("written");
        server.client().post("/api/agents", json!({ "name": runtime, "path": agent })).await;
        Stage { server, model, bucket, runtime }
    }
}
