//! The service as a process of its own.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::sync::oneshot;

/// Where a service keeps what it has.
#[derive(Debug)]
pub(crate) struct Place {
    settings: BTreeMap<&'static str, String>,
}

impl Place {
    /// Everything in one directory.
    pub(crate) fn local(data: &Path) -> Self {
        Self::new([("store.data_dir", data.display().to_string())])
    }

    /// In Postgres and S3.
    #[cfg(feature = "s3")]
    pub(crate) fn remote(url: &str, prefix: &str) -> Self {
        Self::new([
            ("store.metadata", url.to_owned()),
            ("blobs.kind", "s3".to_owned()),
            ("blobs.bucket", std::env::var("TURNKEEP_TEST_S3_BUCKET").unwrap()),
            ("blobs.endpoint", std::env::var("TURNKEEP_TEST_S3_ENDPOINT").unwrap()),
            ("blobs.prefix", prefix.to_owned()),
            ("blobs.path_style", "true".to_owned()),
        ])
    }

    fn new<const N: usize>(place: [(&'static str, String); N]) -> Self {
        // So busy that a kill meets with seals, roll-ups and sweeps.
        let busy = [
            ("server.listen", "127.0.0.1:0"),
            ("server.http_listen", "127.0.0.1:0"),
            ("server.drain_grace_seconds", "5"),
            ("seal.raw_bytes", "3000"),
            ("seal.oldest_seconds", "1"),
            ("seal.interval_seconds", "1"),
            ("sweep.interval_seconds", "1"),
            ("sweep.grace_seconds", "1"),
            ("log.format", "json"),
            ("log.level", "info"),
        ];
        let busy = busy.map(|(name, value)| (name, value.to_owned()));
        Self { settings: place.into_iter().chain(busy).collect() }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnkeep"));
        command.arg(verb);
        for (name, value) in &self.settings {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        command
    }
}

/// A service that runs.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
}

impl Process {
    /// Starts a service and waits until it listens.
    pub(crate) async fn start(place: &Place) -> Self {
        let mut child = place.command("serve").stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (tell, told) = oneshot::channel();
        // Reads to the end, so that the service never waits for a reader.
        std::thread::spawn(move || {
            let (mut tell, mut said) = (Some(tell), Vec::new());
            for line in log.lines().map_while(Result::ok) {
                let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                if let Some(grpc) = event["grpc"].as_str() {
                    if let Some(tell) = tell.take() {
                        let _ = tell.send(grpc.to_owned());
                    }
                } else if event["level"] != "INFO" {
                    said.push(line);
                }
            }
            // Shown if the test fails.
            for line in said {
                println!("{line}");
            }
        });
        let grpc = crate::stores::soon("the start of a service", told).await.unwrap();
        Self { child, address: format!("http://{grpc}") }
    }

    /// Ends it at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order.
    pub(crate) fn terminate(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Of a test that failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks what a service left; it must find nothing.
pub(crate) fn fsck(place: &Place) {
    let output = place.command("fsck").args(["--deep", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
    assert!(output.status.success() && report["turns"].as_u64().unwrap() > 0, "{output:?}");
}
