//! A TCP proxy before Postgres that does harm at `COMMIT`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// What happens to a `COMMIT`. The client's connection breaks in each case.
#[derive(Debug)]
pub(crate) enum Harm {
    /// It never reaches the server.
    Swallow,
    /// It reaches the server, whose answer does not reach the client.
    SwallowAnswer,
    /// It reaches the server once this is told.
    Delay(oneshot::Receiver<()>),
    /// It reaches the server, and the client gets this for an answer.
    Answer(Vec<u8>),
    /// It never reaches the server, and the client gets this for an answer.
    Refuse(Vec<u8>),
}

/// A proxy. It ends with the test.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    harms: Arc<Mutex<Vec<Harm>>>,
    /// How often it fell silent: older connections are.
    silence: watch::Sender<u64>,
}

impl Proxy {
    /// A proxy before the server that a URL names.
    pub(crate) async fn before(url: &str) -> Self {
        let server = authority(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let harms = Arc::new(Mutex::default());
        let (silence, silenced) = watch::channel(0);
        tokio::spawn({
            let harms = Arc::clone(&harms);
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    let server = TcpStream::connect(&server).await.unwrap();
                    let made = *silenced.borrow();
                    tokio::spawn(pass(client, server, Arc::clone(&harms), silenced.clone(), made));
                }
            }
        });
        Self { address, harms, silence }
    }

    /// The URL with the proxy in place of the server.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replacen(authority(url), &self.address.to_string(), 1)
    }

    /// Does harm to the next `COMMIT`.
    pub(crate) fn arm(&self, harm: Harm) {
        self.harms.lock().unwrap().push(harm);
    }

    /// Whether all harm is done.
    pub(crate) fn is_spent(&self) -> bool {
        self.harms.lock().unwrap().is_empty()
    }

    /// From now on nothing passes through the connections that there are, and
    /// neither end is told.
    pub(crate) fn silence(&self) {
        self.silence.send_modify(|count| *count += 1);
    }
}

/// `host:port` of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let rest = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    rest.rsplit_once('@').map_or(rest, |(_, authority)| authority)
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    harms: Arc<Mutex<Vec<Harm>>>,
    mut silenced: watch::Receiver<u64>,
    made: u64,
) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            biased;
            () = async { drop(silenced.wait_for(|count| *count > made).await) } => std::future::pending().await,
            read = client.read(&mut asked) => {
                let Ok(len @ 1..) = read else { return };
                // One question at a time, so that it stands alone in what is read.
                let is_commit = asked[..len].ends_with(b"COMMIT\0");
                let harm = is_commit.then(|| harms.lock().unwrap().pop()).flatten();
                if let Some(harm) = harm {
                    do_harm(harm, client, server, &asked[..len]).await;
                    return;
                }
                if server.write_all(&asked[..len]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(len @ 1..) = read else { return };
                if client.write_all(&answered[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn do_harm(harm: Harm, mut client: TcpStream, mut server: TcpStream, commit: &[u8]) {
    let mut answer = vec![0; 1 << 10];
    match harm {
        Harm::Swallow => {}
        Harm::SwallowAnswer => {
            server.write_all(commit).await.unwrap();
            drop(client);
            let _ = server.read(&mut answer).await;
        }
        Harm::Delay(told) => {
            drop(client);
            told.await.unwrap();
            server.write_all(commit).await.unwrap();
            let _ = server.read(&mut answer).await;
        }
        Harm::Answer(instead) => {
            server.write_all(commit).await.unwrap();
            let _ = server.read(&mut answer).await;
            client.write_all(&instead).await.unwrap();
        }
        Harm::Refuse(instead) => {
            client.write_all(&instead).await.unwrap();
            // Until the client has read it and hangs up.
            let _ = client.read(&mut answer).await;
        }
    }
}

/// An error as Postgres sends it.
pub(crate) fn error_response(severity: &str, sqlstate: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (kind, value) in [(b'S', severity), (b'V', severity), (b'C', sqlstate), (b'M', "made up")] {
        fields.push(kind);
        fields.extend_from_slice(value.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let mut message = vec![b'E'];
    message.extend_from_slice(&u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    message.extend_from_slice(&fields);
    if severity == "ERROR" {
        // Ready for the next question, outside of a transaction.
        message.extend_from_slice(&[b'Z', 0, 0, 0, 5, b'I']);
    }
    message
}
