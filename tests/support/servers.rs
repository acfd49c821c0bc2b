//! Third-party object stores, as processes on loopback: moto (S3) and Azurite (Azure). Each reads its stdin and exits
//! when that ends, so nothing is left however the test ends. Tests include it by `#[path]`.

#![allow(dead_code, reason = "each test uses its own part")]

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// One request at a time: with threads, moto lets two requests create one key that both found free.
const MOTO: &str = r#"
import os, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print("port", server.port, flush=True)
server.serve_forever()
"#;

const AZURITE: &str = r#"
process.stdin.on("end", () => process.exit()).resume();
require(process.argv[1]);
"#;

/// The public key that Azurite comes with.
const AZURITE_ACCOUNT: &str = "devstoreaccount1";
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// A token signed with that key: all rights, until 2099.
pub const AZURITE_SAS: &str = "sv=2020-12-06&ss=b&srt=sco&sp=rwdlacu&se=2099-01-01T00:00:00Z&spr=https,http&\
                               sig=s5v%2BGsuapuhnT0%2F9U2mas9rL%2FxGBb2sp%2BbLRPcFdS7k%3D";

pub struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// An S3 server, and what a client's environment needs to use it.
    pub fn moto() -> (Server, BTreeMap<String, String>) {
        let python = tool("ASH_TEST_MOTO");
        let server = Server::start(Command::new(python).args(["-c", MOTO]), "port ");
        let env = environment(&[
            ("AWS_ENDPOINT_URL", &server.url()),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test-secret"),
        ]);
        (server, env)
    }

    /// An Azure server, and what a client's environment needs to use it.
    pub fn azurite() -> (Server, BTreeMap<String, String>) {
        let main = tool("ASH_TEST_AZURITE");
        let mut command = Command::new("node");
        command.arg("-e").arg(AZURITE).arg(main).args(["--blobHost", "127.0.0.1", "--blobPort", "0"]);
        command.args(["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
        let server = Server::start(&mut command, "successfully listens on http://127.0.0.1:");
        let env = environment(&[
            ("AZURE_STORAGE_ENDPOINT", &format!("{}/{AZURITE_ACCOUNT}", server.url())),
            ("AZURE_STORAGE_ACCOUNT_NAME", AZURITE_ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY),
        ]);
        (server, env)
    }

    /// Stops the server.
    pub fn stop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn make_s3_bucket(&self, name: &str) {
        self.put(&format!("/{name}"));
    }

    pub fn make_azure_container(&self, name: &str) {
        self.put(&format!("/{AZURITE_ACCOUNT}/{name}?restype=container&{AZURITE_SAS}"));
    }

    /// Deletes an object of an S3 server, as a lifecycle rule of the bucket would.
    pub fn delete_from_s3(&self, path: &str) {
        // Moto reads only the access key id and checks no signature.
        let credential = "Credential=test/20260101/us-east-1/s3/aws4_request";
        let rest = "SignedHeaders=host, Signature=0";
        self.ask("DELETE", path, &format!("Authorization: AWS4-HMAC-SHA256 {credential}, {rest}\r\n"));
    }

    fn put(&self, path: &str) {
        self.ask("PUT", path, "");
    }

    fn ask(&self, method: &str, path: &str, header: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server is up");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        let host = self.port;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{host}\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')), "{answer}");
    }

    /// The server listens once it prints its port, after `mark` on a separate line.
    fn start(command: &mut Command, mark: &'static str) -> Server {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("{:?}: {e}; ./test installs what the tests need", command.get_program())
            });
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut stderr = child.stderr.take().expect("stderr");
        let (say, heard) = mpsc::channel();
        // Keeps reading, so that a full pipe never blocks the server.
        std::thread::spawn(move || {
            while let Some(Ok(line)) = lines.next() {
                if let Some((_, port)) = line.split_once(mark) {
                    // The test may have ended.
                    let _ = say.send(port.trim().parse::<u16>());
                }
            }
        });
        let (fail, failed) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            let _ = fail.send(text);
        });
        match heard.recv_timeout(DEADLINE) {
            Ok(Ok(port)) => Server { child, port },
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{:?} did not start: {}", command.get_program(), failed.recv().unwrap_or_default());
            }
        }
    }
}

pub fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn tool(variable: &str) -> OsString {
    std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run ./test, which installs it"))
}
