//! A Postgres server of the test's own, to be stopped without warning.

use super::eventually;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A server. It ends with the test.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    directory: TempDir,
    port: u16,
    process: Child,
}

impl PostgresServer {
    /// A new server; nothing if this machine has none, which shows in there
    /// being none for the other tests.
    pub(crate) async fn start() -> Option<Self> {
        if std::env::var_os("TURNKEEP_TEST_POSTGRES").is_none() {
            println!("skipped: TURNKEEP_TEST_POSTGRES names no Postgres, so its programs are not asked for");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // Postgres does not run as root, and its user must get to its files.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres:").arg(&data));
        }
        let mut initdb = as_postgres("initdb");
        initdb.args(["-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
        run(initdb.arg("-D").arg(&data).current_dir(&data));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = spawn(&data, port);
        let server = Self { directory, port, process };
        server.ready().await;
        Some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops it in the middle of whatever it does, as a crash would, and starts
    /// it again.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.stop();
        self.process = spawn(&self.directory.path().join("data"), self.port);
        self.ready().await;
    }

    async fn ready(&self) {
        let state = self.directory.path().join("data/postmaster.pid");
        eventually("a server that is ready", async || {
            fs::read_to_string(&state).is_ok_and(|state| state.contains("ready")).then_some(())
        })
        .await;
    }

    fn stop(&mut self) {
        // An immediate shutdown: no checkpoint, connections just end.
        run(Command::new("kill").arg("-QUIT").arg(self.process.id().to_string()));
        self.process.wait().unwrap();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// One of Postgres's programs, as its user and ended with this thread.
fn as_postgres(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=QUIT");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    command.arg(program);
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn spawn(data: &PathBuf, port: u16) -> Child {
    let mut server = as_postgres("postgres");
    server.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    server.arg("-p").arg(port.to_string()).arg("-D").arg(data).current_dir(data);
    server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
