//! The `turnkeep` command as a person runs it, and a service that it runs.

#![allow(dead_code, reason = "each test file uses its part of it")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use turnkeep::clock::{self, Stopwatch};

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output, if it succeeded.
    pub(crate) fn output(self) -> String {
        assert!(self.status.success(), "{}", self.stderr);
        String::from_utf8(self.stdout).unwrap()
    }

    /// Standard output as a JSON value a line, if it succeeded.
    pub(crate) fn json(self) -> Vec<Value> {
        self.output().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What is said on standard error, if it failed and printed nothing else.
    pub(crate) fn failure(self) -> String {
        assert_eq!(self.status.code(), Some(1), "{}", self.stderr);
        assert_eq!(String::from_utf8_lossy(&self.stdout), "");
        self.stderr
    }
}

/// A command line without the caller's own settings.
pub(crate) fn turnkeep(args: &[&str], variables: &[(String, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnkeep"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TURNKEEP_")) {
        command.env_remove(name);
    }
    command
        .args(args)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str], variables: &[(String, String)]) -> Ran {
    let output = turnkeep(args, variables).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Ran { status: output.status, stdout: output.stdout, stderr }
}

/// Lines that a process has written so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    reader: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Lines {
    /// Collects lines until there are no more.
    pub(crate) fn of(stream: impl std::io::Read + Send + 'static) -> Self {
        let lines = Self::default();
        let collected = lines.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                collected.lines.lock().unwrap().push(line);
            }
        });
        *lines.reader.lock().unwrap() = Some(reader);
        lines
    }

    pub(crate) fn so_far(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// All lines of a process that has ended.
    pub(crate) fn all(&self) -> Vec<String> {
        if let Some(reader) = self.reader.lock().unwrap().take() {
            reader.join().unwrap();
        }
        self.so_far()
    }

    /// Waits for something in the lines.
    pub(crate) async fn wait<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        let waiting = Stopwatch::start();
        loop {
            let lines = self.so_far();
            if let Some(found) = find(&lines) {
                return found;
            }
            assert!(waiting.elapsed() < Duration::from_mins(1), "never came: {what} in {lines:#?}");
            clock::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A service that the command runs.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) log: Lines,
    /// URL of the gRPC server.
    pub(crate) address: String,
    /// Address of the HTTP server.
    pub(crate) http: String,
}

impl Served {
    /// Starts `turnkeep serve` on free ports, and waits until it listens.
    pub(crate) async fn start(variables: &[(String, String)], settings: &[&str]) -> Self {
        let mut args = vec!["serve", "--set", "log.format=json"];
        for setting in ["server.listen=127.0.0.1:0", "server.http_listen=127.0.0.1:0"].iter().chain(settings)
        {
            args.extend(["--set", setting]);
        }
        let mut child = turnkeep(&args, variables).stderr(Stdio::piped()).spawn().unwrap();
        let log = Lines::of(child.stderr.take().unwrap());
        let listens = |lines: &[String]| {
            let mut events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.find(|event| event["message"] == "turnkeep listens")
        };
        let event = log.wait("the service listens", listens).await;
        let [grpc, http] = ["grpc", "http"].map(|name| event[name].as_str().unwrap().to_owned());
        Self { child, log, address: format!("http://{grpc}"), http }
    }

    /// Runs a command against the service.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        run(args, &[("TURNKEEP_ADDRESS".to_owned(), self.address.clone())])
    }

    /// The command, to be spawned.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        turnkeep(args, &[("TURNKEEP_ADDRESS".to_owned(), self.address.clone())])
    }

    /// Sends a signal, and waits for the end.
    pub(crate) fn end(mut self, signal: &str) -> (ExitStatus, Vec<String>) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        (self.child.wait().unwrap(), self.log.all())
    }

    /// Stops the service in order.
    pub(crate) fn stop(self) {
        let (status, log) = self.end("TERM");
        assert!(status.success(), "{log:#?}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Of a test that has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
